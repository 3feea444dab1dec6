"""The controls of a campaign: cells of the baseline that test the measurement itself, kept apart from what is compared."""

from __future__ import annotations

from collections.abc import Iterable

import pandas as pd

from experiments.comparison.findings import Control
from experiments.comparison.outcomes import Outcome
from experiments.comparison.verdict import judge

COLUMN, TREATMENT = "tags.control", "tags.treatment"


def without(table: pd.DataFrame) -> pd.DataFrame:
    """The runs that a verdict is asked of."""
    return table[_names(table) == ""] if COLUMN in table.columns else table


def judged(table: pd.DataFrame, *, outcomes: Iterable[str | Outcome] | None, margin: float) -> tuple[Control, ...]:
    """Every kind of control against the cells that it repeats, in the campaigns that have it."""
    if COLUMN not in table.columns:
        return ()
    names, wanted = _names(table), None if outcomes is None else list(outcomes)
    found = []
    for name in sorted(set(names) - {""}):
        here = table[names == name]
        same = (names == "") & table["framework"].isin(here["framework"]) & table["campaign"].isin(here["campaign"])
        repeated = sorted(set(table[same][TREATMENT]))
        if repeated:
            both = pd.concat([table[same], here])
            comparison = judge(
                both, factor=TREATMENT, baseline=repeated[0], outcomes=wanted, margin=margin, spans=("inject_delay",)
            )
            found.append(Control(name, comparison, _expected(name)))
    return tuple(found)


def _names(table: pd.DataFrame) -> pd.Series:
    return table[COLUMN].fillna("").astype(str)


def _expected(name: str) -> str:
    return "no difference: it is the same work twice" if name == "A/A" else f"every step and every request slower ({name})"
