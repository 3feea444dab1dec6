"""Fixtures of the tests of experiments."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from experiments.comparison.statistics import power
from tests.conftest import Place


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Predict further blocks at a probability of 90 %: at 95 % they are rare for one outcome."""
    monkeypatch.setattr(power, "PREDICTED", 0.9)


@pytest.fixture(scope="module")
def module_place(
    tmp_path_factory: pytest.TempPathFactory, shared_cache: Path, empty_store: Path
) -> Place:
    """Return a place for one campaign that several tests of a module look at."""
    folder = tmp_path_factory.mktemp("place")
    shutil.copy(empty_store, folder / "mlflow.db")
    return Place(folder, shared_cache, f"sqlite:///{folder}/mlflow.db")
