"""More blocks for a campaign that has ended: real processes of the toy framework, and journals with known runs."""

from __future__ import annotations

import json
import shlex
import sys
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from experiments import studies
from experiments.cli.codes import WRONG_CALL
from experiments.cli.main import main
from experiments.comparison.verdicts import extended
from experiments.config import settings as settings_
from experiments.config.console import Display
from experiments.config.settings import CampaignSettings
from experiments.run import pipeline, preparation, resume
from experiments.run import plan as plan_
from tests.conftest import Place
from tests.experiments.test_until_settled import TOYS, KnownCampaign, kept, noise
from tracking import journal, provenance
from tracking.errors import UsageError
from tracking.journal import Journal
from tracking.records import RunClosed, RunOpened, Tags
from tracking.store import Store


def options_of(said: str) -> list[str]:
    """The words after the program of a command that was printed as `… more blocks: cd … && … extend …`."""
    line = next(line for line in said.splitlines() if " more block" in line and ": cd " in line)
    words = shlex.split(line.partition("&& ")[2])
    return words[words.index("extend") :]


def test_extend_runs_the_command_of_the_report(place: Place) -> None:
    begun = place.run(**TOYS, blocks="2")
    assert begun.returncode == 3, begun.stdout + begun.stderr
    command = options_of(begun.stdout)
    (folder,) = place.journal.iterdir()
    assert command[:3] == ["extend", folder.name, "--blocks=4"], "a verdict needs six"
    report = (folder / "report" / "report.md").read_text()
    assert f"extend {folder.name} --blocks=4" in report
    assert f"extend {folder.name} --blocks=4" in (folder / "report" / "report.html").read_text()

    command[2] = "--blocks=1"
    done = place.call(sys.executable, "-m", "experiments", *command)
    assert done.returncode == 3, done.stdout + done.stderr
    assert journal.read_campaign(folder)["settings"]["blocks"] == 3
    cells = [run for run in Store(place.uri).runs("captioning") if run.tags["kind"] == "cell"]
    assert sorted(run.tags["block"] for run in cells) == list("112233"), "none is run again"
    assert {run.tags["block"] for run in cells if run.tags.get("looks") == "2"} == {"3"}
    rows = json.loads((folder / "report" / "comparison.json").read_text())["rows"]
    assert max(row["n_blocks"] for row in rows) == 3
    assert "was extended" not in (folder / "report" / "report.html").read_text(), (
        "two blocks are no look: nothing was tested"
    )


