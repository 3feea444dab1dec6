"""Store of one test: a copy of an empty one, in the test's folder, where it works."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tracking.journal import Journal
from tracking.records import RunOpened
from tracking.store import Store
from tracking.upload import Uploader


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, empty_store: Path) -> Store:
    monkeypatch.chdir(tmp_path)
    return Store(f"sqlite:///{shutil.copy(empty_store, tmp_path / 'mlflow.db')}")


def uploading(store: Store, folder: Path, campaign: RunOpened) -> tuple[Journal, Uploader]:
    """Return a journal whose campaign is open on the server, and its uploader, not yet started."""
    assert store.apply([campaign], folder) == []
    journal = Journal(folder)
    journal.append(campaign)
    return journal, Uploader(journal, store, store.run_id(campaign.run) or "")
