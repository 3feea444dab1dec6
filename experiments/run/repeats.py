"""Blocks that are measured once more under a rule that the campaign records before its first block."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from experiments.comparison.judgement import ComparisonSpec, judged
from experiments.comparison.runs.query import table
from experiments.comparison.statistics import outliers
from experiments.comparison.verdicts import busy
from experiments.comparison.verdicts.decision import MINIMUM_BLOCKS
from experiments.config.settings import CampaignSettings
from experiments.run import journal_runs
from experiments.run.journal_runs import ODD_BLOCK, REASON, RULE
from tracking.errors import WrongCall


def rule_tags(settings: CampaignSettings) -> dict[str, str]:
    """Return the record of the rule, for a campaign that begins; empty where no block is to be repeated."""
    if settings.until_settled or not settings.repeat_odd_block:
        return {}
    return {RULE: f"after the last block: one odd block, Grubbs {100 * outliers.LEVEL:g} %, is measured again once"}


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
    rows = [one for one in primary if len(one.pairs) >= MINIMUM_BLOCKS and busy.depends(one.outcome) and one.row.p is not None]
    odd = outliers.odd_blocks([([pair.block for pair in one.pairs], one.shifts) for one in rows])
    if len(odd) != 1:
        return None
    ((block, (row, distance)),) = odd.items()
    label = rows[row].outcome.label
    return OddBlock(int(block), f"odd block: {label} lies {distance:.0f} SDs from that of the other blocks")
