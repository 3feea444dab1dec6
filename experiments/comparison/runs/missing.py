"""Refusal of runs without a level or a block, with the options or tags that add them."""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd

from experiments.comparison.runs import pairing
from experiments.comparison.runs.expected_differences import HARDWARE, SOFTWARE
from tracking.errors import ErrorCode, UsageError

MAX_LEVELS = 10
# MLflow's tags of a run that may tell levels apart.
OF_MLFLOW = ("tags.mlflow.source.name", "tags.mlflow.source.git.commit")
SAME_CLASS = "tags.estimator_class"  # as estimator_name, but longer


def check(table: pd.DataFrame, factor: str, pair_by: str) -> None:
    """Check that some cell has a level, and some a block.

    Raises:
        UsageError: If not, with the tags and options that would add them.
    """
    frame = pairing.without_controls(table)
    frame = frame[pairing.are_cells(frame)]
    has_level, has_block = _has(frame, factor), bool(pair_by) or _has(frame, "block")
    if frame.empty or (has_level and has_block):
        return
    names = [] if has_level else [factor]
    names += [] if has_block else ["block"]
    column = factor if has_level else next(_factors(frame), "")
    options = []
    if not has_level and column:
        values = ", ".join(sorted(set(pairing.as_text(frame[column])))[:3])
        options.append(f"--factor {pairing.plain_name(column)} ({values})")
    if not has_block:
        options.append(f"--pair_by {_pairing(frame, column)}")
    call = f"call with {' and '.join(options)}, or " if options else ""
    example = ", ".join(f'"{name}": "{1 if name == "block" else "a"}"' for name in names)
    raise UsageError(
        ErrorCode.MISSING_VALUE,
        f"no run has the tag {' or '.join(names)}; {call}"
        f"tag them: mlflow.MlflowClient().set_tag(RUN_ID, '{names[-1]}', '1'); "
        f"new runs: export MLFLOW_RUN_CONTEXT='{{{example}}}'",
    )


def _has(frame: pd.DataFrame, name: str) -> bool:
    if not {name, f"params.{name}"} & set(frame.columns) and name in ("framework", "block"):
        return False
    return bool((pairing.as_text(frame[pairing.column_of(frame, name)]) != "").any())


def _factors(frame: pd.DataFrame) -> Iterator[str]:
    """Yield the columns that may be the factor, the likeliest first: tags, then few values."""
    candidates = []
    for column in map(str, frame.columns):
        is_tag = column.startswith("tags.") and not column.startswith("tags.mlflow.")
        if not (is_tag or column in OF_MLFLOW or column.startswith("params.")):
            continue
        texts = pairing.as_text(frame[column])
        counts = texts.value_counts()
        if 2 <= len(counts) <= MAX_LEVELS and counts.min() >= 2 and (texts != "").all():
            is_condition = column.startswith((*SOFTWARE, *HARDWARE))
            rank = (
                is_condition,
                not is_tag,
                column not in OF_MLFLOW,
                column == SAME_CLASS,
                len(counts),
            )
            candidates.append((rank, column))
    yield from (column for _, column in sorted(candidates))


def _pairing(frame: pd.DataFrame, factor: str) -> str:
    """Return a setting of which each level has every value once, or `time`."""
    if not factor:
        return "time"
    levels = pairing.as_text(frame[pairing.column_of(frame, factor)])
    for column in map(str, frame.columns):
        if column.startswith("params.") and column != factor:
            values = pairing.as_text(frame[column])
            shared = levels.groupby(values).nunique() == levels.nunique()
            is_once = not pd.DataFrame({"level": levels, "value": values}).duplicated().any()
            if is_once and len(shared) > 1 and shared.all():
                return pairing.plain_name(column)
    return "time"
