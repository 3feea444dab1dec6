"""More blocks for a campaign that has ended: real processes, and journals with known runs."""

from __future__ import annotations

import shlex
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from experiments import studies
from experiments.cli.codes import NO_VERDICT, WRONG_CALL
from experiments.cli.main import main
from experiments.comparison.verdicts import extended
from experiments.config.console import Display
from experiments.config.settings import CampaignSettings
from experiments.run import pipeline, preparation, resume
from tests.conftest import Place
from tests.experiments import small_campaigns
from tests.experiments.conftest import CallHere
from tests.experiments.test_until_settled import TOYS
from tracking import journal, provenance
from tracking.errors import ErrorCode, UsageError
from tracking.journal import Journal
from tracking.records import RunClosed, RunOpened, Tags
from tracking.store import Store


def test_command_of_the_report_measures_more_blocks(place: Place, call_here: CallHere) -> None:
    begun = call_here(*place.command("captioning", **TOYS, blocks="2")[3:])
    assert begun.returncode == NO_VERDICT, begun.stderr
    (folder,) = place.journal.iterdir()
    words = f"captioning --resume={folder.name} --blocks=6"  # a verdict needs six
    (line,) = [line for line in begun.stdout.splitlines() if words in line]
    for name in ("report.md", "report.html"):
        assert words in (folder / "report" / name).read_text()

    command = line[line.index(words) :].replace("--blocks=6", "--blocks=3")
    assert call_here(*shlex.split(command)).returncode == NO_VERDICT
    assert journal.read_campaign(folder)["settings"]["blocks"] == 3
    cells = [run for run in Store(place.uri).runs("captioning") if run.tags["kind"] == "cell"]
    assert sorted(run.tags["block"] for run in cells) == list("112233"), "none is run again"
    assert {run.tags["block"] for run in cells if run.tags.get("looks") == "2"} == {"3"}
    rows = small_campaigns.comparison(place)["rows"].values()
    assert max(row["n_blocks"] for row in rows) == 3


# ---- refusals


def write_journal(root: Path, name: str = "f00d", study: str = "captioning") -> Path:
    """Write the journal of a campaign of two blocks that ran on this machine."""
    records = Journal(root / name)
    values = asdict(studies.load(study).settings())
    description = {"study": study, "run": "c", "run_id": name, "settings": values}
    journal.write_campaign(records.folder, {**description, "experiment": "e"})
    tags = {"kind": "campaign", "machine": provenance.fingerprint(), "commit": provenance.commit()}
    records.append(RunOpened("c", 0, "e", "c", tags, {}))
    for block in (1, 2):
        cell = {"kind": "cell", "cell": f"block-{block:03d}-toy"}
        records.append(RunOpened(f"r{block}", block, "e", "cell", cell, {}))
        records.append(RunClosed(f"r{block}", block, "ok"))
    records.close()
    return records.folder


def test_restart_locks_journal_before_preparation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise UsageError(ErrorCode.NO_RUNS, "from the preparation")

    settings = CampaignSettings(resume="last", journal=str(tmp_path))

    def restart() -> UsageError:
        with pytest.raises(UsageError) as error:
            pipeline.reopen("captioning", settings, Display(), {})
        return error.value

    monkeypatch.setattr(preparation, "prepare", refuse)
    running = Journal(write_journal(tmp_path))
    assert "f00d" in str(restart()), "another process runs it"
    running.close()
    for _ in range(2):  # a refused one closes the journal
        assert restart().code is ErrorCode.NO_RUNS


