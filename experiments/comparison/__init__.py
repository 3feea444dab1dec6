"""From finished runs to an honest verdict. `compare` is all that a notebook needs; statistics are imported by calling it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from experiments.comparison.notebook import Result
    from experiments.metrics import Outcome


def compare(
    runs: Any,
    *,
    factor: str = "framework",
    baseline: str | None = None,
    outcomes: Iterable[str | Outcome] | None = None,
    primary: Sequence[str] = (),
    margin: float = 0.03,
    strata: Sequence[str] = (),
    allowed_to_differ: Sequence[str] = (),
    all_pairs: bool = False,
) -> Result:
    """Compare the levels of a factor over paired blocks; every outcome gets a verdict with its reason.

    runs: what `mlflow.search_runs()` returns; or run ids, of campaigns or of their cells, on MLflow's tracking server; or a
    table, one row a run: run_id, status, framework, block, settings_hash, machine, params.*, tags.*, and metrics under their
    own names (seconds, bytes, examples per second), as `query.table` makes it.
    factor, strata: columns, or bare names of params or tags; strata are never pooled.
    baseline: the level that the others are judged against, by default the first in order; all_pairs judges every pair.
    allowed_to_differ: settings that differ with the factor by its nature, as a harness comes with its framework.
    outcomes: metric names or `Outcome`s; default: all that the runs have.
    primary: one to three of them, declared before looking; they are a family of tests of their own, all others another.
    margin: the smallest ratio that matters; 0.03 is 3 %.
    Raises WrongCall where the call is at fault or no run can be used; runs that cannot be compared give rows that say why.
    """
    from experiments.comparison import notebook
    from experiments.comparison.judgement import ComparisonSpec

    wanted = (
        None if outcomes is None else [outcomes] if isinstance(outcomes, str) else list(outcomes)
    )
    spec = ComparisonSpec(
        factor=factor,
        baseline=baseline,
        outcomes=wanted,
        primary=[primary] if isinstance(primary, str) else primary,
        margin=margin,
        strata=[strata] if isinstance(strata, str) else strata,
        allowed_to_differ=allowed_to_differ,
        all_pairs=all_pairs,
    )
    return notebook.result(spec, runs)


__all__ = ["compare"]
