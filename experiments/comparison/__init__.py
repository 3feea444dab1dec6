"""From finished runs to an honest verdict. `compare` is all that a notebook needs; statistics are imported by calling it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd

    from experiments.comparison.verdicts.findings import Comparison
    from experiments.config.outcomes import Outcome


def compare(
    table: pd.DataFrame,
    *,
    factor: str = "framework",
    baseline: str | None = None,
    outcomes: Iterable[str | Outcome] | None = None,
    primary: Sequence[str] = (),
    margin: float = 0.03,
    strata: Sequence[str] = (),
    allowed_to_differ: Sequence[str] = (),
    all_pairs: bool = False,
) -> Comparison:
    """Compares the levels of a factor over paired blocks and gives a verdict, with its reason, for every outcome.

    table: one row a run, as `query.table` makes it: run_id, status, framework, block, settings_hash, machine, params.*,
    tags.*, and metrics under their own names (seconds, bytes, examples per second).
    factor, strata: columns, or bare names of params or tags; strata are never pooled.
    baseline: the level that the others are told against, by default the first in order; all_pairs judges every pair.
    allowed_to_differ: settings that differ with the factor by its nature, as a harness comes with its framework.
    outcomes: metric names or `Outcome`s; default: all that the runs have.
    primary: one to three of them, declared before looking; they are a family of tests of their own, all others another.
    margin: the smallest ratio that matters; 0.03 is 3 %.
    Raises WrongCall where the call is at fault; data that cannot be compared give rows that say why.
    """
    from experiments.comparison.runs import pairing
    from experiments.comparison.verdicts import controls, memory_limits
    from experiments.comparison.verdicts.verdict import judge

    wanted = None if outcomes is None else list(outcomes)
    asked = pairing.without_controls(table)
    comparison = judge(
        asked,
        factor=factor,
        baseline=baseline,
        outcomes=wanted,
        primary=primary,
        margin=margin,
        strata=strata,
        allowed_to_differ=allowed_to_differ,
        all_pairs=all_pairs,
    )
    return replace(
        comparison,
        controls=controls.judged(table, outcomes=wanted, margin=margin, strata=strata, allowed_to_differ=allowed_to_differ),
        frontier=memory_limits.edges(asked, factor=factor, strata=strata),
    )


__all__ = ["compare"]
