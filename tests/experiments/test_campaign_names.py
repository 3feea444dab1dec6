"""Names of campaigns: in comparisons of them, and in the list of a tracking server's campaigns."""

import json
import re
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import mlflow
import pytest

from experiments import studies
from experiments.cli.codes import DONE, FAILED, WRONG_CALL
from experiments.cli.main import main
from experiments.comparison.runs import names
from experiments.config import settings as settings_
from experiments.run import pipeline
from experiments.run.plan import Plan
from experiments.run.preparation import PreparedCampaign
from experiments.run.prepared import PreparedCampaign
from tests.conftest import Place
from tests.experiments.comparison.campaigns import STEP, runs
from tests.experiments.test_compare import store, store_runs
from tracking.records import StoredRun
from tracking.store import Store

__all__ = ["store"]
RUN_ID = re.compile(r"\b[0-9a-f]{32}\b")
DAY_MS = 86_400_000
Capture = pytest.CaptureFixture[str]


@pytest.mark.parametrize(
    ("minutes", "endings"),
    [((0, 0), [" · aaaaaaaa", " · bbbbbbbb"]), ((0, 5), [" 12:00", " 12:05"])],
)
def test_equal_names_are_told_apart_by_time_then_by_run_id(
    minutes: tuple[int, int], endings: list[str]
) -> None:
    noon = time.mktime((2026, 11, 26, 12, 0, 0, 0, 0, -1))
    ids = ("a" * 32, "b" * 32, "c" * 32)
    called = dict(zip(ids, ("lenet demo", "lenet demo", "lenet demo · blocks=12"), strict=True))
    starts = dict(zip(ids, [1_000 * (noon + 60 * m) for m in (*minutes, 0)], strict=True))
    first, second, other = names.distinguish(called, starts).values()
    assert other == "lenet demo · blocks=12"
    for name, ending in zip((first, second), endings, strict=True):
        assert name.startswith("lenet demo · 2026-11-26 12:0")
        assert name.endswith(ending)


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({}, "lenet demo"),
        ({"blocks": "12", "vary": "threads=1,2"}, "lenet demo · blocks=12 · threads=1,2"),
        ({"preset": "sound", "team": "vision", "cache": "/x"}, "lenet sound"),
        ({"name": "after the update", "blocks": "12"}, "after the update"),
        (
            {"threads": "1", "epochs": "2", "blocks": "2", "batch_size": "8", "seed": "1"},
            "lenet demo · batch_size=8 · epochs=2 · blocks=2 · 2 more",
        ),
        ({"data": f"/{'d' * 60}/digits-2026"}, f"lenet demo · data=…{'d' * 28}/digits-2026"),
    ],
)
def test_name_says_what_differs_from_the_preset(options: dict[str, str], name: str) -> None:
    study = studies.load("lenet")
    settings = settings_.parse(study.settings, study.presets, options)
    prepared = PreparedCampaign("lenet", settings, Plan.of_study(study, settings))
    assert pipeline._name(prepared, "") == name


def test_long_name_is_refused(capsys: Capture) -> None:
    assert main(["lenet", f"--name={'n' * 101}", "--dry_run"]) == WRONG_CALL
    assert "at most 100" in capsys.readouterr().err


# ---- on a tracking store


def make_campaign(origin: str, name: str, day: int, factor: float = 1.0) -> Iterator[StoredRun]:
    """Yield a campaign's run and those of its cells."""
    tags = {"kind": "campaign", "outcome": "ok", "answer": "TensorFlow trains 1.20× slower"}
    params, began_ms = {"until": "settled", "blocks": "6", "max_blocks": "40"}, day * DAY_MS
    yield StoredRun(origin, name, "FINISHED", began_ms, began_ms + 1, params, {}, tags)
    for cell in runs(factors={"tensorflow": 1.2, "pytorch": factor}, campaign=f"run:{origin}"):
        yield replace(cell, start_ms=cell.start_ms + began_ms)


@pytest.fixture
def ids(store: Store, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Run ids of two campaigns, the second 1.5 times slower."""
    monkeypatch.setenv("COLUMNS", "300")
    store_runs(store, make_campaign("c1", "captioning demo · first night", 100))
    store_runs(store, make_campaign("c2", "captioning demo · second night", 101, factor=1.5))
    return [store.run_id(origin) or "" for origin in ("c1", "c2")]


def test_compare_shows_campaign_names(ids: list[str], place: Place, capsys: Capture) -> None:
    query = ["--factor=campaign", "--figures=false", "--filter=params.framework = 'pytorch'"]
    call = ["compare", *query, f"--output={place.folder}/out"]
    first, second = "captioning demo · first night", "captioning demo · second night"
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
    page = next(page for page in pages if "## Campaigns" in page)
    head, _, table = page.partition("## Campaigns")
    assert set(ids) <= set(RUN_ID.findall(table)), "which run each of them is"
    assert not RUN_ID.search(head)


def test_campaigns_lists_newest_first(ids: list[str], capsys: Capture) -> None:
    assert main(["campaigns"]) == DONE
    lines = [line for line in capsys.readouterr().out.splitlines() if RUN_ID.search(line)]
    assert [RUN_ID.findall(line)[-1] for line in lines[:2]] == ids[::-1]
    assert re.search(r"captioning demo · first night +ok +6 to 40 +TensorFlow trains", lines[1])
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


@pytest.mark.usefixtures("store")
def test_campaigns_of_unreachable_server_is_one_line(capsys: Capture) -> None:
    mlflow.set_tracking_uri("http://127.0.0.1:9")
    assert main(["campaigns"]) in (FAILED, WRONG_CALL)
    assert len(capsys.readouterr().err.strip().splitlines()) == 1


@pytest.mark.parametrize(
    "words", [["compare"], ["campaigns"], ["compare", f"--experiment={'a' * 32}"]]
)
def test_reading_commands_create_no_store(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.chdir(tmp_path)
    mlflow.set_tracking_uri(f"sqlite:///{tmp_path}/mlflow.db")
    assert main(words) == WRONG_CALL
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert f"{tmp_path}/mlflow.db" in line
    assert list(tmp_path.iterdir()) == []
