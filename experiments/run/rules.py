"""Rules, fixed before the first block, of when to stop and which block to repeat."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path

import pandas as pd

from experiments.comparison.judgement import ComparisonSpec, judged
from experiments.comparison.report import wording
from experiments.comparison.runs.query import table
from experiments.comparison.statistics import outliers
from experiments.comparison.statistics.estimates import TRIMMED_PART
from experiments.comparison.verdicts import busy
from experiments.comparison.verdicts.decision import MINIMUM_BLOCKS, Decision
from experiments.comparison.verdicts.findings import Comparison, Finding
from experiments.config import durations
from experiments.config.settings import CampaignSettings
from experiments.run import journal_runs
from experiments.run.campaign import Campaign
from experiments.run.journal_runs import ODD_BLOCK, REASON, RULE
from experiments.run.scheduler import planned_looks
from tracking.errors import UsageError

MAX_TEXTS = 3  # outcomes of a look that its line names


@dataclass
class StoppingRule:
    """Rule that is called after every block of a launch and returns True after the last.

    Attributes:
        question: About the runs.
        stopped: Why no further block was run, as a sentence.
    """

    campaign: Campaign
    question: ComparisonSpec
    stopped: str = ""
    _blocks: int = 0
    _began: float = field(default_factory=time.monotonic)

    def __call__(self, block: int, *, ran_now: bool) -> bool:
        """Return True if a block was the last. ran_now: True if any cell ran in this launch."""
        settings = self.campaign.settings
        if not settings.until_settled:
            return False
        self._blocks += ran_now
        seconds = time.monotonic() - self._began
        block_seconds = seconds / max(1, self._blocks)
        is_planned = block in planned_looks(settings) or block in self.campaign.looks
        budget = durations.seconds("budget", settings.budget)
        is_over = ran_now and seconds + block_seconds > budget
        if is_planned or is_over:
            self._look(block, is_over=is_over)
        return bool(self.stopped)

    def _look(self, block: int, *, is_over: bool) -> None:
        say = self.campaign.recorder.display.say
        self.campaign.note_look(block)
        runs = table(list(journal_runs.stored(self.campaign.recorder.folder)))
        is_settled = False
        try:
            comparison = judged(self.question, runs[pd.to_numeric(runs["block"]) <= block])
        except UsageError as error:
            say(f"{wording.blocks(block)}: nothing to judge: {error}")
        else:
            findings = _to_settle(comparison)
            settled = sum(
                finding.judged or finding.decision is Decision.NOT_COMPARABLE
                for finding in findings
            )
            is_settled = bool(findings) and settled == len(findings)
            texts = wording.shortened(list(map(wording.at_a_look, findings)), MAX_TEXTS)
            say(f"{wording.blocks(block)}: {'; '.join(texts)}")
        self.stopped = self._why_stop(block, is_settled=is_settled, is_over=is_over)

    def _why_stop(self, block: int, *, is_settled: bool, is_over: bool) -> str:
        settings, state = self.campaign.settings, "settled" if is_settled else "not settled"
        if is_settled and block == self.campaign.looks[-1]:
            return f"Stopped after {block} blocks: settled."
        if block == settings.max_blocks:
            return f"Stopped after {block} blocks, the most allowed: {state}."
        if is_over:
            return f"Stopped after {block} blocks, the budget of {settings.budget}: {state}."
        return ""


def _to_settle(comparison: Comparison) -> list[Finding]:
    primary = [finding for finding in comparison.findings if finding.primary]
    return primary or list(comparison.findings)


def rule_tags(settings: CampaignSettings) -> dict[str, str]:
    """Return the record of the rule for a campaign that begins; empty if no block is repeated.

    From eight blocks on the estimate is trimmed, and an odd block hardly counts.
    """
    is_trimmed = settings.blocks >= TRIMMED_PART
    if is_trimmed or settings.until_settled or not settings.repeat_odd_block:
        return {}
    return {
        RULE: f"after the last block: one odd block, Grubbs {100 * outliers.LEVEL:g} %, "
        "is measured again once"
    }


@dataclass(frozen=True)
class OddBlock:
    """Single block of a campaign that differs from all others, with the reason."""

    number: int
    reason: str

    @property
    def tags(self) -> dict[str, str]:
        return {ODD_BLOCK: str(self.number), REASON: self.reason}


def find_odd_block(folder: Path, campaign: str, spec: ComparisonSpec) -> OddBlock | None:
    """Return the block that the campaign's rule measures again, once per campaign.

    None if the campaign recorded no rule, has repeated a block before, has not six or seven
    blocks, or if no block or more than one is odd. The rows are those of the primary outcomes
    that a busy machine can change; without primary outcomes all such.

    Args:
        folder: Of the campaign's journal.
        campaign: The run that has the campaign's tags.
        spec: The question about the runs.
    """
    tags = journal_runs.tags(folder, campaign)
    if RULE not in tags or ODD_BLOCK in tags:
        return None
    try:
        comparison = judged(spec, table(list(journal_runs.stored(folder))))
    except UsageError:  # nothing to compare
        return None
    rows = [
        finding
        for finding in _to_settle(comparison)
        if MINIMUM_BLOCKS <= len(finding.pairs) < TRIMMED_PART
        and busy.depends_on_load(finding.outcome)
        and finding.row.p is not None
    ]
    odd = outliers.odd_blocks([([pair.block for pair in row.pairs], row.shifts) for row in rows])
    if len(odd) != 1:
        return None
    ((block, (row_index, distance)),) = odd.items()
    label = rows[row_index].outcome.label
    return OddBlock(
        int(block), f"odd block: {label} lies {distance:.0f} SDs from that of the other blocks"
    )
