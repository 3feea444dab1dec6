"""Campaigns that go on until it is settled: real processes of the toy framework, and looks at journals with known runs."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from experiments import studies
from experiments.comparison.judgement import ComparisonSpec
from experiments.config import durations
from experiments.config.settings import CampaignSettings
from experiments.run import resume, scheduler
from experiments.run.campaign import Campaign
from experiments.run.journal_runs import looks as looks_so_far
from experiments.run.rules import StoppingRule
from tests.conftest import Place
from tests.experiments.comparison.campaigns import STEP
from tracking import journal
from tracking.errors import UsageError
from tracking.journal import Journal
from tracking.records import Metrics, Point, RunClosed, RunOpened, Tags
from tracking.store import Store

TOYS = {
    "frameworks": "toy,toy+twin",
    "data": "synthetic",
    "vocabulary": "60",
    "length": "8",
    "inference_requests": "2",
}
TOYS |= {"epochs": "1", "steps_per_epoch": "12", "bleu_images": "1", "others_limit_percent": "100"}
SETTLED = {"until": "settled", "blocks": "6", "primary": "train/examples_per_second"}


def test_resume_continues_after_budget_until_settled(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(
        "EVENHAND_TOY_COSTS", json.dumps({"toy": {"step": 0.003}, "toy+twin": {"step": 0.06}})
    )
    begun = place.run(**TOYS, **SETTLED, max_blocks="9", budget="1s")
    assert begun.returncode == 3, begun.stdout + begun.stderr
    assert "the budget of 1s is used, and it is not settled." in begun.stdout
    folder = next(place.journal.iterdir())
    early = json.loads((folder / "report" / "comparison.json").read_text())["looks"]
    assert early[-1]["blocks"] < 6

    done = place.resume(budget="none", max_blocks="12")
    assert done.returncode == 0, done.stdout + done.stderr
    # at the first look, unless whatever else the machine does hides a difference as large as this
    last = int(done.stdout.partition("Stopped after ")[2].partition(" ")[0])
    assert 6 <= last <= 12
    assert f"look after {last} of at most 12 blocks: 1 of 1 settled" in done.stdout
    assert f"Stopped after {last} blocks: settled." in done.stdout
    assert journal.read_campaign(folder)["settings"]["max_blocks"] == 12

    cells = [run for run in Store(place.uri).runs("captioning") if run.tags["kind"] == "cell"]
    campaign = Store(place.uri).run(folder.name)
    assert campaign is not None
    assert {run.tags["block"] for run in cells} == set(map(str, range(1, last + 1)))
    looks = [*(look["blocks"] for look in early), *range(6, last + 1)]
    assert campaign.tags["looks"] == ",".join(map(str, looks))
    assert " slower than toy" in campaign.tags["answer"]
    report = json.loads((folder / "report" / "comparison.json").read_text())
    assert [look["blocks"] for look in report["looks"]] == looks
    maxima = [9] * len(early) + [12] * (len(looks) - len(early))
    assert [look["max_blocks"] for look in report["looks"]] == maxima
    row = next(row for row in report["rows"] if row["family"] == "primary")
    assert row["verdict"] in ("slower", "lower")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (
            {"budget": "2h"},
            "budget=2h is for campaigns that stop when they know; add until=settled",
        ),
        (
            {"max_blocks": 40},
            "max_blocks=40 is for campaigns that stop when they know; add until=settled",
        ),
        (
            {"until": "settled", "blocks": 5},
            "until=settled: blocks=5, the first look, is too few; at least 6",
        ),
        (
            {"until": "settled", "blocks": 60},
            "max_blocks=48 is fewer than blocks=60, the first look; at least 60",
        ),
        (
            {"until": "settled", "budget": "2"},
            "budget=2 is not a duration; write 90s, 30m, 2h or none",
        ),
    ],
)
def test_contradicting_settings_are_refused(given: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=f"^{said}$"):
        scheduler.check_stopping(replace(CampaignSettings(), **given))


@pytest.mark.parametrize(("text", "seconds"), [("90s", 90), ("1.5h", 5_400), ("none", math.inf)])
def test_durations(text: str, seconds: float) -> None:
    assert durations.seconds("budget", text) == seconds


def kept(folder: Path, shifts: Sequence[float]) -> Iterator[int]:
    """Writes a campaign's journal block by block: of every block its number, once its runs are there."""
    records = Journal(folder)
    for block, shift in enumerate(shifts, start=1):
        for order, level in enumerate("ab" if block % 2 else "ba"):
            run = f"{level}{block}"
            tags = {
                "kind": "cell",
                "campaign": "run:c",
                "framework": level,
                "block": str(block),
                "order_in_block": str(order),
            }
            tags |= {"machine": "box", "settings_hash": "h"}
            looks = ",".join(map(str, looks_so_far(folder, "c")))
            params = {"until": "settled", "blocks": "6", "max_blocks": "18"}
            began = 60_000 * block + 1_000 * order
            records.append(
                RunOpened(
                    run, began, "e", run, {**tags, **({"looks": looks} if looks else {})}, params
                )
            )
            value = math.exp(0.02 * block + (shift if level == "b" else 0.0))
            records.append(Metrics(run, (Point(STEP, value, 0, began),)))
            records.append(RunClosed(run, began + 900, "ok"))
        yield block


