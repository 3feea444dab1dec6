"""Names of campaigns: in comparisons of them, and in the list of a tracking server's campaigns."""

from __future__ import annotations

import json
import re
import shutil
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
DAY_MS = 86_400_000
Capture = pytest.CaptureFixture[str]


@pytest.mark.parametrize(
    ("full_names", "expected"),
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
    full_names: dict[str, str], expected: dict[str, str]
) -> None:
    assert names.distinguish(full_names) == expected


# ---- on a tracking store


def use_store(monkeypatch: pytest.MonkeyPatch, uri: str) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    mlflow.set_tracking_uri(uri)


@pytest.fixture
def store(place: Place, empty_store: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    shutil.copy(empty_store, place.folder / "mlflow.db")
    monkeypatch.chdir(place.folder)
    monkeypatch.setenv("COLUMNS", "300")
    use_store(monkeypatch, place.uri)
    return Store(place.uri)


def write_runs(store: Store, stored: Iterable[StoredRun]) -> None:
    records: list[Record] = []
    for run in stored:
        campaign = {"campaign": f"run:{run.tags['campaign']}"} if "campaign" in run.tags else {}
        tags, began_ms = run.tags | campaign, run.start_ms
        records.append(RunOpened(run.run_id, began_ms, "captioning", run.name, tags, run.params))
        points = [Point(key, value, 0, began_ms) for key, value in run.metrics.items()]
        records.append(Metrics(run.run_id, tuple(points)))
        if run.end_ms:
            records.append(RunClosed(run.run_id, run.end_ms, RunOutcome.OK, ""))
    assert store.apply(records, Path()) == []


def make_campaign(origin: str, name: str, day: int, factor: float = 1.0) -> Iterable[StoredRun]:
    """Yield a campaign's run and those of its cells."""
    tags = {"kind": "campaign", "outcome": "ok", "answer": "TensorFlow trains 1.20× slower"}
    params, began_ms = {"until": "settled", "blocks": "6", "max_blocks": "40"}, day * DAY_MS
    yield StoredRun(origin, name, "FINISHED", began_ms, began_ms + 1, params, {}, tags)
    for cell in runs(factors={"tensorflow": 1.2, "pytorch": factor}, campaign=origin):
        yield replace(cell, start_ms=cell.start_ms + began_ms)


@pytest.fixture
def ids(store: Store) -> list[str]:
    """Run ids of two campaigns, the second 1.5 times slower."""
    write_runs(store, make_campaign("c1", "captioning, demo · first night", 100))
    write_runs(store, make_campaign("c2", "captioning, demo · second night", 101, factor=1.5))
    return [store.run_id(origin) or "" for origin in ("c1", "c2")]


def test_compare_shows_campaign_names(ids: list[str], place: Place, capsys: Capture) -> None:
    query = ["--factor=campaign", "--figures=false", "--filter=params.framework = 'pytorch'"]
    call = ["compare", *query, f"--output={place.folder}/out"]
    first, second = "demo · first night", "demo · second night"
    for baseline, expected in (
        (ids[0], [first, second, "slower"]),
        (second, [second, first, "faster"]),
    ):
        words = ["--outcomes", STEP, f"--baseline={baseline}", "--format=json"]
        assert main([*call, *words]) == DONE
        row = json.loads(capsys.readouterr().out)["rows"][0]
        assert [row["a"], row["b"], row["verdict"]] == expected
    assert main([*call, f"--baseline={ids[0]}"]) == DONE
    assert f"“{second}” trains 1.50× slower than “{first}”" in capsys.readouterr().out
    pages = [path.read_text() for path in (place.folder / "out").glob("*/report.md")]
    head, _, table = next(page for page in pages if "## Campaigns" in page).partition(
        "## Campaigns"
    )
    assert set(ids) <= set(RUN_ID.findall(table)), "which run each of them is"
    assert not RUN_ID.search(head)


def test_campaigns_lists_newest_first(ids: list[str], capsys: Capture) -> None:
    assert main(["campaigns"]) == DONE
    lines = [line for line in capsys.readouterr().out.splitlines() if RUN_ID.search(line)]
    assert [RUN_ID.findall(line)[-1] for line in lines[:2]] == ids[::-1]
    assert re.search(r"captioning, demo · first night +ok +6 to 40 +TensorFlow trains", lines[1])
    assert main(["campaigns", "--experiment=captioning", "--limit=1"]) == DONE
    output = capsys.readouterr().out
    assert "second night" in output
    assert "first night" not in output


@pytest.mark.usefixtures("store")
def test_campaigns_of_empty_server(capsys: Capture) -> None:
    assert main(["campaigns"]) == DONE
    assert capsys.readouterr().out.strip() == "no campaigns yet"
    assert main(["campaigns", "--experiment=captoning"]) == WRONG_CALL
    assert "captoning" in capsys.readouterr().err


def test_campaigns_of_unreachable_server_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    use_store(monkeypatch, "http://127.0.0.1:9")
    assert main(["campaigns"]) in (FAILED, WRONG_CALL)
    assert len(capsys.readouterr().err.strip().splitlines()) == 1


@pytest.mark.parametrize(
    "words", [["compare"], ["campaigns"], ["compare", f"--experiment={'a' * 32}"], ["export"]]
)
def test_reading_commands_create_no_store(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.chdir(tmp_path)
    use_store(monkeypatch, f"sqlite:///{tmp_path}/mlflow.db")
    assert main(words) == WRONG_CALL
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert f"{tmp_path}/mlflow.db" in line
    assert list(tmp_path.iterdir()) == []
