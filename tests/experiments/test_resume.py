"""More blocks for a campaign that has ended: real processes, and journals with known runs."""

from __future__ import annotations

import json
import shlex
import sys
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from experiments import studies
from experiments.cli.codes import WRONG_CALL
from experiments.cli.main import main
from experiments.comparison.verdicts import extended
from experiments.config.console import Display
from experiments.config.settings import CampaignSettings
from experiments.run import pipeline, preparation, resume
from tests.conftest import Place
from tests.experiments.test_until_settled import TOYS
from tracking import journal, provenance
from tracking.errors import ErrorCode, UsageError
from tracking.journal import Journal
from tracking.records import RunClosed, RunOpened, Tags
from tracking.store import Store


def test_command_of_the_report_measures_more_blocks(place: Place) -> None:
    begun = place.run(**TOYS, blocks="2")
    assert begun.returncode == 3, begun.stdout + begun.stderr
    (folder,) = place.journal.iterdir()
    words = ["captioning", f"--resume={folder.name}", "--blocks=6"]  # a verdict needs six
    (line,) = [line for line in begun.stdout.splitlines() if " ".join(words) in line]
    for name in ("report.md", "report.html"):
        assert " ".join(words) in (folder / "report" / name).read_text()

    command = line[line.index(" ".join(words)) :].replace("--blocks=6", "--blocks=3")
    done = place.call(sys.executable, "-m", "experiments", *shlex.split(command))
    assert done.returncode == 3, done.stdout + done.stderr
    assert journal.read_campaign(folder)["settings"]["blocks"] == 3
    cells = [run for run in Store(place.uri).runs("captioning") if run.tags["kind"] == "cell"]
    assert sorted(run.tags["block"] for run in cells) == list("112233"), "none is run again"
    assert {run.tags["block"] for run in cells if run.tags.get("looks") == "2"} == {"3"}
    report = json.loads((folder / "report" / "comparison.json").read_text())
    assert max(row["n_blocks"] for row in report["rows"]) == 3


# ---- refusals


def write_journal(
    root: Path, name: str = "f00d", study: str = "captioning", **settings: object
) -> Path:
    """Write the journal of a campaign of two blocks that ran on this machine."""
    records = Journal(root / name)
    kind = studies.load(study).settings
    values = asdict(replace(kind(), **settings))
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


def append(folder: Path, record: Tags) -> None:
    records = Journal(folder)
    records.append(record)
    records.close()


def test_restart_locks_journal_before_preparation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise UsageError(ErrorCode.NO_RUNS, "from the preparation")

    settings = CampaignSettings(resume="last", journal=str(tmp_path))

    def restart() -> ErrorCode:
        with pytest.raises(UsageError) as error:
            pipeline.reopen("captioning", settings, Display(), {})
        return error.value.code

    monkeypatch.setattr(preparation, "prepare", refuse)
    running = Journal(write_journal(tmp_path))
    assert restart() is not ErrorCode.NO_RUNS
    running.close()
    for _ in range(2):  # a refused one closes the journal
        assert restart() is ErrorCode.NO_RUNS


@pytest.mark.parametrize(
    ("words", "values"),
    [
        (["cafe"], ["cafe", "have f00d"]),  # a campaign of another study is not listed
        (["f00d", "--blocks=0"], ["blocks=0"]),
        (["f00d", "--blocks=10001"], ["10001", "10000"]),
        (["f00d", "--budget=2h"], ["budget", "none", "2h"]),
        (["open", "--blocks=12"], ["blocks", "max_blocks"]),
        (["locked"], ["locked"]),
        (["older"], ["conv_algorithm"]),
    ],
)
def test_refusals_are_one_line(
    words: list[str], values: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name = words[0] if words[0] != "cafe" else "f00d"
    settings = {"until": "settled"} if name == "open" else {}
    folder = write_journal(tmp_path, name, **settings)
    write_journal(tmp_path, "beef", study="lenet")
    if name == "older":
        description = journal.read_campaign(folder)
        del description["settings"]["conv_algorithm"]
        journal.write_campaign(folder, description)
    running = Journal(folder) if name == "locked" else None
    call = ["captioning", f"--resume={words[0]}", *words[1:], f"--journal={tmp_path}"]
    assert main(call) == WRONG_CALL
    (line,) = capsys.readouterr().err.splitlines()
    assert all(value in line for value in values), line
    if running:
        running.close()


@pytest.mark.parametrize(
    "changes",
    [
        {"settings": ["blocks"]},
        {"settings": {"blocks": "six"}},
        {"settings": {"frameworks": 5}},
        {"run_id": 7},
        {"study": ["captioning"]},
        {"own_models": []},
        {"plan": []},
    ],
)
def test_description_of_other_types_is_one_line(
    changes: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write_journal(tmp_path)
    description = journal.read_campaign(folder)
    if isinstance(changes.get("settings"), dict):
        changes = {"settings": description["settings"] | changes["settings"]}
    journal.write_campaign(folder, description | changes)
    assert main(["captioning", "--resume=f00d", f"--journal={tmp_path}"]) == WRONG_CALL
    (line,) = capsys.readouterr().err.splitlines()
    assert "resume" in line


@pytest.mark.parametrize("tag", ["machine", "environment", "commit"])
def test_more_blocks_need_the_origin_of_the_first(tag: str, tmp_path: Path) -> None:
    folder = write_journal(tmp_path)
    settings = replace(CampaignSettings(), blocks=26)
    resume.require_extendable("captioning", settings, {"blocks": 6}, folder, "c")
    append(folder, Tags("c", {tag: "another"}))
    with pytest.raises(UsageError, match="another") as error:
        resume.require_extendable("captioning", settings, {"blocks": 6}, folder, "c")
    assert error.value.code is ErrorCode.CHANGED
    resume.require_extendable("captioning", replace(settings, blocks=6), {"blocks": 6}, folder, "c")
    with pytest.raises(UsageError) as error:
        resume.require_extendable(
            "captioning", replace(settings, blocks=4), {"blocks": 6}, folder, "c"
        )
    assert error.value.code is ErrorCode.CONFLICT


# ---- looks


def test_reported_looks_need_a_report(tmp_path: Path) -> None:
    folder = write_journal(tmp_path)
    assert resume.reported_looks(folder, "c", 6) == (), "stopped before its report"
    steps = [
        ({"verdict": "b is slower"}, 6, (6,)),
        ({"looks": "6"}, 12, (6,)),  # no report since
        ({"verdict": "b is slower"}, 12, (6, 12)),
    ]
    for tags, blocks, looks in steps:
        append(folder, Tags("c", tags))
        assert resume.reported_looks(folder, "c", blocks) == looks


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
