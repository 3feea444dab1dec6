"""Values that a script reports without MLflow: in a file, as its last line, or in its output."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from tracking import limits

# Step and value, in the order in which they were reported.
History = list[tuple[int, float]]
STEP = "step"


def collect(
    metrics_file: Path, output: str, outcomes: Mapping[str, Mapping[str, Any]]
) -> dict[str, float]:
    """Return the metrics of a script.

    Args:
        metrics_file: JSON lines that it has written; may be missing.
        output: What it has printed.
        outcomes: Declared outcomes with `better`, `regex` and `summary`.
    """
    histories: dict[str, History] = {}
    last_line = output.rstrip().rpartition("\n")[2]
    with suppress(OSError):
        _add_objects(histories, metrics_file.read_text(errors="replace").splitlines())
    _add_objects(histories, [last_line])
    for name, outcome in outcomes.items():
        if outcome["regex"]:
            matches = re.findall(outcome["regex"], output)
            for number, text in enumerate(matches):
                with suppress(ValueError):
                    histories.setdefault(name, []).append((number, float(text)))
    return summarise_all(histories, outcomes)


def summarise_all(
    histories: Mapping[str, History], outcomes: Mapping[str, Mapping[str, Any]]
) -> dict[str, float]:
    """Return one value of each history, by the rule of its outcome, else the last."""
    values = {
        name: summarise(history, **_rule(outcomes.get(name, {})))
        for name, history in histories.items()
    }
    return {name: value for name, value in values.items() if value is not None}


def _rule(outcome: Mapping[str, Any]) -> dict[str, str]:
    return {name: outcome[name] for name in ("summary", "better") if name in outcome}


def summarise(history: History, summary: str = "last", better: str = "lower") -> float | None:
    """Return the value that counts: the last, the best, or that of `step:N`; None if missing."""
    if summary == "best":
        return (min if better == "lower" else max)(value for _, value in history)
    if summary == "last":
        return history[-1][1]
    step = int(summary.removeprefix("step:"))
    return next((value for at, value in reversed(history) if at == step), None)


def _add_objects(histories: dict[str, History], lines: Iterable[str]) -> None:
    """Add the numbers of JSON objects; lines of another kind are no metrics."""
    for number, line in enumerate(lines):
        values = None
        with suppress(ValueError, RecursionError):
            values = json.loads(line)
        if not isinstance(values, dict):
            continue
        step = values.pop(STEP, number)
        for name, value in values.items():
            is_number = isinstance(value, int | float) and not isinstance(value, bool)
            if is_number and not limits.key_trouble(name):
                at = step if isinstance(step, int) else number
                histories.setdefault(name, []).append((at, float(value)))


def tail(lines: Sequence[str], count: int) -> str:
    """Return the last lines with a text, in one line."""
    return " | ".join([line.strip() for line in lines if line.strip()][-count:])
