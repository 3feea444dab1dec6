"""Fixtures of servers: a folder whose servers are stopped, and two teams of the group's."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.deploy.group import Group, Team, native
from tracking.store import Store


@pytest.fixture
def place() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="evenhand-native-", dir="/tmp"))
    folder.chmod(0o711)
    yield folder
    for server in folder.iterdir():
        native("stop", server)
    shutil.rmtree(folder)


@pytest.fixture(scope="module")
def hers(group: Group) -> Team:
    return Team(group, "alice", "vision")


@pytest.fixture(scope="module")
def his(group: Group) -> Team:
    return Team(group, "bob", "speech")


@pytest.fixture
def as_user(group: Group, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Store]:
    """Return the server as a user sees it, who is this process's from then on."""

    def become(user: str) -> Store:
        monkeypatch.setenv("MLFLOW_TRACKING_USERNAME", user)
        monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", group.password(user))
        return Store(group.uri)

    return become
