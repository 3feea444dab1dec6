"""Campaigns that run until they are settled: real processes, and journals with known runs."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from experiments import studies
from experiments.cli.codes import DONE, NO_VERDICT
from experiments.comparison.judgement import ComparisonSpec
from experiments.config import durations
from experiments.config.settings import CampaignSettings
from experiments.run import journal_runs, resume, scheduler
from experiments.run.campaign import Campaign
from experiments.run.rules import StoppingRule
from tests.conftest import Place
from tests.experiments import small_campaigns
from tests.experiments.comparison.campaigns import STEP
from tests.experiments.conftest import CallHere
from tracking import journal
from tracking.errors import ErrorCode, UsageError
from tracking.journal import Journal
from tracking.records import Metrics, Point, RunClosed, RunOpened, Tags
from tracking.store import Store

TOYS = {
    "frameworks": "toy,toy+twin",
    "data": "synthetic",
    "vocabulary": "60",
    "length": "8",
    "inference_requests": "2",
    "epochs": "1",
    "steps_per_epoch": "12",
    "bleu_images": "1",
    "others_limit_percent": "100",
}
SETTLED = {"until": "settled", "blocks": "6", "primary": "train/examples_per_second"}


def test_resume_continues_after_budget_until_settled(place: Place, call_here: CallHere) -> None:
    settings = {**TOYS, **SETTLED, "max_blocks": "9", "budget": "0.5s"}
    begun = call_here(*place.command("captioning", **settings)[3:])
    assert begun.returncode == NO_VERDICT
    (folder,) = place.journal.iterdir()
    early = small_campaigns.comparison(place)["looks"]
    assert early[-1]["blocks"] < 6

    words = ["--resume=last", "--budget=none", "--max_blocks=12", f"--journal={place.journal}"]
    assert call_here("captioning", *words, f"--cache={place.cache}").returncode == DONE
    assert journal.read_campaign(folder)["settings"]["max_blocks"] == 12
    runs = Store(place.uri).runs("captioning")
    assert {int(run.tags["block"]) for run in runs if run.tags["kind"] == "cell"} == {*range(1, 7)}
    looks = [*(look["blocks"] for look in early), 6]
    campaign = Store(place.uri).run(folder.name)
    assert campaign is not None
    assert campaign.tags["looks"] == ",".join(map(str, looks))
    report = small_campaigns.comparison(place)
    assert [(look["blocks"], look["max_blocks"]) for look in report["looks"]] == [
        (block, 9 if number < len(early) else 12) for number, block in enumerate(looks)
    ]
    assert report["rows"][SETTLED["primary"]]["verdict"] in ("slower", "lower")


@pytest.mark.parametrize(
    ("settings", "code", "values"),
    [
        ({"budget": "2h"}, ErrorCode.CONFLICT, "budget=2h needs until=settled"),
        ({"max_blocks": 40}, ErrorCode.CONFLICT, "max_blocks=40 needs until=settled"),
        ({"until": "settled", "blocks": 5}, ErrorCode.INVALID_VALUE, "blocks=5 "),
        ({"until": "settled", "blocks": 60}, ErrorCode.INVALID_VALUE, "max_blocks=48"),
    ],
)
def test_contradicting_settings_are_refused(
    settings: dict[str, Any], code: ErrorCode, values: str
) -> None:
    with pytest.raises(UsageError, match=values) as error:
        scheduler.check_stopping(replace(CampaignSettings(), **settings))
    assert error.value.code is code


@pytest.mark.parametrize(("text", "seconds"), [("90s", 90), ("1.5h", 5_400), ("none", math.inf)])
def test_durations(text: str, seconds: float) -> None:
    assert durations.seconds("budget", text) == seconds
    with pytest.raises(UsageError, match="budget=2 "):
        durations.seconds("budget", "2")


def write_cell(
    journal: Journal, block: int, level: str, seconds: float, began_ms: int, **tags: str
) -> None:
    """Write a finished cell of the campaign `c`."""
    run = f"{level}{block}-{began_ms}"
    tags = {
        "kind": "cell",
        "campaign": "run:c",
        "framework": level,
        "block": str(block),
        "machine": "box",
        "settings_hash": "h",
        "cell": f"block-{block:03d}-{level}",
        **tags,
    }
    params = {"until": "settled", "blocks": "6", "max_blocks": "18"}
    journal.append(RunOpened(run, began_ms, "e", run, tags, params))
    journal.append(Metrics(run, (Point(STEP, seconds, 0, began_ms),)))
    journal.append(RunClosed(run, began_ms + 900, "ok"))


def write_blocks(journal: Journal, shifts: Sequence[float]) -> Iterator[int]:
    """Write a campaign's journal; yield the number of each block when its runs are complete."""
    for block, shift in enumerate(shifts, start=1):
        looks = journal_runs.looks(journal.folder, "c")
        tags = {"looks": ",".join(map(str, looks))} if looks else {}
        for order, level in enumerate("ab" if block % 2 else "ba"):
            value = math.exp(0.02 * block + (shift if level == "b" else 0.0))
            began_ms = 60_000 * block + 1_000 * order
            write_cell(journal, block, level, value, began_ms, order_in_block=str(order), **tags)
        yield block


