"""Comparison of finished runs; `compare` imports the statistics when it is called."""

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
    pair_by: str = "",
    ignore: Sequence[str] = (),
) -> Result:
    """Compare the levels of a factor over paired blocks.

    Args:
        runs: what `mlflow.search_runs()` returns; or run ids, of campaigns or of their cells, on
            MLflow's tracking server; or a table, one row a run: run_id, status, framework, block,
            settings_hash, machine, params.*, tags.*, and metrics under their own names (seconds,
            bytes, examples per second), as `query.table` makes it.
        factor: column, or bare name of a param or tag.
        baseline: the level that the others are judged against, by default the first in order.
        outcomes: metric names or `Outcome`s; default: those that the runs have.
        primary: one to three outcomes, declared before looking; a separate family of tests.
        margin: the smallest ratio that matters; 0.03 is 3 %.
        strata: columns, or bare names of params or tags, whose values are never pooled.
        allowed_to_differ: settings that differ with the factor by its nature, as a harness comes
            with its framework.
        all_pairs: judge every pair of levels.
        pair_by: what pairs runs that have no block: a param or tag, such as a seed, or `time`.
        ignore: patterns of params that may differ, such as `opt_*`; the result lists them.

    Returns:
        The verdict of every outcome with its reason; runs that cannot be compared give rows with
        the reason.

    Raises:
        UsageError: if the call is at fault or no run can be used.
    """
    from experiments.comparison import notebook
    from experiments.comparison.judgement import ComparisonSpec

    request = (
        None if outcomes is None else [outcomes] if isinstance(outcomes, str) else list(outcomes)
    )
    spec = ComparisonSpec(
        factor=factor,
        baseline=baseline,
        outcomes=request,
        primary=[primary] if isinstance(primary, str) else primary,
        margin=margin,
        strata=[strata] if isinstance(strata, str) else strata,
        allowed_to_differ=allowed_to_differ,
        all_pairs=all_pairs,
        pair_by=pair_by,
        ignore=[ignore] if isinstance(ignore, str) else ignore,
    )
    return notebook.result(spec, runs)


__all__ = ["compare"]
