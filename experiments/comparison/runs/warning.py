"""Warnings of a comparison: a code for programs, a text for the reader."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class WarningCode(StrEnum):
    """Reason of a warning that stands before the figures of a report."""

    RECORDED = "recorded"  # by the runs, in their tag `warnings`
    SEPARATE_CAMPAIGNS = "separate_campaigns"
    MIXED_ENVIRONMENTS = "mixed_environments"
    MIXED_COMMITS = "mixed_commits"
    EXTENDED = "extended"
    BACKGROUND_LOAD = "background_load"
    ODD_BLOCK = "odd_block"
    UNBALANCED_ORDER = "unbalanced_order"
    NOT_SIDE_BY_SIDE = "not_side_by_side"
    BUSY_MACHINE = "busy_machine"
    NOT_COMPILED = "not_compiled"
    COMPILED_OTHERWISE = "compiled_otherwise"
    LEARNING_DIFFERS = "learning_differs"
    ANSWERS_DIFFER = "answers_differ"
    PAIRED_BY = "paired_by"  # a setting or the time, instead of blocks
    LOAD_UNKNOWN = "load_unknown"
    MACHINE_UNKNOWN = "machine_unknown"
    IGNORED_SETTINGS = "ignored_settings"
    AUTOLOGGED_SETTINGS = "autologged_settings"


@dataclass(frozen=True)
class ComparisonWarning:
    """Warning on the runs of a comparison."""

    code: WarningCode
    text: str

    def __str__(self) -> str:
        return self.text
