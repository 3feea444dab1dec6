"""Which runs are shown, and how their steps and curves come back from a store and from files."""

from __future__ import annotations

import shutil

import numpy as np
import pytest

from experiments.cell.measure import write_values
from experiments.cell.timing import PhaseValues
from experiments.comparison.runs import raw
from experiments.comparison.runs.query import table
from tests.experiments.comparison.campaigns import frame
from tests.experiments.comparison.steps import phase
from tracking.errors import EvenhandError
from tracking.records import Artifact, Metrics, Point, RunClosed, RunOpened
from tracking.store import Store


def test_of_many_runs_whole_blocks_are_shown_from_the_first_to_the_last():
    found = raw.shown(frame(blocks=200), maximum=20)
    assert len(found) == 20
    blocks = [run.block for run in found]
    assert {blocks.count(block) for block in blocks} == {2}
    assert {"0", "199"} <= set(blocks)
    assert max(np.diff(sorted({int(block) for block in blocks}))) <= 25


def test_blocks_with_a_missing_side_give_way_to_whole_ones():
    table_ = frame(blocks=30)
    table_.loc[
        table_["run_id"].isin([f"c1-{block}-pytorch" for block in range(0, 30, 2)]), "status"
    ] = "FAILED"
    assert {int(run.block) % 2 for run in raw.shown(table_, maximum=20)} == {1}


@pytest.fixture(scope="module")
def campaign(tmp_path_factory, empty_store):
    """Two runs on a real store, one with values and a curve; and the path of its values."""
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


def test_steps_and_curves_come_back_from_a_store(campaign):
    store, _ = campaign
    told: list[tuple[int, int]] = []
    shown = raw.shown(table(list(store.runs("e"))))
    found = {
        run.level: run for run in raw.fetch(store, shown, lambda done, of: told.append((done, of)))
    }
    assert told == [(1, 2), (2, 2)]
    run = found["pytorch"]
    assert list(run.phases) == ["train", "inference_batch_4"]
    assert run.phases["train"].measured.tolist() == [0.125, 0.0625]
    assert list(raw.of_inference(run)) == [4]
    assert run.epochs["val/loss"].tolist() == [3.0, 2.0, 1.0, 0.0, -1.0]
    assert (
        found["tensorflow"].phases,
        found["tensorflow"].epochs,
        found["tensorflow"].trouble,
    ) == ({}, {}, "")


def test_steps_come_from_files_where_the_server_is_away(campaign, tmp_path):
    store, path = campaign
    broken = tmp_path / "broken.parquet"
    broken.write_bytes(b"not a table")
    shown = raw.shown(table(list(store.runs("e"))))
    found = raw.from_files(
        shown, {run.run_id: path if run.level == "pytorch" else broken for run in shown}
    )
    by_level = {run.level: run for run in found}
    assert by_level["pytorch"].phases["train"].seconds.sum() == pytest.approx(9.9375)
    assert by_level["tensorflow"].trouble.startswith("broken.parquet cannot be read")
    with pytest.raises(EvenhandError, match="cannot be read"):
        raw.read_values(tmp_path / "nothing.parquet")


def test_percentiles_are_medians_over_the_runs_that_earned_them():
    few, many = phase("x", np.arange(1, 74)), phase("x", np.arange(1, 402))
    assert set(raw.median_percentiles([few], (0.5, 0.95, 0.99))) == {0.5, 0.95}
    assert set(raw.median_percentiles([few, many], (0.5, 0.95, 0.99))) == {0.5, 0.95, 0.99}
    # 400 values from 2 to 401: the upper tail comes from the run that earned it alone
    assert raw.median_percentiles([few, many], (0.99,))[0.99] == pytest.approx(398, abs=1)
