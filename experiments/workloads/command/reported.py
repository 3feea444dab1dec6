"""Values that a script reports without MLflow: in a file, as its last line, or in its output."""

from __future__ import annotations

import json
import re
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from operator import itemgetter
from pathlib import Path
from typing import Any

from experiments.config.race_file import masked
from tracking import limits

# Step and value, in the order in which they were reported.
History = list[tuple[int, float]]
STEP = "step"
# Longer lines are not searched: a part of one could end inside of a number.
MAX_LINE_CHARACTERS = 2**20


def search(
    files: Sequence[Path], outcomes: Mapping[str, Mapping[str, Any]], secrets: Sequence[str]
) -> dict[str, tuple[int, float]]:
    """Return the match that counts of every outcome with a regular expression: number and value.

    Each line is searched for itself, in memory that does not depend on the length of the files.

    Args:
        files: Outputs of a script, in the order in which they count.
        outcomes: Declared outcomes with `better`, `regex` and `summary`.
        secrets: Texts that are masked before the search.
    """
    matches = dict[str, tuple[int, float]]()
    for name, outcome in outcomes.items():
        if outcome["regex"]:
            history = _matches(re.compile(outcome["regex"]), files, secrets)
            if point := select(history, **_rule(outcome)):
                matches[name] = point
    return matches


def _matches(
    pattern: re.Pattern[str], files: Sequence[Path], secrets: Sequence[str]
) -> Iterator[tuple[int, float]]:
    """Yield the number and value of each match."""
    number = 0
    for path in files:
        for line in _lines(path):
            for text in pattern.findall(masked(line, secrets)):
                if (value := _number(text)) is not None:
                    yield number, value
                number += 1


def _lines(path: Path) -> Iterator[str]:
    """Yield the lines of a file, which also a carriage return ends, as in progress bars."""
    with path.open(encoding="utf-8", errors="replace") as file:
        is_whole = True
        while part := file.readline(MAX_LINE_CHARACTERS):
            is_end = part.endswith("\n") or len(part) < MAX_LINE_CHARACTERS
            if is_whole and is_end:
                yield part
            is_whole = is_end


def collect(
    metrics_file: Path,
    output: str,
    matches: Mapping[str, tuple[int, float]],
    outcomes: Mapping[str, Mapping[str, Any]],
) -> dict[str, float]:
    """Return the metrics of a script.

    Args:
        metrics_file: JSON lines that it has written; may be missing.
        output: The end of what it has printed.
        matches: See `search`.
        outcomes: Declared outcomes with `better`, `regex` and `summary`.
    """
    histories: dict[str, History] = {}
    last_line = output.rstrip().rpartition("\n")[2]
    with suppress(OSError):
        _add_objects(histories, metrics_file.read_text(errors="replace").splitlines())
    _add_objects(histories, [last_line])
    for name, point in matches.items():
        histories.setdefault(name, []).append(point)
    return summarise_all(histories, outcomes)


def summarise_all(
    histories: Mapping[str, History], outcomes: Mapping[str, Mapping[str, Any]]
) -> dict[str, float]:
    """Return one value of each history, by the rule of its outcome, else the last."""
    points = {
        name: select(history, **_rule(outcomes.get(name, {})))
        for name, history in histories.items()
    }
    return {name: point[1] for name, point in points.items() if point}


def _rule(outcome: Mapping[str, Any]) -> dict[str, str]:
    return {name: outcome[name] for name in ("summary", "better") if name in outcome}


def select(
    history: Iterable[tuple[int, float]], summary: str = "last", better: str = "lower"
) -> tuple[int, float] | None:
    """Return the point that counts: the last, the best, or that of `step:N`; None if missing."""
    if summary == "best":
        best = min if better == "lower" else max
        return best(history, key=itemgetter(1), default=None)
    if summary != "last":
        step = int(summary.removeprefix("step:"))
        history = (point for point in history if point[0] == step)
    last = deque(history, maxlen=1)
    return last[0] if last else None


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
            reported = None if isinstance(value, str | bool) else _number(value)
            if reported is not None and not limits.key_trouble(name):
                is_step = isinstance(step, int) and abs(step) <= limits.LARGEST
                histories.setdefault(name, []).append((step if is_step else number, reported))


def _number(value: Any) -> float | None:
    """Return a value as a number; None if it is none, or an integer beyond a double's range."""
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        return None


def tail(lines: Sequence[str], count: int) -> str:
    """Return the last lines with a text, in one line."""
    return " | ".join([line.strip() for line in lines if line.strip()][-count:])
