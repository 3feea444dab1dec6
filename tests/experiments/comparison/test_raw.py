"""Selection of shown runs, and their steps and curves from a store and from files."""

from __future__ import annotations

import shutil

import numpy as np
import pandas as pd
import pytest

from experiments.cell.measure import write_values
from experiments.cell.timing import PhaseValues
from experiments.comparison.runs import raw
from experiments.comparison.runs.query import table
from experiments.run.journal_runs import JournalRuns
from tests.experiments.comparison.campaigns import frame
from tracking.journal import Journal
from tracking.records import Artifact, Metrics, Point, RunClosed, RunOpened, Tags
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
    """Yield a store of three runs and their journal: one with values and a curve, one damaged."""
    tmp_path = tmp_path_factory.mktemp("campaign")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path)
        yield _stored(tmp_path, empty_store)


def _stored(tmp_path, empty_store):
    shutil.copy(empty_store, tmp_path / "mlflow.db")
    store, journal = Store(f"sqlite:///{tmp_path}/mlflow.db"), Journal(tmp_path / "journal")
    start = 1_760_000_000_000
    for name in ("pytorch", "jax"):
        (journal.folder / name).mkdir()
    seconds = (9.0, 0.5, 0.25, 0.125, 0.0625)
    requests = PhaseValues("inference_batch_4", (0.3, 0.1, 0.1), (4, 4, 4), 1)
    values = [PhaseValues("train", seconds, (32,) * 5, 3), requests]
    write_values(journal.folder / "pytorch" / "values.parquet", values)
    (journal.folder / "jax" / "values.parquet").write_bytes(b"not a table")
    records = [RunOpened("c", start, "e", "campaign", {"kind": "campaign"})]
    for level in ("pytorch", "tensorflow", "jax"):
        tags = {"kind": "cell", "framework": level, "block": "0", "campaign": "run:c"}
        records.append(RunOpened(level, start, "e", level, tags, {"epochs": "5"}))
    points = [Point("val/loss", 3.0 - at, at, start + 500 + 1_000 * at) for at in range(5)]
    records += [Artifact(level, f"{level}/values.parquet") for level in ("pytorch", "jax")]
    records += [Metrics("pytorch", tuple(points)), Tags("pytorch", {"cool_down": "2 s"})]
    records += [Metrics("pytorch", (Point("train/first_step_seconds", 0.1, 0, start),), True)]
    records += [
        RunClosed(level, start + 30_000, "ok") for level in ("pytorch", "tensorflow", "jax")
    ]
    for record in records:
        journal.append(record)
    assert store.apply(records, journal.folder) == []
    return store, journal.folder


def test_journal_and_mlflow_give_the_same_table_and_the_same_steps(campaign):
    store, folder = campaign
    in_journal = JournalRuns(folder, {run.tags["origin"]: run.run_id for run in store.runs("e")})
    stored = [run for run in store.runs("e") if run.tags["kind"] == "cell"]
    expected, in_order = (
        table(sorted(runs, key=lambda run: run.run_id)) for runs in (stored, in_journal.stored())
    )
    expected = expected.drop(columns=["tags.origin", "tags.mlflow.runName"])
    pd.testing.assert_frame_equal(in_order[expected.columns], expected)
    shown, calls = raw.shown(expected), list[tuple[int, int]]()
    for source in (store, in_journal):
        fetched = raw.fetch(source, shown, lambda done, of: calls.append((done, of)))
        runs = {run.level: run for run in fetched}
        run = runs["pytorch"]
        assert list(run.phases) == ["train", "inference_batch_4"]
        assert run.phases["train"].measured.tolist() == [0.125, 0.0625]
        assert list(raw.of_inference(run)) == [4]
        assert run.epochs["val/loss"].tolist() == [3.0, 2.0, 1.0, 0.0, -1.0]
        empty = runs["tensorflow"]
        assert (empty.phases, empty.epochs, empty.trouble) == ({}, {}, "")
        assert "values.parquet" in runs["jax"].trouble
    assert calls == [(1, 3), (2, 3), (3, 3)] * 2