class KnownCampaign:
    """Parts of a campaign that `StoppingRule` uses, over a journal; `lines`: what it prints."""

    def __init__(self, folder: Path) -> None:
        self.settings = replace(CampaignSettings(), until="settled", max_blocks=18)
        self.lines: list[str] = []
        self.looks: tuple[int, ...] = ()
        self.journal = Journal(folder)
        display = SimpleNamespace(say=self.lines.append)
        self.recorder = SimpleNamespace(folder=folder, run="c", display=display, tag=self.tag)

    def tag(self, **tags: str) -> None:
        self.journal.append(Tags("c", tags))

    note_look = Campaign.note_look

    def stopping_rule(self) -> StoppingRule:
        return StoppingRule(self, ComparisonSpec(baseline="a", outcomes=[STEP]))  # type: ignore[arg-type]


def noise(sd: float, mean: float = 0.0) -> list[float]:
    """Return eighteen log-ratios; the first six, nine, … have about this mean and SD."""
    rng, signs = np.random.default_rng(5), np.tile([-1.0, 0.0, 1.0], (6, 1))
    return [mean + sd * float(sign) for sign in rng.permuted(signs, axis=1).ravel()]


def stop(folder: Path, shifts: Sequence[float]) -> tuple[int, StoppingRule, KnownCampaign]:
    """Run a campaign of known runs to the block after which it stops."""
    campaign = KnownCampaign(folder)
    rule = campaign.stopping_rule()
    written = write_blocks(campaign.journal, shifts)
    block = next(block for block in written if rule(block, ran_now=True))
    return block, rule, campaign


@pytest.mark.parametrize(("sd", "is_settled"), [(0.035, True), (0.2, False)])
def test_open_campaign_continues_until_settled_or_at_its_end(
    tmp_path: Path, sd: float, *, is_settled: bool
) -> None:
    block, rule, campaign = stop(tmp_path, noise(sd))
    assert 6 < block < 18 if is_settled else block == 18
    assert rule.stopped.endswith(f"{block} blocks: settled." if is_settled else "not settled.")
    assert campaign.looks == tuple(range(6, block + 1))
    assert journal_runs.looks(tmp_path, "c") == campaign.looks
    assert [line.partition(" ")[0] for line in campaign.lines] == list(map(str, campaign.looks))


def test_repeated_look_has_the_same_result(tmp_path: Path) -> None:
    """Look again after a resumption, when there are more runs: a look counts those before it."""
    shifts = noise(0.035)
    block, _, first = stop(tmp_path / "a", shifts)
    campaign = KnownCampaign(tmp_path / "b")
    assert list(write_blocks(campaign.journal, shifts)) == list(range(1, 19))
    rule = campaign.stopping_rule()
    assert next(number for number in range(1, 19) if rule(number, ran_now=False)) == block
    assert campaign.looks == first.looks


def test_spent_error_rate_is_not_spent_again(tmp_path: Path) -> None:
    _, _, campaign = stop(tmp_path, noise(0.2))
    for now, before in ((40, 18), (12, 24)):
        settings = replace(campaign.settings, max_blocks=now)
        with pytest.raises(UsageError, match=f"18 blocks .* {now};") as error:
            resume.require_extendable("captioning", settings, {"max_blocks": before}, tmp_path, "c")
        assert error.value.code is ErrorCode.CONFLICT
    # the report may be written again
    resume.require_extendable("captioning", campaign.settings, {"max_blocks": 18}, tmp_path, "c")


def test_resume_changes_only_length() -> None:
    fixed = studies.load("captioning").settings()
    settings = asdict(replace(fixed, until="settled", max_blocks=18, budget="1h"))
    resumed = resume.same_settings("captioning", settings, {"max_blocks": "40", "budget": "2h"})
    assert (resumed.max_blocks, resumed.budget, resumed.until) == (40, "2h", "settled")
    with pytest.raises(UsageError, match=r"max_blocks was 48 .* 40;") as error:
        resume.same_settings("captioning", asdict(fixed), {"max_blocks": "40"})
    assert error.value.code is ErrorCode.CHANGED
