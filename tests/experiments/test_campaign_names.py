"""Campaigns are told by their names: in comparisons of them, and in the list of what a tracking server holds."""

from __future__ import annotations

import json
import re
import shutil
import time
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import mlflow
import pytest

from experiments.cli.codes import DONE, FAILED, WRONG_CALL
from experiments.cli.main import main
from experiments.comparison.runs import names
from tests.conftest import Place
from tests.experiments.comparison.campaigns import STEP, runs
from tracking.records import Metrics, Point, Record, RunClosed, RunOpened, RunOutcome, StoredRun
from tracking.store import Store

RUN_ID = re.compile(r"\b[0-9a-f]{32}\b")
ANSWER = "TensorFlow trains 1.20× slower than PyTorch (95 % interval 1.18–1.22)."


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"a1": "captioning, demo · one night"}, {"a1": "captioning · demo · one night"}),
        (
            {"a1": "captioning, demo · night", "b2": "captioning, paper · night"},
            {"a1": "demo · night", "b2": "paper · night"},
        ),
        (
            {"a1": "lenet, demo", "b2": "captioning, demo"},
            {"a1": "lenet · demo", "b2": "captioning · demo"},
        ),
        (
            {"a" * 32: "night", "b" * 32: "night"},
            {"a" * 32: "night · aaaaaaaa", "b" * 32: "night · bbbbbbbb"},
        ),
    ],
)
def test_campaign_names_are_short_and_distinct(
    given: dict[str, str], expected: dict[str, str]
) -> None:
    assert names.distinguish(given) == expected


# ---- on a tracking store


@pytest.fixture
def store(place: Place, empty_store: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    shutil.copy(empty_store, place.folder / "mlflow.db")
    monkeypatch.chdir(place.folder)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", place.uri)
    monkeypatch.setenv("COLUMNS", "300")
    mlflow.set_tracking_uri(place.uri)
    return Store(place.uri)


def told(store: Store, found: Iterable[StoredRun], experiment: str = "captioning") -> None:
    records: list[Record] = []
    for run in found:
        tags = (
            {**run.tags, "campaign": f"run:{run.tags['campaign']}"}
            if "campaign" in run.tags
            else run.tags
        )
        records.append(RunOpened(run.run_id, run.start_ms, experiment, run.name, tags, run.params))
        records.append(
            Metrics(
                run.run_id,
                tuple(Point(key, value, 0, run.start_ms) for key, value in run.metrics.items()),
            )
        )
        records += [RunClosed(run.run_id, run.end_ms, RunOutcome.OK, "")] if run.end_ms else []
    assert store.apply(records, Path()) == []


def campaign(
    origin: str, name: str, began_ms: int, *, factor: float = 1.0, ended: bool = True
) -> Iterable[StoredRun]:
    """A campaign's run and its cells."""
    tags = {"kind": "campaign", "outcome": "ok", "answer": ANSWER}
    params = {"until": "settled", "blocks": "6", "max_blocks": "40"}
    status, known = ("FINISHED", tags) if ended else ("RUNNING", {"kind": "campaign"})
    yield StoredRun(
        origin, name, status, began_ms, began_ms + 1 if ended else None, params, {}, known
    )
    for cell in runs(factors={"tensorflow": 1.2, "pytorch": factor}, campaign=origin):
        yield replace(cell, start_ms=cell.start_ms + began_ms)


def two_nights(store: Store) -> dict[str, str]:
    """Origin → run id of two campaigns, the second 1.5 times slower."""
    told(store, campaign("c1", "captioning, demo · first night", 1_700_000_000_000))
    told(store, campaign("c2", "captioning, demo · second night", 1_700_100_000_000, factor=1.5))
    return {origin: store.run_id(origin) or "" for origin in ("c1", "c2")}


def test_compare_shows_campaign_names(
    store: Store, place: Place, capsys: pytest.CaptureFixture[str]
) -> None:
    ids = two_nights(store)
    call = [
        "compare",
        "--factor=campaign",
        "--figures=false",
        "--filter=params.framework = 'pytorch'",
        f"--output={place.folder}/out",
    ]
    assert main([*call, "--outcomes", STEP, f"--baseline={ids['c1']}", "--format=json"]) == DONE
    row = json.loads(capsys.readouterr().out)["rows"][0]
    assert (row["a"], row["b"], row["verdict"]) == (
        "demo · first night",
        "demo · second night",
        "slower",
    )
    assert (
        main([*call, "--outcomes", STEP, "--baseline=demo · second night", "--format=json"]) == DONE
    )
    row = json.loads(capsys.readouterr().out)["rows"][0]
    assert (row["a"], row["b"], row["verdict"]) == (
        "demo · second night",
        "demo · first night",
        "faster",
    )
    assert main([*call, f"--baseline={ids['c1']}"]) == DONE
    said = capsys.readouterr().out
    assert "“demo · second night” trains 1.50× slower than “demo · first night”" in said
    page = max(
        (place.folder / "out").glob("*/report.md"), key=lambda one: one.stat().st_mtime
    ).read_text()
    assert "“demo · second night” trains 1.50× slower" in page
    table = page.partition("## Campaigns")[2].partition("\n## ")[0]
    assert all(run_id in table for run_id in ids.values()), "which run each of them is"
    assert not RUN_ID.search(page.partition("## Campaigns")[0])


def test_campaigns_lists_newest_first(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    ids = two_nights(store)
    told(store, campaign("c3", "lenet, demo · now", int(time.time() * 1_000), ended=False), "lenet")
    assert main(["campaigns"]) == DONE
    said = capsys.readouterr().out
    assert re.search(r"^ *began +campaign +state +blocks +answer +run id *$", said, re.MULTILINE)
    now, second, first, hint = [line for line in said.splitlines() if RUN_ID.search(line)]
    assert "lenet, demo · now" in now
    assert "running" in now
    assert second.rstrip().endswith(ids["c2"])
    assert re.search(r"captioning, demo · first night +ok +6 to 40 +TensorFlow trains", first)
    assert "compare" in hint
    assert store.run_id("c3") in hint
    assert main(["campaigns", "--experiment=captioning", "--limit=1"]) == DONE
    said = capsys.readouterr().out
    assert "second night" in said
    assert "first night" not in said
    assert "lenet" not in said


@pytest.mark.usefixtures("store")
def test_campaigns_of_empty_server(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["campaigns"]) == DONE
    assert capsys.readouterr().out.strip() == "no campaigns yet"
    assert main(["campaigns", "--experiment=captoning"]) == WRONG_CALL
    assert "captoning" in capsys.readouterr().err


def test_campaigns_of_unreachable_server_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    mlflow.set_tracking_uri("http://127.0.0.1:9")
    assert main(["campaigns"]) in (FAILED, WRONG_CALL)
    assert len(capsys.readouterr().err.strip().splitlines()) == 1


@pytest.mark.parametrize(
    "words", [["compare"], ["campaigns"], ["compare", f"--experiment={'a' * 32}"], ["export"]]
)
def test_reading_commands_create_no_store(
    words: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/mlflow.db")
    mlflow.set_tracking_uri(f"sqlite:///{tmp_path}/mlflow.db")
    assert main(words) == WRONG_CALL
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert f"no runs here: {tmp_path}/mlflow.db does not exist" in line
    assert list(tmp_path.iterdir()) == []
