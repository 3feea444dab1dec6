"""Blocks that are measured once more under a rule that the campaign records before its first block."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from experiments.comparison.judgement import ComparisonSpec, judged
from experiments.comparison.runs.query import table
from experiments.comparison.statistics import outliers
from experiments.comparison.verdicts import busy
from experiments.comparison.verdicts.decision import MINIMUM_BLOCKS
from experiments.config.settings import CampaignSettings
from experiments.run.finished import from_journal
from experiments.run.previous import ODD_BLOCK, REASON, RULE
from tracking import journal
from tracking.errors import WrongCall
from tracking.records import RunOpened, Tags


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
    if not _is_due(_tags(folder, campaign)):
        return None
    try:
        findings = judged(spec, table(list(from_journal(folder)))).findings
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


def _tags(folder: Path, campaign: str) -> dict[str, str]:
    tags: dict[str, str] = {}
    for record in journal.read_all(folder):
        if isinstance(record, RunOpened) and record.run == campaign:
            tags |= record.tags
        elif isinstance(record, Tags) and record.run == campaign:
            tags |= record.values
    return tags


def _is_due(tags: Mapping[str, str]) -> bool:
    return RULE in tags and ODD_BLOCK not in tags
