"""The controls of a campaign: cells of the baseline that test the measurement itself, kept apart from what is compared."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pandas as pd

from experiments.comparison.runs import pairing
from experiments.comparison.runs.pairing import CONTROL
from experiments.comparison.verdicts.findings import Control
from experiments.comparison.verdicts.verdict import judge
from experiments.config.outcomes import Outcome

TREATMENT, DELAY = "tags.treatment", "params.inject_delay"


def judged(
    table: pd.DataFrame,
    *,
    outcomes: Iterable[str | Outcome] | None,
    margin: float,
    strata: Sequence[str] = (),
    allowed_to_differ: Sequence[str] = (),
) -> tuple[Control, ...]:
    """Every control against the cells that it repeats, in the campaigns that have it; each baseline has controls of its own."""
    if not {CONTROL, TREATMENT} <= set(table.columns):
        return ()
    names, wanted = pairing.control_names(table), None if outcomes is None else list(outcomes)
    found = []
    for (name, _), here in table[names != ""].groupby([CONTROL, TREATMENT], sort=True):
        same = (names == "") & table["framework"].isin(here["framework"]) & table["campaign"].isin(here["campaign"])
        if "settings_hash" in table.columns:  # of what is varied, a control has the first value alone
            same &= table["settings_hash"].isin(here["settings_hash"])
        for baseline, repeated in table[same].groupby(TREATMENT, sort=True):
            comparison = judge(
                pd.concat([repeated, here]),
                factor=TREATMENT,
                baseline=str(baseline),
                outcomes=wanted,
                margin=margin,
                strata=strata,
                allowed_to_differ=(*allowed_to_differ, "inject_delay"),
            )
            found.append(Control(str(name), comparison, _expected(str(name)), _injected(here)))
    return tuple(found)


def _injected(runs: pd.DataFrame) -> float | None:
    """The share by which all of a control's runs were slowed; None if by none, or where they do not say."""
    if DELAY not in runs.columns:
        return None
    shares = pd.to_numeric(runs[DELAY], errors="coerce").unique()
    return float(shares[0]) if len(shares) == 1 and shares[0] > 0 else None


def _expected(name: str) -> str:
    return "no difference: it is the same work twice" if name == "A/A" else f"every step and every request slower ({name})"
