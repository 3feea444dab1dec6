"""Local store whose folder was moved: runs and models find their files again."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import mlflow
import pytest

from experiments.cli.codes import DONE
from experiments.cli.main import main
from tracking.errors import ErrorCode, UsageError
from tracking.moved import rebase
from tracking.records import Artifact, ModelSaved, RunClosed, RunOpened
from tracking.store import Store


@pytest.fixture
def moved(tmp_path: Path, empty_store: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Return a folder with a run that logged a file and a model, moved since then."""
    before, uri = tmp_path / "before", mlflow.get_tracking_uri()
    (before / "model").mkdir(parents=True)
    for name in ("file.txt", "model/weights"):
        (before / name).write_text("measured")
    monkeypatch.chdir(before)
    store = Store(f"sqlite:///{shutil.copy(empty_store, before / 'mlflow.db')}")
    saved = ModelSaved("r", "net", "model", {"flavor": "toy", "data": "data"})
    records = [
        RunOpened("r", 1, "captioning", "run", {"kind": "cell", "text": f"{before}/mlruns"}, {}),
        Artifact("r", "file.txt"),
    ]
    assert store.apply([*records, saved, RunClosed("r", 2, "ok")], before) == []
    after = tmp_path / "after"
    before.rename(after)
    monkeypatch.chdir(after)
    yield after
    mlflow.set_tracking_uri(uri)


def test_moved_folder_keeps_its_artifacts(
    moved: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    before = Store(f"sqlite:///{moved}/mlflow.db")
    (run,) = before.runs("captioning")
    assert before.download(run.run_id, tmp_path / "files") == []
    assert main(["moved"]) == DONE
    assert f"{tmp_path}/before/mlruns" in capsys.readouterr().out
    store = Store(f"sqlite:///{moved}/mlflow.db")
    assert store.download(run.run_id, tmp_path / "files") == ["file.txt"]
    (model,) = store._client.search_logged_models([store.experiment_id("captioning")])
    files = Path(mlflow.artifacts.download_artifacts(model.artifact_location))
    assert (files / "weights").read_text() == "measured"
    # the end of a path is no folder in it
    assert next(iter(store.runs("captioning"))).tags["text"] == f"{tmp_path}/before/mlruns"
    assert (moved / "mlflow.db.before-move").is_file()
    assert main(["moved"]) == DONE
    assert f"{tmp_path}/before" not in capsys.readouterr().out


def test_other_files_are_no_moved_store(tmp_path: Path) -> None:
    for code in (ErrorCode.NOT_FOUND, ErrorCode.NOT_FOUND, ErrorCode.UNWRITABLE):
        with pytest.raises(UsageError) as error:
            rebase(tmp_path / "mlflow.db")
        assert error.value.code is code
        if (tmp_path / "mlflow.db").exists():
            (tmp_path / "mlruns").mkdir(exist_ok=True)
        (tmp_path / "mlflow.db").write_text("not a database, but long enough to be looked at")