@pytest.mark.parametrize(
    ("words", "changes", "values"),
    [
        (["cafe"], {}, ["cafe", "have f00d"]),  # a campaign of another study is not listed
        (["f00d", "--blocks=0"], {}, ["blocks=0"]),
        (["f00d", "--blocks=10001"], {}, ["10001", "10000"]),
        (["f00d", "--budget=2h"], {}, ["budget", "none", "2h"]),
        (["f00d", "--blocks=12"], {"settings": {"until": "settled"}}, ["blocks", "max_blocks"]),
        (["f00d"], {"settings": {"conv_algorithm": None}}, ["conv_algorithm"]),  # of before
        (["f00d"], {"settings": ["blocks"]}, ["resume"]),
        (["f00d"], {"settings": {"blocks": "six"}}, ["resume"]),
        (["f00d"], {"settings": {"frameworks": 5}}, ["resume"]),
        (["f00d"], {"run_id": 7}, ["resume"]),
        (["f00d"], {"study": ["captioning"]}, ["resume"]),
        (["f00d"], {"own_models": []}, ["resume"]),
        (["f00d"], {"plan": []}, ["resume"]),
    ],
)
def test_refusals_are_one_line(
    words: list[str],
    changes: dict[str, Any],
    values: list[str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder = write_journal(tmp_path)
    write_journal(tmp_path, "beef", study="lenet")
    description = journal.read_campaign(folder)
    if isinstance(changes.get("settings"), dict):
        merged = description["settings"] | changes["settings"]
        changes = {"settings": {name: value for name, value in merged.items() if value is not None}}
    journal.write_campaign(folder, description | changes)
    call = ["captioning", f"--resume={words[0]}", *words[1:], f"--journal={tmp_path}"]
    assert main(call) == WRONG_CALL
    (line,) = capsys.readouterr().err.splitlines()
    assert all(value in line for value in values), line


@pytest.mark.parametrize(
    ("tag", "blocks", "code"),
    [
        ("machine", 26, ErrorCode.CHANGED),
        ("environment", 26, ErrorCode.CHANGED),
        ("commit", 26, ErrorCode.CHANGED),
        ("commit", 4, ErrorCode.CONFLICT),
    ],
)
def test_more_blocks_need_the_origin_of_the_first(
    tag: str, blocks: int, code: ErrorCode, tmp_path: Path
) -> None:
    folder = write_journal(tmp_path)

    def extend(blocks: int) -> None:
        settings = replace(CampaignSettings(), blocks=blocks)
        resume.require_extendable("captioning", settings, {"blocks": 6}, folder, "c")

    extend(26)
    records = Journal(folder)
    records.append(Tags("c", {tag: "another"}))
    records.close()
    extend(6)
    with pytest.raises(UsageError) as error:
        extend(blocks)
    assert error.value.code is code
    assert ("another" in str(error.value)) == (code is ErrorCode.CHANGED)


# ---- looks


def test_reported_looks_need_a_report(tmp_path: Path) -> None:
    folder = write_journal(tmp_path)
    assert resume.reported_looks(folder, "c", 6) == (), "stopped before its report"
    steps = [
        ({"verdict": "b is slower"}, 6, (6,)),
        ({"looks": "6"}, 12, (6,)),  # no report since
        ({"verdict": "b is slower"}, 12, (6, 12)),
    ]
    records = Journal(folder)
    for tags, blocks, looks in steps:
        records.append(Tags("c", tags))
        assert resume.reported_looks(folder, "c", blocks) == looks
    records.close()


def test_error_rate_equals_table_of_repeated_looks() -> None:
    """Compare with Armitage, McPherson and Rowe 1969, table 2: a test at 5 % after n batches."""
    for count, percent in ((1, 5.0), (2, 8.3), (3, 10.7), (4, 12.6), (5, 14.2)):
        rate = extended.error_rate([10 * batch for batch in range(1, count + 1)])
        assert 100 * rate == pytest.approx(percent, abs=0.05)


@pytest.mark.parametrize(
    ("settings", "looks", "length"),
    [
        ({}, (), ["--blocks=18"]),
        ({"until": "settled", "max_blocks": 18}, (6, 9), ["--max_blocks=21"]),
        (
            {"until": "settled", "max_blocks": 48, "budget": "2h"},
            (6, 9),
            ["--max_blocks=48", "--budget=none"],
        ),
    ],
)
def test_advice_counts_planned_or_judged_blocks(
    tmp_path: Path, settings: dict[str, Any], looks: tuple[int, ...], length: list[str]
) -> None:
    recorder = SimpleNamespace(folder=tmp_path / "f00d", run_id="f00d")
    campaign: Any = SimpleNamespace(
        settings=replace(CampaignSettings(), **settings),
        looks=looks,
        recorder=recorder,
        prepared=SimpleNamespace(study="captioning"),
    )
    advice = resume.advice(campaign, 12)
    assert advice is not None
    words = ["captioning", "--resume=f00d", *length, f"--journal={tmp_path}"]
    assert shlex.split(str(advice))[-len(words) :] == words
    assert resume.advice(campaign, 20_000) is None, "more than a campaign may have"
    campaign.looks = (*looks, settings.get("max_blocks", 0))
    assert (resume.advice(campaign, 12) is None) == bool(settings), "after its last look"
