"""Fixtures of servers: one on SQLite, and two teams of the group's."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.deploy.group import (
    PROXY,
    PROXY_SECRET,
    Group,
    Team,
    add_teams,
    free_port,
    mlflow_server,
)
from tracking.store import Store


@pytest.fixture(scope="session")
def mlflow_group(tmp_path_factory: pytest.TempPathFactory, empty_store: Path) -> Iterator[Group]:
    """Yield `mlflow server --app-name evenhand` on SQLite, with two teams and a trusted proxy."""
    folder = tmp_path_factory.mktemp("plugin")
    shutil.copy(empty_store, folder / "mlflow.db")  # the command's own default
    options = ("--workers", "1")
    proxies = {"FORWARDED_ALLOW_IPS": PROXY, "EVENHAND_PROXY_SECRET": PROXY_SECRET}
    accounts = f"sqlite:///{folder}/accounts.db"
    with mlflow_server(
        folder, *options, accounts_uri=accounts, proxy_port=free_port(), **proxies
    ) as made:
        add_teams(made, {"vision": "alice", "speech": "bob"})
        yield made


@pytest.fixture(scope="module")
def hers(group: Group) -> Team:
    return Team(group, "alice", "vision")


@pytest.fixture(scope="module")
def his(group: Group) -> Team:
    return Team(group, "bob", "speech")


@pytest.fixture(scope="module")
def fill(hers: Team, his: Team) -> Callable[[str], str]:
    """Return a function that replaces names of alice's and bob's things by their ids."""
    ids = {"MY_MODEL": his.model, "HER_MODEL": hers.model, "MY_RUN": his.run, "HER_RUN": hers.run}
    ids |= {"HERS": hers.experiment, "MINE": his.experiment, "HER_FILE": hers.file}
    ids |= {"MY_FILE": his.file}
    return lambda text: re.sub(
        "|".join(sorted(ids, key=len, reverse=True)), lambda name: ids[name[0]], text
    )


@pytest.fixture
def as_user(group: Group, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Store]:
    """Return the server as a user sees it, who is this process's from then on."""

    def become(user: str) -> Store:
        monkeypatch.setenv("MLFLOW_TRACKING_USERNAME", user)
        monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", group.password(user))
        return Store(group.uri)

    return become
