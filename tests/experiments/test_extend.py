"""More blocks for a campaign that has ended: real processes of the toy framework, and journals with known runs."""

from __future__ import annotations

import json
import shlex
import sys
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from experiments import studies
from experiments.cli import arguments, entries
from experiments.cli.codes import WRONG_CALL
from experiments.cli.main import main
from experiments.comparison import compare
from experiments.comparison.judgement import ComparisonSpec, ReportOptions, answer
from experiments.comparison.report import rendering
from experiments.comparison.report.remarks import Advice
from experiments.comparison.runs import looks
from experiments.comparison.verdicts import extended
from experiments.config import settings as settings_
from experiments.config.console import Display
from experiments.config.settings import CampaignSettings
from experiments.run import pipeline, preparation, resume
from experiments.run import plan as plan_
from tests.conftest import Place
from tests.experiments.comparison.campaigns import LATENCY, frame, paired
from tests.experiments.comparison.test_power import OPEN
from tests.experiments.test_until_settled import TOYS, KnownCampaign, kept, noise
from tracking import journal, provenance
from tracking.errors import WrongCall
from tracking.journal import Journal
from tracking.records import RunClosed, RunOpened, Tags
from tracking.store import Store


def options_of(said: str) -> list[str]:
    """The words after the program of a command that was printed as `… more blocks: cd … && … extend …`."""
    line = next(line for line in said.splitlines() if " more block" in line and ": cd " in line)
    words = shlex.split(line.partition("&& ")[2])
    return words[words.index("extend") :]


def test_what_a_report_advises_can_be_done_and_the_next_report_says_so(place: Place) -> None:
    begun = place.run(**TOYS, blocks="2")
    assert begun.returncode == 3, begun.stdout + begun.stderr
    command = options_of(begun.stdout)
    (folder,) = place.journal.iterdir()
    assert command[:3] == ["extend", folder.name, "--blocks=4"], "a verdict needs six"
    report = (folder / "report" / "report.md").read_text()
    assert f"extend {folder.name} --blocks=4" in report
    assert f"extend {folder.name} --blocks=4" in (folder / "report" / "report.html").read_text()

    done = place.call(sys.executable, "-m", "experiments", *command)
    assert done.returncode in (0, 3), done.stdout + done.stderr
    assert journal.read_campaign(folder)["settings"]["blocks"] == 6
    cells = [run for run in Store(place.uri).runs("captioning") if run.tags["kind"] == "cell"]
    assert sorted(int(run.tags["block"]) for run in cells) == sorted([*range(1, 7)] * 2), (
        "none is run again"
    )
    assert {run.tags["block"] for run in cells if run.tags.get("looks") == "2"} == {
        "3",
        "4",
        "5",
        "6",
    }
    rows = json.loads((folder / "report" / "comparison.json").read_text())["rows"]
    assert max(row["n_blocks"] for row in rows) == 6
    assert "was extended" not in (folder / "report" / "report.html").read_text(), (
        "two blocks are no look: nothing was tested"
    )


def test_a_resumption_with_more_blocks_is_the_same() -> None:
    settings = asdict(replace(studies.load("captioning").settings(), blocks=6))
    assert resume.same_settings("captioning", settings, {"blocks": "12"}).blocks == 12
    assert resume.same_settings("captioning", settings, {"cache": "x"}).blocks == 6


