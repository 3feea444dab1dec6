"""Store of one test: a copy of an empty one, in the test's folder, where it works."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tracking.store import Store


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, empty_store: Path) -> Store:
    monkeypatch.chdir(tmp_path)
    return Store(f"sqlite:///{shutil.copy(empty_store, tmp_path / 'mlflow.db')}")
