"""When a campaign stops, and which block is measured once more: by rules that are fixed before its first block."""

from __future__ import annotations

import math
import re
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pandas as pd

from experiments.comparison.judgement import ComparisonSpec, judged
from experiments.comparison.report import wording
from experiments.comparison.runs.query import table
from experiments.comparison.statistics import outliers
from experiments.comparison.verdicts import busy
from experiments.comparison.verdicts.decision import MINIMUM_BLOCKS, Decision
from experiments.comparison.verdicts.findings import Comparison, Finding
from experiments.config import durations
from experiments.config.settings import CampaignSettings
from experiments.run import journal_runs
from experiments.run.campaign import Campaign
from experiments.run.journal_runs import ODD_BLOCK, REASON, RULE
from experiments.run.scheduler import planned_looks
from tracking.errors import WrongCall

# MLflow takes letters, digits and _-. :/ in the name of a metric.
NOT_IN_A_KEY = re.compile(r"[^\w\-. :/]", re.ASCII)


@dataclass
class StoppingRule:
    """Called after every block of a launch: whether it was the last.

    question: what is asked of the runs. last_block: of an extension, which goes up to it though it was
    settled before; 0: as far as the settings ask. stopped: why no further block was run, as a sentence.
    """

    campaign: Campaign
    question: ComparisonSpec
    last_block: int = 0
    stopped: str = ""
    _settled_before: bool = False
    _seconds: list[float] = field(default_factory=list)
    _began: float = field(default_factory=time.monotonic)
    _last: float = field(default_factory=time.monotonic)

    def __call__(self, block: int, *, ran_now: bool) -> bool:
        """Return whether a block was the last. ran_now: whether any of its cells ran in this launch."""
        settings = self.campaign.settings
        if not settings.until_settled:
            return False
        now = time.monotonic()
        self._seconds += [now - self._last] if ran_now else []
        self._last = now
        planned = block in planned_looks(settings)
        over = ran_now and now - self._began + self._a_block > durations.seconds(
            "budget", settings.budget
        )
        if planned or over or block == self.last_block or block in self.campaign.looks:
            self._look(block, ran_now=ran_now, over=over)
        return bool(self.stopped)

    @property
    def _a_block(self) -> float:
        """How long a block takes, in the middle of those of this launch."""
        return statistics.median(self._seconds) if self._seconds else 0.0

    def _look(self, block: int, *, ran_now: bool, over: bool) -> None:
        settings, say = self.campaign.settings, self.campaign.recorder.display.say
        first_time = block not in self.campaign.looks
        self.campaign.note_look(block)
        runs = table(list(journal_runs.stored(self.campaign.recorder.folder)))
        try:
            found = judged(self.question, runs[pd.to_numeric(runs["block"]) <= block])
        except WrongCall as error:
            say(f"look after {block} blocks: nothing to judge: {error}")
            asked, left = [], []
        else:
            asked = _asked(found)
            left = [
                one
                for one in asked
                if not one.judged and one.decision is not Decision.NOT_COMPARABLE
            ]
            say(
                f"look after {block} of at most {settings.max_blocks} blocks: {len(asked) - len(left)} of {len(asked)} settled"
            )
            for one in asked:
                say(f"  {wording.at_a_look(one, self._a_block)}")
            if first_time:
                self._keep(block, asked)
        self._settled_before |= bool(asked and not left and self.last_block and not ran_now)
        self.stopped = self._why_stop(block, settled=bool(asked) and not left, over=over)

    def _keep(self, block: int, asked: Sequence[Finding]) -> None:
        """The intervals of this look as metrics of the campaign's run, by block: the fan of the report, while it grows."""
        values = {
            key: value for finding in asked for key, value in metrics_of_look(finding).items()
        }
        self.campaign.recorder.keep_metrics(values, block)

    def _why_stop(self, block: int, *, settled: bool, over: bool) -> str:
        """A sentence; empty where more blocks are to come."""
        settings, found = self.campaign.settings, "settled" if settled else "not settled"
        if (
            settled and not self._settled_before and block == self.campaign.looks[-1]
        ):  # not where it went on from before
            return f"Stopped after {block} blocks: settled."
        if block == settings.max_blocks:
            return f"Stopped after {block} blocks, the most allowed: {found}."
        if block == self.last_block:
            return f"Stopped after {block} blocks, as many as were asked for: {found}."
        if over:
            return f"Stopped after {block} blocks: the budget of {settings.budget} is used, and it is {found}."
        return ""


def metrics_of_look(finding: Finding) -> dict[str, float]:
    """Names that MLflow takes -> the estimate and the bounds of its interval, as far as there are any."""
    row = finding.row
    parts = [row.metric, *filter(None, [row.stratum]), row.b]
    place = "/".join(NOT_IN_A_KEY.sub(".", part) for part in parts)
    found = dict(
        zip(
            ("estimate", "low", "high"),
            wording.logged(row.estimate, row.ci_low, row.ci_high),
            strict=True,
        )
    )
    return {
        f"look/{place}/{name}": value
        for name, value in found.items()
        if value is not None and math.isfinite(value)
    }


def _asked(comparison: Comparison) -> list[Finding]:
    """The findings that are to be settled: of the primary outcomes, or, where none were declared, all."""
    return [one for one in comparison.findings if one.primary] or list(comparison.findings)


def rule_tags(settings: CampaignSettings) -> dict[str, str]:
    """Return the record of the rule, for a campaign that begins; empty where no block is to be repeated."""
    if settings.until_settled or not settings.repeat_odd_block:
        return {}
    return {
        RULE: f"after the last block: one odd block, Grubbs {100 * outliers.LEVEL:g} %, is measured again once"
    }


@dataclass(frozen=True)
class OddBlock:
    """The only block of a campaign that is unlike the others, and how."""

    number: int
    reason: str

    @property
    def tags(self) -> dict[str, str]:
        return {ODD_BLOCK: str(self.number), REASON: self.reason}


def find_odd_block(folder: Path, campaign: str, spec: ComparisonSpec) -> OddBlock | None:
    """Return the block that the campaign's rule asks to be measured again, once in its life.

    None where the campaign recorded no rule, has repeated a block before, has fewer than six
    blocks, or where no block or more than one is odd. The rows are those of the primary outcomes
    that a busy machine can change; without primary outcomes all such.

    Args:
        folder: Of the campaign's journal.
        campaign: The run that has the campaign's tags.
        spec: What the campaign is asked.
    """
    tags = journal_runs.tags(folder, campaign)
    if RULE not in tags or ODD_BLOCK in tags:
        return None
    try:
        findings = judged(spec, table(list(journal_runs.stored(folder)))).findings
    except WrongCall:  # nothing to compare: no block is unlike others
        return None
    primary = [one for one in findings if one.primary] or findings
    rows = [
        one
        for one in primary
        if len(one.pairs) >= MINIMUM_BLOCKS and busy.depends(one.outcome) and one.row.p is not None
    ]
    odd = outliers.odd_blocks([([pair.block for pair in one.pairs], one.shifts) for one in rows])
    if len(odd) != 1:
        return None
    ((block, (row, distance)),) = odd.items()
    label = rows[row].outcome.label
    return OddBlock(
        int(block), f"odd block: {label} lies {distance:.0f} SDs from that of the other blocks"
    )
