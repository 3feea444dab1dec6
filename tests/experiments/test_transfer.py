"""Runs move from one server to another with their histories, files, data sets and nesting; a second time changes nothing."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests import warm
from tests.conftest import Place
from tracking.records import Artifact, DatasetUsed, Metrics, Point, RunClosed, RunKind, RunOpened
from tracking.store import Store

PLACE = "moved"


def filled(place: Place) -> Store:
    """A sweep with a nested trial, confirmed by a campaign that came after it and has a cell."""
    store = Store(place.uri)
    (place.folder / "report.html").write_text("<h1>report</h1>")
    (place.folder / "deep").mkdir()
    (place.folder / "deep" / "values.parquet").write_bytes(b"\x00\x01")
    history = tuple(Point("val/loss", 2.0 / step, step, 1_000 + step) for step in range(1, 40))
    records = [
        RunOpened("sweep", 1, PLACE, "the sweep", {"kind": RunKind.SWEEP}, {"trials": "1"}),
        RunOpened(
            "trial",
            2,
            PLACE,
            "trial 0",
            {"kind": RunKind.TRIAL, "campaign": "run:sweep", "mlflow.parentRunId": "run:sweep"},
        ),
        Metrics("trial", history),
        RunClosed("trial", 3, "out_of_memory", "too large", "FINISHED"),
        RunOpened(
            "campaign", 4, PLACE, "the campaign", {"kind": RunKind.CAMPAIGN, "sweep": "run:sweep"}
        ),
        RunOpened(
            "cell",
            5,
            PLACE,
            "cell",
            {"kind": RunKind.CELL, "campaign": "run:campaign", "framework": "pytorch"},
            {"epochs": "3"},
        ),
        DatasetUsed("cell", "digits", "abc", "here", "{}", "{}", "training"),
        Metrics("cell", (Point("train/examples_per_second", 12.5, 0, 6),)),
        Artifact("cell", "deep/values.parquet", "deep"),
        RunClosed("cell", 7, "ok"),
        Artifact("campaign", "report.html"),
        RunClosed("campaign", 8, "ok"),
        RunClosed("sweep", 9, "ok"),
    ]
    assert store.apply(records, place.folder) == []
    store.tag(str(store.run_id("sweep")), {"confirmed_by": str(store.run_id("campaign"))})
    return store


def call(place: Place, uri: str, *arguments: str) -> tuple[int, str]:
    environment = {**place.environment, "MLFLOW_TRACKING_URI": uri}
    done = warm.run([sys.executable, "-m", "experiments", *arguments], environment, place.folder)
    return done.returncode, done.stdout + done.stderr


def test_export_and_import_are_complete_and_idempotent(place: Place) -> None:
    source = filled(place)
    before = {run.name: run for run in source.runs(PLACE)}
    folder, target_uri = place.folder / "export", f"sqlite:///{place.folder}/target.db"
    code, output = call(place, place.uri, "export", f"--experiment={PLACE}", f"--output={folder}")
    assert code == 0, output
    for _ in range(2):
        code, output = call(place, target_uri, "import", f"--journal={folder}")
        assert code == 0, output

    target = Store(target_uri)
    after = {run.name: run for run in target.runs(PLACE)}
    assert set(after) == set(before)
    assert len(list(target.runs(PLACE))) == len(before)
    new = {before[name].run_id: after[name].run_id for name in before}
    for name, old in before.items():
        moved = after[name]
        assert (moved.status, moved.start_ms, moved.end_ms) == (
            old.status,
            old.start_ms,
            old.end_ms,
        )
        assert dict(moved.params) == dict(old.params)
        assert dict(moved.metrics) == dict(old.metrics)
        assert moved.tags["exported_run_id"] == old.run_id
        for key in ("kind", "outcome", "outcome_reason"):
            assert moved.tags.get(key) == old.tags.get(key)
        for key in ("campaign", "mlflow.parentRunId", "sweep", "confirmed_by"):
            assert moved.tags.get(key) == new.get(old.tags.get(key, ""), old.tags.get(key)), (
                name,
                key,
            )
        for key in old.metrics:
            assert target.points(moved.run_id, key) == source.points(old.run_id, key)
        assert [(one.name, one.digest) for one in target.datasets(moved.run_id, "x")] == [
            (one.name, one.digest) for one in source.datasets(old.run_id, "x")
        ]
    files = {
        name: target.download(run.run_id, place.folder / "there") for name, run in after.items()
    }
    assert files == {
        "the sweep": [],
        "trial 0": [],
        "the campaign": ["report.html"],
        "cell": ["deep/values.parquet"],
    }
    assert (
        place.folder / "there" / after["cell"].run_id / "deep" / "values.parquet"
    ).read_bytes() == b"\x00\x01"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"filter": "tags.kind = 'nothing'"}, "tags.kind = 'nothing'"),
        ({"output": "."}, "output="),
    ],
)
def test_export_refusals_are_one_line(place: Place, given: dict[str, str], said: str) -> None:
    filled(place)
    asked = {"experiment": PLACE, "output": str(place.folder / "export"), **given}
    code, output = call(
        place, place.uri, "export", *(f"--{name}={text}" for name, text in asked.items())
    )
    assert code == 2
    assert said in output
    assert not Path(place.folder / "export").exists()
