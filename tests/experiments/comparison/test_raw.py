"""Selection of shown runs, and their steps and curves from a store and from files."""

from __future__ import annotations

import shutil

import numpy as np
import pytest

from experiments.cell.measure import write_values
from experiments.cell.timing import PhaseValues
from experiments.comparison.runs import raw
from experiments.comparison.runs.query import table
from tests.experiments.comparison.campaigns import frame
from tracking.errors import ErrorCode, EvenhandError
from tracking.records import Artifact, Metrics, Point, RunClosed, RunOpened
from tracking.store import Store


def test_shown_runs_are_whole_blocks_over_all_time():
    runs = raw.shown(frame(blocks=200), maximum=20)
    assert len(runs) == 20
    blocks = [run.block for run in runs]
    assert {blocks.count(block) for block in blocks} == {2}
    assert {"0", "199"} <= set(blocks)
    assert max(np.diff(sorted({int(block) for block in blocks}))) <= 25


def test_whole_blocks_are_shown_first():
    table_ = frame(blocks=30)
    table_.loc[
        table_["run_id"].isin([f"c1-{block}-pytorch" for block in range(0, 30, 2)]), "status"
    ] = "FAILED"
    assert {int(run.block) % 2 for run in raw.shown(table_, maximum=20)} == {1}


@pytest.fixture(scope="module")
def campaign(tmp_path_factory, empty_store):
    """Yield a store of two runs, one with values and a curve, and the path of its values."""
    tmp_path = tmp_path_factory.mktemp("campaign")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path)
        yield _stored(tmp_path, empty_store)


def _stored(tmp_path, empty_store):
    shutil.copy(empty_store, tmp_path / "mlflow.db")
    store = Store(f"sqlite:///{tmp_path}/mlflow.db")
    start = 1_760_000_000_000
    path = tmp_path / "cells" / "values.parquet"
    path.parent.mkdir()
    seconds = (9.0, 0.5, 0.25, 0.125, 0.0625)
    requests = PhaseValues("inference_batch_4", (0.3, 0.1, 0.1), (4, 4, 4), 1)
    write_values(path, [PhaseValues("train", seconds, (32,) * 5, 3), requests])
    records = []
    for level in ("pytorch", "tensorflow"):
        tags = {"kind": "cell", "framework": level, "block": "0", "campaign": "c"}
        records.append(RunOpened(level, start, "e", level, tags, {"epochs": "5"}))
    points = [Point("val/loss", 3.0 - at, at, start + 500 + 1_000 * at) for at in range(5)]
    records += [Metrics("pytorch", tuple(points)), Artifact("pytorch", "cells/values.parquet")]
    records += [RunClosed(level, start + 30_000, "ok") for level in ("pytorch", "tensorflow")]
    assert store.apply(records, tmp_path) == []
    return store, path


def test_steps_and_curves_from_a_store(campaign):
    store, _ = campaign
    calls: list[tuple[int, int]] = []
    shown = raw.shown(table(list(store.runs("e"))))
    runs = {
        run.level: run for run in raw.fetch(store, shown, lambda done, of: calls.append((done, of)))
    }
    assert calls == [(1, 2), (2, 2)]
    run = runs["pytorch"]
    assert list(run.phases) == ["train", "inference_batch_4"]
    assert run.phases["train"].measured.tolist() == [0.125, 0.0625]
    assert list(raw.of_inference(run)) == [4]
    assert run.epochs["val/loss"].tolist() == [3.0, 2.0, 1.0, 0.0, -1.0]
    empty = runs["tensorflow"]
    assert (empty.phases, empty.epochs, empty.trouble) == ({}, {}, "")


def test_steps_from_files(campaign, tmp_path):
    store, path = campaign
    broken = tmp_path / "broken.parquet"
    broken.write_bytes(b"not a table")
    shown = raw.shown(table(list(store.runs("e"))))
    runs = raw.from_files(
        shown, {run.run_id: path if run.level == "pytorch" else broken for run in shown}
    )
    by_level = {run.level: run for run in runs}
    assert by_level["pytorch"].phases["train"].seconds.sum() == pytest.approx(9.9375)
    assert "broken.parquet" in by_level["tensorflow"].trouble
    with pytest.raises(EvenhandError, match=r"nothing\.parquet") as error:
        raw.read_values(tmp_path / "nothing.parquet")
    assert error.value.code is ErrorCode.UNREADABLE