def test_a_campaign_that_did_not_record_a_setting_is_not_extended(
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


def test_a_resumption_takes_the_journal_before_it_prepares_anything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def prepared(*_: object) -> None:
        raise WrongCall("prepared")

    monkeypatch.setattr(preparation, "prepare", prepared)
    running = Journal(campaign_folder(tmp_path))
    with pytest.raises(WrongCall, match="is still running in another process"):
        pipeline.restart("captioning", "last", {}, tmp_path, Display())
    running.close()
    for _ in range(2):  # a refused one lets go of it
        with pytest.raises(WrongCall, match="prepared"):
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


def test_blocks_are_counted_from_the_number_asked_for_or_from_those_that_ran(
    tmp_path: Path,
) -> None:
    campaign_folder(tmp_path, "fixed", blocks=6)
    assert dict(resume.request("fixed", 20, "none", tmp_path).given) == {
        "blocks": "26",
        "journal": str(tmp_path),
    }
    campaign_folder(tmp_path, "open", until="settled", max_blocks=18)
    found = resume.request("last", 20, "none", tmp_path)
    assert (found.run_id, found.last_block, found.given["max_blocks"]) == ("open", 22, "22")
    assert resume.request("open", 4, "2h", tmp_path).given["max_blocks"] == "18", (
        "the plan stays where it is enough"
    )
    assert resume.request("open", 4, "2h", tmp_path).given["budget"] == "2h"


def test_what_cannot_be_extended_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
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
def test_blocks_from_elsewhere_are_refused(tag: str, remedy: str, tmp_path: Path) -> None:
    folder = campaign_folder(tmp_path)
    asked = replace(CampaignSettings(), blocks=26)
    resume.require_extendable(asked, {"blocks": 6}, folder, "c")
    with (folder / journal.RECORDS).open("wb") as file:
        file.write(
            journal._line(RunOpened("c", 0, "e", "c", {"kind": "campaign", tag: "another"}, {}))
        )
    with pytest.raises(
        WrongCall,
        match=f"more blocks need the {tag} of the first, another; here it is .*: {remedy}, or start anew",
    ):
        resume.require_extendable(asked, {"blocks": 6}, folder, "c")
    resume.require_extendable(
        replace(asked, blocks=6), {"blocks": 6}, folder, "c"
    )  # finishing it is no extension
    with pytest.raises(WrongCall, match="blocks was 6 at the beginning and cannot become 4"):
        resume.require_extendable(replace(asked, blocks=4), {"blocks": 6}, folder, "c")


def test_the_first_word_may_be_the_run() -> None:
    extend = entries.load("extend")
    assert arguments.options(["last", "--blocks", "3"], extend) == {"run": "last", "blocks": "3"}
    assert arguments.options(["--blocks", "3"], extend) == {"blocks": "3"}
    with pytest.raises(WrongCall, match="'last' is not a setting"):
        arguments.options(["last"], entries.load("compare"))


# ---- what was seen before


def test_only_what_a_report_told_was_seen(tmp_path: Path) -> None:
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


def extended_frame(blocks: int, seen: str, campaign: str = "c1") -> pd.DataFrame:
    """A campaign whose blocks after the sixth know of these looks."""
    found = frame(
        blocks=blocks,
        params={"until": "fixed", "blocks": "6", "max_blocks": "48"},
        campaign=campaign,
    )
    found["tags.looks"] = [seen if block >= 6 else None for block in found["block"]]
    return found


def test_a_report_of_an_extended_campaign_says_what_is_promised_no_longer() -> None:
    found = extended_frame(20, "6")
    assert looks.of_extended(found) == {"c1": (6, 19)}
    (told,) = (line for line in compare(found).warnings if "extended" in line)
    assert "extended to 19 blocks after its report of 6 was written" in told
    assert "of about 9 % of such campaigns, not of 5 %" in told
    assert extended.warnings(frame(blocks=20)) == ()
    assert extended.warnings(extended_frame(20, "4")) == (), "four blocks test nothing"
    assert looks.of_runs(found).blocks == (), "its intervals are those of a fixed number"


def test_the_rate_is_that_of_repeated_looks() -> None:
    """Armitage, McPherson and Rowe 1969, table 2: a test at 5 % after each of n equal batches."""
    for count, percent in ((1, 5.0), (2, 8.3), (3, 10.7), (4, 12.6), (5, 14.2)):
        assert 100 * extended.error_rate([10 * at for at in range(1, count + 1)]) == pytest.approx(
            percent, abs=0.05
        )


def test_the_rate_is_that_of_simulated_campaigns() -> None:
    """t tests after 6 and after 24 blocks: 20,000 campaigns know a rate of 8 % to 0.4 %; t resembles z at so few blocks."""
    drawn = np.random.default_rng(1).standard_normal((20_000, 24))
    ever = np.zeros(len(drawn), dtype=bool)
    for blocks, critical in ((6, 2.5706), (24, 2.0687)):  # Student's t, 5 and 23 degrees of freedom
        part = drawn[:, :blocks]
        ever |= np.abs(part.mean(axis=1)) > critical * part.std(axis=1, ddof=1) / np.sqrt(blocks)
    assert extended.error_rate([6, 24]) == pytest.approx(ever.mean(), abs=0.012)


# ---- campaigns that go on until it is settled


def test_an_extension_looks_after_its_last_block(tmp_path: Path) -> None:
    campaign = KnownCampaign(tmp_path)
    look = campaign.looking(last_block=8)
    assert next(block for block in kept(tmp_path, noise(0.2)) if look(block, ran_now=True)) == 8
    assert campaign.looks == (6, 7, 8)
    assert look.stopped == "Stopped after 8 blocks, as many as were asked for: not settled."


def test_an_extension_of_a_settled_campaign_measures_what_was_asked_for(tmp_path: Path) -> None:
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


@pytest.mark.usefixtures("often")
def test_the_card_has_the_command_in_every_format(tmp_path: Path) -> None:
    advice = Advice("20 more blocks", ("extend", "f00d", "--blocks=20"), ("--journal=/a/folder",))
    asked: list[tuple[int, str]] = []
    spec = ComparisonSpec(baseline="a", outcomes=[LATENCY], primary=(LATENCY,))
    options = ReportOptions(
        "A study", figures=False, more_blocks=lambda *what: (asked.append(what), advice)[1]
    )
    found = answer(
        spec, paired([1.0] * 8, list(np.exp(OPEN)), LATENCY), tmp_path, options, lambda _: []
    )
    (one,) = found.comparison.findings
    assert one.plan is not None
    assert asked == [(one.plan.blocks, "")]
    for text in [
        *((tmp_path / name).read_text() for name in ("report.html", "card.md")),
        rendering.description_card(found.card),
    ]:
        assert "evenhand extend f00d --blocks=20" in text
        assert "/a/folder" not in text, "a folder of one machine, on a page for all"


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


def test_a_campaign_that_can_go_on_is_extended(tmp_path: Path) -> None:
    for given, seen in (({}, ()), ({"until": "settled", "max_blocks": 18}, (6, 9))):
        _, found = advised(tmp_path, 12, seen, **given)
        assert found is not None
        assert found.what == "12 more blocks"
        words = shlex.split(found.pasted.partition("&& ")[2])
        assert words[words.index("extend") :] == [
            "extend",
            "f00d",
            "--blocks=12",
            f"--journal={tmp_path}",
        ]
    assert advised(tmp_path, 20_000)[1] is None, "more than a campaign may have"


def test_a_campaign_that_has_spent_its_error_rate_is_begun_anew(tmp_path: Path) -> None:
    """The command that is printed makes the very same settings, but for the most blocks."""
    given = {
        "until": "settled",
        "max_blocks": 18,
        "epochs": 3,
        "primary": "val/accuracy",
        "margin": 0.05,
    }
    settings, found = advised(tmp_path, 12, (6, 9, 12, 18), **given)
    assert found is not None
    assert found.what.startswith(
        "A new campaign of at most 30 blocks, since the looks at this one have spent the error rate"
    )
    words = shlex.split(found.pasted.partition("&& ")[2])
    module = studies.load("lenet")
    options = arguments.options(words[words.index("lenet") + 1 :])
    assert settings_.parse(module.settings, module.presets, options) == replace(
        settings, max_blocks=30
    )
