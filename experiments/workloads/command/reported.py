"""Values that a script reports: in a file, as its last line, in its output, or in MLflow."""

from __future__ import annotations

import io
import itertools
import json
import os
import re
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from operator import itemgetter
from pathlib import Path
from typing import Any, BinaryIO

from experiments.contract import RunStore
from tracking import limits
from tracking.errors import ErrorCode, EvenhandError
from tracking.records import SCRIPT_OF, StoredRun
from tracking.redaction import Redaction

# Step and value, in the order in which they were reported.
History = list[tuple[int, float]]
STEP = "step"
# Longer lines are not searched: a part of one could end inside of a number.
MAX_LINE_CHARACTERS = 2**20
REDACTED_LINES = 100  # at a time
MAX_METRICS_BYTES, TAIL_BYTES = 2**26, 2**20
NESTED = "mlflow.parentRunId"
# Of MLflow's sampler, which a script may have switched on: the cell has the sensors' values.
SYSTEM = "system/"


def search(
    files: Sequence[BinaryIO], outcomes: Mapping[str, Mapping[str, Any]], redact: Redaction
) -> dict[str, tuple[int, float]]:
    """Return the match that counts of every outcome with a regular expression: number and value.

    Each line is searched for itself, in memory that does not depend on the length of the files.

    Args:
        files: Outputs of a script, in the order in which they count.
        outcomes: Declared outcomes with `better`, `regex` and `summary`.
        redact: Removes secrets before the search.
    """
    matches = dict[str, tuple[int, float]]()
    for name, outcome in outcomes.items():
        if outcome["regex"]:
            history = _matches(re.compile(outcome["regex"]), files, redact)
            if point := select(history, **_rule(outcome)):
                matches[name] = point
    return matches


def _matches(
    pattern: re.Pattern[str], files: Sequence[BinaryIO], redact: Redaction
) -> Iterator[tuple[int, float]]:
    """Yield the number and value of each match."""
    number = 0
    for line in itertools.chain.from_iterable(_lines(file, redact) for file in files):
        for text in pattern.findall(line):
            if (value := _number(text)) is not None:
                yield number, value
            number += 1


def _lines(file: BinaryIO, redact: Redaction) -> Iterator[str]:
    """Yield the redacted lines of a file, without those that are too long to be searched.

    A carriage return ends a line too, as in progress bars.
    """
    lines = _short_lines(file)
    while text := "".join(itertools.islice(lines, REDACTED_LINES)):
        yield from (f"{line}\n" for line in redact(text).removesuffix("\n").split("\n"))


def _short_lines(file: BinaryIO) -> Iterator[str]:
    file.seek(0)
    text = io.TextIOWrapper(file, encoding="utf-8", errors="replace")
    is_begin = True
    while part := text.readline(MAX_LINE_CHARACTERS):
        is_end = part.endswith("\n") or len(part) < MAX_LINE_CHARACTERS
        if is_begin and is_end:
            yield part
        is_begin = is_end
    text.detach()  # or it would close the file


def read_tail(file: BinaryIO, redact: Redaction) -> str:
    """Return the end of an output of any size, without secrets."""
    start = max(0, file.seek(0, os.SEEK_END) - 3 * TAIL_BYTES)
    file.seek(start)
    text = redact(file.read().decode(errors="replace"))
    # it may begin inside of a secret
    return text[redact.overlap * bool(start) :].encode()[-TAIL_BYTES:].decode(errors="ignore")


def read_metrics(path: Path, redact: Redaction) -> Iterator[str]:
    """Yield the lines of a script's file of metrics, without secrets; none if it is missing.

    Raises:
        EvenhandError: If it cannot be read, or is too large.
    """
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            if size > MAX_METRICS_BYTES:
                raise EvenhandError(
                    ErrorCode.TOO_LARGE,
                    f"EVENHAND_METRICS has {size:,} bytes; write at most {MAX_METRICS_BYTES:,}",
                )
            yield from _lines(file, redact)
    except FileNotFoundError:
        return
    except OSError as error:
        raise EvenhandError(
            ErrorCode.UNREADABLE,
            f"EVENHAND_METRICS cannot be read: {error.strerror}; write a file of JSON lines",
        ) from None


def collect(
    lines: Iterable[str],
    output: str,
    matches: Mapping[str, tuple[int, float]],
    outcomes: Mapping[str, Mapping[str, Any]],
) -> dict[str, float]:
    """Return the metrics of a script.

    Args:
        lines: Of JSON, from its file of metrics.
        output: The end of what it has printed.
        matches: See `search`.
        outcomes: Declared outcomes with `better`, `regex` and `summary`.
    """
    histories: dict[str, History] = {}
    last_line = output.rstrip().rpartition("\n")[2]
    _add_objects(histories, lines)
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


def collect_runs(
    cell: str, inputs: Mapping[str, Any], store: RunStore
) -> tuple[dict[str, float], dict[str, str]]:
    """Return the metrics of the script of a cell's run, and tags that name the script's runs.

    Of several runs with the same metric, the last that is not nested counts; with `summary =
    "best"` the best of all.
    """
    runs = sorted(
        store.tagged(SCRIPT_OF, cell),
        key=lambda run: (NESTED not in run.tags, run.start_ms),
    )
    if not runs:
        return {}, {}
    outcomes = inputs["outcomes"]
    histories: dict[str, History] = {}
    for run in runs:
        for name, last in run.metrics.items():
            if name.startswith(SYSTEM):
                continue
            history = _history(run, name, last, outcomes, store)
            is_best = outcomes.get(name, {}).get("summary") == "best"
            histories[name] = [*(histories.get(name, []) if is_best else []), *history]
    tags = {"script_runs": ",".join(run.run_id for run in reversed(runs))[:4_000]}
    return summarise_all(histories, outcomes), tags


def _history(
    run: StoredRun,
    name: str,
    last: float,
    outcomes: Mapping[str, Mapping[str, str]],
    store: RunStore,
) -> History:
    """Return all values where the outcome needs them; the last is known already."""
    if outcomes.get(name, {}).get("summary", "last") == "last":
        return [(0, last)]
    points = sorted(store.points(run.run_id, name), key=lambda point: (point.step, point.time_ms))
    return [(point.step, point.value) for point in points]