class KnownCampaign:
    """What `StoppingRule` asks of a campaign, over a journal of its own; `said`: what it prints."""

    def __init__(self, folder: Path, **given: Any) -> None:
        self.settings = replace(CampaignSettings(), until="settled", max_blocks=18, **given)
        self.said: list[str] = []
        self.looks: tuple[int, ...] = ()
        display = SimpleNamespace(say=self.said.append)
        self.recorder = SimpleNamespace(
            folder=folder, run="c", display=display, tag=self.tag, keep_metrics=lambda *_: None
        )
        self.folder = folder

    def tag(self, **tags: str) -> None:
        with (self.folder / journal.RECORDS).open("ab") as file:
            file.write(journal._line(Tags("c", tags)))

    note_look = Campaign.note_look

    def looking(self, last_block: int = 0) -> StoppingRule:
        return StoppingRule(self, ComparisonSpec(baseline="a", outcomes=[STEP]), last_block)  # type: ignore[arg-type]


def stops(
    folder: Path, shifts: Sequence[float], **given: Any
) -> tuple[int, StoppingRule, KnownCampaign]:
    campaign = KnownCampaign(folder, **given)
    look = campaign.looking()
    for block in kept(folder, shifts):
        if look(block, ran_now=True):
            return block, look, campaign
    raise AssertionError("it never stops")


def noise(sd: float, mean: float = 0.0) -> list[float]:
    """Eighteen log-ratios; the first six, nine, … have this mean and much this SD."""
    drawn = np.random.default_rng(5).permuted(np.tile([-1.0, 0.0, 1.0], (6, 1)), axis=1).ravel()
    return [mean + sd * float(one) for one in drawn]


def test_open_campaign_continues_and_shows_progress(tmp_path: Path) -> None:
    block, look, campaign = stops(tmp_path, noise(0.035))
    assert 6 < block < 18
    assert look.stopped.endswith("settled.")
    assert campaign.looks == tuple(range(6, block + 1))
    assert looks_so_far(tmp_path, "c") == campaign.looks, "as the journal has it"
    assert "Settled at 0." in campaign.said[1]
    assert "more block" not in campaign.said[1]
    assert "equivalent" in campaign.said[-1]


def test_unsettled_campaign_ends_at_max_blocks(tmp_path: Path) -> None:
    block, look, campaign = stops(tmp_path, noise(0.2))
    assert (block, campaign.looks) == (18, tuple(range(6, 19)))
    assert look.stopped == "Stopped after 18 blocks, the most allowed: not settled."


def test_repeated_look_has_the_same_result(tmp_path: Path) -> None:
    """Looked at again after a resumption, when there are more runs: a look counts those up to its block."""
    shifts = noise(0.035)
    block, _, first = stops(tmp_path / "a", shifts)
    campaign = KnownCampaign(tmp_path / "b")
    for _ in kept(tmp_path / "b", shifts):
        pass
    look = campaign.looking()
    assert next(at for at in range(1, 19) if look(at, ran_now=False)) == block
    assert campaign.said == [
        line.replace(line.rpartition(", ")[2], "1 s") if "more block" in line else line
        for line in first.said
    ]


def test_spent_error_rate_is_not_spent_again(tmp_path: Path) -> None:
    _, _, campaign = stops(tmp_path, noise(0.2))
    before = {"max_blocks": 18}
    with pytest.raises(
        UsageError,
        match="max_blocks was 18, and the last look has spent all of the error rate; start anew with",
    ):
        resume.require_extendable(replace(campaign.settings, max_blocks=40), before, tmp_path, "c")
    with pytest.raises(UsageError, match="max_blocks=12: 18 blocks have been judged; choose more"):
        resume.require_extendable(
            replace(campaign.settings, max_blocks=12), {"max_blocks": 24}, tmp_path, "c"
        )
    resume.require_extendable(
        campaign.settings, before, tmp_path, "c"
    )  # the report may be written again


def test_resume_changes_only_length() -> None:
    begun = studies.load("captioning").settings()
    settings = asdict(replace(begun, until="settled", max_blocks=18, budget="1h"))
    resumed = resume.same_settings("captioning", settings, {"max_blocks": "40", "budget": "2h"})
    assert (resumed.max_blocks, resumed.budget, resumed.until) == (40, "2h", "settled")
    with pytest.raises(
        UsageError,
        match="resume: max_blocks was 48 at the beginning and cannot become 40; start anew",
    ):
        resume.same_settings("captioning", asdict(begun), {"max_blocks": "40"})