def test_extend_refuses_journal_without_a_setting(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = campaign_folder(tmp_path)
    described = journal.read_campaign(folder)
    del described["settings"]["conv_algorithm"]
    journal.write_campaign(folder, described)
    assert main(["extend", "last", f"--journal={tmp_path}"]) == WRONG_CALL
    (line,) = capsys.readouterr().err.splitlines()
    assert "did not record conv_algorithm" in line


# ---- what cannot be


def test_restart_locks_journal_before_preparation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def prepared(*_: object) -> None:
        raise UsageError("prepared")

    monkeypatch.setattr(preparation, "prepare", prepared)
    running = Journal(campaign_folder(tmp_path))
    with pytest.raises(UsageError, match="is still running in another process"):
        pipeline.restart("captioning", "last", {}, tmp_path, Display())
    running.close()
    for _ in range(2):  # a refused one lets go of it
        with pytest.raises(UsageError, match="prepared"):
            pipeline.restart("captioning", "last", {}, tmp_path, Display())


def campaign_folder(
    root: Path, name: str = "f00d", study: str = "captioning", **given: object
) -> Path:
    """The journal of a campaign of two blocks, as one leaves it here and now; given: its settings."""
    records = Journal(root / name)
    kind = CampaignSettings if study in resume.OTHERS else studies.load(study).settings
    values = asdict(replace(kind(), **given))
    kept = {"study": study, "run": "c", "run_id": name, "experiment": "e", "settings": values}
    journal.write_campaign(records.folder, kept)
    tags = {"kind": "campaign", "machine": provenance.fingerprint(), "commit": provenance.commit()}
    records.append(RunOpened("c", 0, "e", "c", tags, {}))
    for block in (1, 2):
        cell = {"kind": "cell", "cell": f"block-{block:03d}-toy"}
        records.append(RunOpened(f"r{block}", block, "e", "cell", cell, {}))
        records.append(RunClosed(f"r{block}", block, "ok"))
    records.close()
    return records.folder


def test_extension_counts_planned_or_finished_blocks(
    tmp_path: Path,
) -> None:
    campaign_folder(tmp_path, "fixed", blocks=6)
    assert dict(resume.request("fixed", 20, "none", tmp_path).overrides) == {
        "blocks": "26",
        "journal": str(tmp_path),
    }
    campaign_folder(tmp_path, "open", until="settled", max_blocks=18)
    found = resume.request("last", 20, "none", tmp_path)
    assert (found.run_id, found.last_block, found.overrides["max_blocks"]) == ("open", 22, "22")
    assert resume.request("open", 4, "2h", tmp_path).overrides["max_blocks"] == "18", (
        "the plan stays where it is enough"
    )
    assert resume.request("open", 4, "2h", tmp_path).overrides["budget"] == "2h"


def test_extend_refusals_are_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def refused(*words: str) -> str:
        assert main(["extend", *words, f"--journal={tmp_path}"]) == WRONG_CALL
        (line,) = capsys.readouterr().err.splitlines()
        return line

    assert "run=last: no campaign has its journal in" in refused("last")
    folder = campaign_folder(tmp_path)
    campaign_folder(tmp_path, "beef", study="sweep")
    assert "run=cafe: no campaign cafe in" in refused("cafe")
    assert refused("cafe").endswith("; have f00d"), "a search is none"
    assert "blocks=0 is too small; at least 1" in refused("f00d", "--blocks=0")
    assert "makes 10,006 blocks; a campaign has at most 10,000" in refused("f00d", "--blocks=10000")
    assert "budget was none at the beginning and cannot become 2h" in refused("f00d", "--budget=2h")
    running = Journal(folder)
    assert "is still running in another process" in refused("f00d")
    running.close()


@pytest.mark.parametrize(
    ("tag", "remedy"),
    [
        ("machine", "measure them there"),
        ("environment", "install its packages and set its variables"),
        ("commit", "check it out"),
    ],
)
def test_extend_refuses_blocks_of_another_origin(tag: str, remedy: str, tmp_path: Path) -> None:
    folder = campaign_folder(tmp_path)
    asked = replace(CampaignSettings(), blocks=26)
    resume.require_extendable(asked, {"blocks": 6}, folder, "c")
    with (folder / journal.RECORDS).open("wb") as file:
        file.write(
            journal._line(RunOpened("c", 0, "e", "c", {"kind": "campaign", tag: "another"}, {}))
        )
    with pytest.raises(
        UsageError,
        match=f"more blocks need the {tag} of the first, another; here it is .*: {remedy}, or start anew",
    ):
        resume.require_extendable(asked, {"blocks": 6}, folder, "c")
    resume.require_extendable(
        replace(asked, blocks=6), {"blocks": 6}, folder, "c"
    )  # finishing it is no extension
    with pytest.raises(UsageError, match="blocks was 6 at the beginning and cannot become 4"):
        resume.require_extendable(replace(asked, blocks=4), {"blocks": 6}, folder, "c")


# ---- what was seen before


def test_reported_looks_need_a_report(tmp_path: Path) -> None:
    folder = campaign_folder(tmp_path)
    assert resume.reported_looks(folder, "c", 6) == (), "stopped before its report"

    def told(**values: str) -> None:
        with (folder / journal.RECORDS).open("ab") as file:
            file.write(journal._line(Tags("c", values)))

    told(verdict="b is slower")
    assert resume.reported_looks(folder, "c", 6) == (6,)
    told(looks="6")
    assert resume.reported_looks(folder, "c", 12) == (6,), "no report since"
    told(verdict="b is slower")
    assert resume.reported_looks(folder, "c", 12) == (6, 12)


def test_error_rate_equals_table_of_repeated_looks() -> None:
    """Armitage, McPherson and Rowe 1969, table 2: a test at 5 % after each of n equal batches."""
    for count, percent in ((1, 5.0), (2, 8.3), (3, 10.7), (4, 12.6), (5, 14.2)):
        assert 100 * extended.error_rate([10 * at for at in range(1, count + 1)]) == pytest.approx(
            percent, abs=0.05
        )


# ---- campaigns that go on until it is settled


def test_extension_looks_after_last_block(tmp_path: Path) -> None:
    campaign = KnownCampaign(tmp_path)
    look = campaign.looking(last_block=8)
    assert next(block for block in kept(tmp_path, noise(0.2)) if look(block, ran_now=True)) == 8
    assert campaign.looks == (6, 7, 8)
    assert look.stopped == "Stopped after 8 blocks, as many as were asked for: not settled."


def test_extension_of_settled_campaign_runs_requested_blocks(tmp_path: Path) -> None:
    """It was settled after six blocks; and an extension stops early where it was not settled before."""
    shifts = noise(0.02, mean=0.3)
    campaign = KnownCampaign(tmp_path / "settled")
    look = campaign.looking(last_block=11)
    assert (
        next(
            block for block in kept(tmp_path / "settled", shifts) if look(block, ran_now=block > 6)
        )
        == 11
    )
    assert look.stopped == "Stopped after 11 blocks, as many as were asked for: settled."
    resumed = campaign.looking()
    assert next(block for block in range(1, 19) if resumed(block, ran_now=False)) == 11, (
        "not where it was settled at first"
    )
    assert resumed.stopped == "Stopped after 11 blocks: settled."
    campaign = KnownCampaign(tmp_path / "open")
    look = campaign.looking(last_block=11)
    assert (
        next(block for block in kept(tmp_path / "open", shifts) if look(block, ran_now=block > 3))
        == 6
    )
    assert look.stopped == "Stopped after 6 blocks: settled."


# ---- the command that is printed


def advised(tmp_path: Path, blocks: int, looks: tuple[int, ...] = (), **given: object):
    """What is advised to a campaign of the study `lenet` with these settings, after these looks."""
    module = studies.load("lenet")
    settings = settings_.parse(
        module.settings, module.presets, {name: str(value) for name, value in given.items()}
    )
    campaign = SimpleNamespace(
        settings=settings,
        prepared=SimpleNamespace(
            study="lenet", module=module, plan=plan_.of_study(module, settings)
        ),
        looks=looks,
        recorder=SimpleNamespace(folder=tmp_path / "f00d", run_id="f00d"),
    )
    return settings, resume.advice(campaign, blocks)  # type: ignore[arg-type]


def test_advice_extends_campaign(tmp_path: Path) -> None:
    for given, seen in (({}, ()), ({"until": "settled", "max_blocks": 18}, (6, 9))):
        _, found = advised(tmp_path, 12, seen, **given)
        assert found is not None
        assert found.what == "12 more blocks"
        words = shlex.split(str(found).partition("&& ")[2])
        assert words[words.index("extend") :] == [
            "extend",
            "f00d",
            "--blocks=12",
            f"--journal={tmp_path}",
        ]
    assert advised(tmp_path, 20_000)[1] is None, "more than a campaign may have"
