"""A folder with its store is moved: runs and models find their files again, and nothing else changes."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import mlflow
import pytest

from experiments.cli.codes import DONE, WRONG_CALL
from experiments.cli.main import main
from tracking.records import Artifact, ModelSaved, RunClosed, RunOpened
from tracking.store import Store


@pytest.fixture
def moved(tmp_path: Path, empty_store: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder in which a run has logged a file and a model, at another place than then."""
    before, uri = tmp_path / "before", mlflow.get_tracking_uri()
    (before / "model").mkdir(parents=True)
    (before / "file.txt").write_text("measured")
    (before / "model" / "weights").write_text("trained")
    shutil.copy(empty_store, before / "mlflow.db")
    monkeypatch.chdir(before)
    store = Store(f"sqlite:///{before}/mlflow.db")
    loader = "experiments.workloads.captioning.captioner"
    saved = ModelSaved(
        "r", "net", loader, "model", {"image": "a.png"}, "caption", ("numpy==2.0.0",)
    )
    records = [
        RunOpened("r", 1, "captioning", "run", {"kind": "cell", "told": f"{before}/mlruns"}, {}),
        Artifact("r", "file.txt"),
    ]
    assert store.apply([*records, saved, RunClosed("r", 2, "ok")], before) == []
    after = tmp_path / "after"
    before.rename(after)
    monkeypatch.chdir(after)
    yield after
    mlflow.set_tracking_uri(uri)


def test_a_moved_folder_keeps_its_artifacts(
    moved: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    lost = Store(f"sqlite:///{moved}/mlflow.db")
    (run,) = lost.runs("captioning")
    assert lost.download(run.run_id, tmp_path / "there") == []
    assert main(["moved"]) == DONE
    assert f"{tmp_path}/before/mlruns" in capsys.readouterr().out
    found = Store(f"sqlite:///{moved}/mlflow.db")
    assert found.download(run.run_id, tmp_path / "there") == ["file.txt"]
    (model,) = found._client.search_logged_models([found.experiment_id("captioning")])
    assert (
        Path(
            mlflow.artifacts.download_artifacts(model.artifact_location), "data", "model", "weights"
        ).read_text()
        == "trained"
    )
    assert (
        next(iter(found.runs("captioning"))).tags["told"] == f"{tmp_path}/before/mlruns"
    )  # the end of a path is no folder in it
    assert (moved / "mlflow.db.before-move").is_file()
    assert main(["moved"]) == DONE
    assert "nothing to change" in capsys.readouterr().out


def test_what_is_no_moved_store(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["moved"]) == WRONG_CALL
    assert (
        "there is no such file; give the mlflow.db of the folder that was moved"
        in capsys.readouterr().err
    )
    (tmp_path / "mlflow.db").write_text("not a database, but long enough to be looked at")
    assert main(["moved"]) == WRONG_CALL
    assert "there is no folder mlruns beside it" in capsys.readouterr().err
    (tmp_path / "mlruns").mkdir()
    assert main(["moved"]) == WRONG_CALL
    assert "file is not a database" in capsys.readouterr().err
