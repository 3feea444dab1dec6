"""Tests of the guard, all of them, against `mlflow server --app-name evenhand` on PostgreSQL."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest

from tests.deploy.group import Group, add_teams, mlflow_server
from tests.deploy.test_fields import *  # noqa: F403
from tests.deploy.test_guard import *  # noqa: F403
from tests.deploy.test_searches import *  # noqa: F403
from tests.tracking.postgres import Postgres

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def group(tmp_path_factory: pytest.TempPathFactory, postgres: Postgres) -> Iterator[Group]:
    """Yield a server with three teams, in place of the group's."""
    uri = postgres.database(f"plugin_{uuid.uuid4().hex[:8]}")
    folder = tmp_path_factory.mktemp("plugin")
    with mlflow_server(folder, uri, uri, "--workers", "2") as made:
        add_teams(made, {"vision": "alice", "speech": "bob", "text": "carol"})
        yield made
