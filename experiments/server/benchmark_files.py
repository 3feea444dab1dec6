"""Runs of result files that other benchmark programs wrote."""

from __future__ import annotations

import datetime
import hashlib
import json
import math
import os
import statistics
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from experiments.config import shell
from experiments.config.console import Display
from experiments.config.settings import read_file
from tracking import accounts, clock, limits, plain
from tracking.errors import ErrorCode, EvenhandError, UsageError
from tracking.records import (
    BETWEEN_WARNINGS,
    Metrics,
    Point,
    Record,
    RunClosed,
    RunOpened,
    RunOutcome,
)
from tracking.store import Store

MAX_BYTES = 64 * 2**20
BENCHMARK = "benchmark"
UNITS = {"second": "value_seconds", "byte": "value_bytes", "integer": "value"}
NO_TIMES = "{} records no times; the order of its runs is that of the files in the call"
UNPAIRED = (
    "! These runs have no blocks. A verdict on times needs the levels in turn, six times or more: "
    "one file each time, all of them in one import, in the order in which they were measured."
)
SUMMARISED = "the value is the median over the processes of a file, which are no blocks"
EXPECTED = {
    "pyperf": "write it with pyperf -o FILE",
    "hyperfine": "write it with hyperfine --export-json FILE",
    "json": 'write [{"level": "base", "block": "1", "metrics": {"wall_seconds": 1.5}}, …]',
}


@dataclass(frozen=True)
class Process:
    """Values of one process of a file.

    Attributes:
        place: Of its level among those of the file, from 0.
        values: Of each metric.
        start_ms: None if the file does not have it.
    """

    level: str
    place: int
    values: Mapping[str, Sequence[float]]
    params: Mapping[str, str] = field(default_factory=dict)
    start_ms: int | None = None
    end_ms: int | None = None
    block: str = ""
    machine: str = ""
    ok: bool = True

    @property
    def medians(self) -> dict[str, float]:
        return {key: statistics.median(values) for key, values in self.values.items()}


# Yields the processes of a file's content; gets the level that the call names, and the file's name.
Reader = Callable[[Any, str, str], Iterator[Process]]


def import_files(format: str, files: Sequence[str], experiment: str, display: Display) -> str:
    """Send the runs of files to the tracking server, each once. Return the call that compares them.

    Args:
        format: `pyperf`, `hyperfine` or `json`.
        files: Paths, each with the name of its level if that is not the file's: `base=old.json`.
        experiment: Its name in MLflow.
        display: Shows the progress.

    Raises:
        UsageError: If a file is not of this format, a record has no place on a server, or a run is
            there with other values; nothing is sent then.
    """
    if not files:
        raise UsageError(
            ErrorCode.MISSING_VALUE,
            f"no file to import; write evenhand import --format {format} FILE",
        )
    read = {"pyperf": _pyperf, "hyperfine": _hyperfine, "json": _list}[format]
    by_file = [_read(read, format, text) for text in files]
    runs = list(_runs(by_file))
    store = Store()
    store.check()
    account = accounts.current(store)
    place = accounts.experiment_path(account, accounts.team_of(account, ""), experiment)
    now = clock.now_ms()
    opened, records = list[RunOpened](), list[Record]()
    of_key = Counter[tuple[object, ...]]()
    for number, (run, block, is_median) in enumerate(runs):
        start = now + number if run.start_ms is None else run.start_ms
        end = start if run.end_ms is None else run.end_ms
        warnings = [NO_TIMES.format(format)] if run.start_ms is None and not run.block else []
        warnings += [SUMMARISED] if is_median else []
        tags = {
            "level": run.level,
            "block": run.block or block,
            "order_in_block": str(run.place) if block else "",
            "machine": run.machine,
            "imported": format,
            "warnings": BETWEEN_WARNINGS.join(warnings),
        }
        tags = accounts.tags(account) | {name: text for name, text in tags.items() if text}
        # Not the file's bytes: a repaired file has the same runs.
        key = (run.level, run.block or block, run.params.get(BENCHMARK), run.start_ms)
        identity = json.dumps([*key, of_key[key]])
        of_key[key] += 1
        origin = f"imported-{hashlib.sha256(identity.encode()).hexdigest()[:24]}"
        opened.append(RunOpened(origin, start, place, run.level, tags, dict(run.params)))
        points = [Point(key, value, 0, end) for key, value in run.medians.items()]
        points += [
            Point(f"live/{key}", value, step, end)
            for key, values in run.values.items()
            for step, value in enumerate(values)
        ]
        outcome = RunOutcome.OK if run.ok else RunOutcome.FAILED
        records += [opened[-1], Metrics(origin, tuple(points)), RunClosed(origin, end, outcome)]
        display.step("runs", number, len(runs))
    _check(records, store, place)
    store.expect(opened)
    if refused := store.apply(records, Path()):
        raise EvenhandError(ErrorCode.DENIED, f"{store.uri} refused {refused[0]}")
    benchmarks = {run.params[BENCHMARK] for run, _, _ in runs if BENCHMARK in run.params}
    words = ["--experiment", place, "--factor", "level", "--baseline", runs[0][0].level]
    words += ["--strata", BENCHMARK] if len(benchmarks) > 1 else []
    display.rest()
    display.say(f"{len(runs)} runs are in {place} on {store.uri}")
    if not any(run.block or block for run, block, _ in runs):
        words += ["--pair_by", "time"]
        display.say(UNPAIRED, style="bold yellow")
    return shell.command("compare", *words)


def _check(records: Sequence[Record], store: Store, experiment: str) -> None:
    """Raise UsageError for a record that servers refuse or that contradicts a stored run."""
    before = {run.tags.get("origin"): run for run in store.runs(experiment, "tags.imported != ''")}
    level = ""
    for record in records:
        reasons = limits.acceptable_part(record)[1]
        stored = before.get(record.run)
        if isinstance(record, RunOpened):
            level = record.name
        elif stored and isinstance(record, Metrics):
            reasons += [
                f"{point.key} is {stored.metrics[point.key]:g} in {experiment}, not "
                f"{point.value:g}; delete run {stored.run_id} there, or choose another experiment "
                f"(--experiment NAME)"
                for point in record.points
                if stored.metrics.get(point.key, point.value) != point.value
                and not point.key.startswith("live/")
            ]
        if reasons:
            raise UsageError(
                ErrorCode.CONFLICT if stored else ErrorCode.INVALID_VALUE,
                f"a run of level {plain.short(level)}: {reasons[0]}",
            )


def _read(read: Reader, format: str, text: str) -> list[Process]:
    level, equals, path = text.partition("=")
    if not equals or os.path.exists(text):
        level, path = "", text
    label = f"{format} file {plain.path(path)}"
    try:
        content = json.loads(read_file(Path(path), label, MAX_BYTES))
        processes = list(read(content, level, Path(path).stem))
        numbers = [
            number
            for process in processes
            for values in process.values.values()
            for number in (*values, statistics.median(values))
        ]
        if not numbers or not all(map(math.isfinite, numbers)):
            raise ValueError("it has no values, or values that are not finite")
    except (
        *(OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError),
        OverflowError,
    ) as error:
        reason = plain.short(str(error))
        raise UsageError(
            ErrorCode.UNREADABLE, f"{label} cannot be read: {reason}; {EXPECTED[format]}"
        ) from None
    return processes


def _pyperf(content: Any, level: str, stem: str) -> Iterator[Process]:
    """Yield the processes of a suite; those that calibrate have no values."""
    for benchmark in content["benchmarks"]:
        shared = {**content.get("metadata", {}), **benchmark.get("metadata", {})}
        for run in benchmark["runs"]:
            metadata = {**shared, **run.get("metadata", {})}
            if not run.get("values"):
                continue
            key = UNITS[metadata.get("unit", "second")]
            start = end = None
            if "date" in metadata:
                began = datetime.datetime.fromisoformat(metadata["date"])
                began = began if began.tzinfo else began.replace(tzinfo=datetime.UTC)
                start = round(1_000 * began.timestamp())
                end = start + round(1_000 * float(metadata.get("duration", 0)))
            facts = [str(metadata.get(name, "")) for name in ("hostname", "cpu_model_name")]
            machine = hashlib.sha256("".join(facts).encode()).hexdigest()[:12] if any(facts) else ""
            params = {BENCHMARK: str(metadata.get("name", "unnamed"))}
            values = {key: [float(value) for value in run["values"]]}
            yield Process(level or stem, 0, values, params, start, end, machine=machine)


def _hyperfine(content: Any, level: str, _: str) -> Iterator[Process]:
    """Yield the processes of each command, which is a level by its name."""
    if level and len({str(result["command"]) for result in content["results"]}) > 1:
        raise ValueError(f"it has several commands, so {level}= cannot name one")
    for place, result in enumerate(content["results"]):
        codes = result.get("exit_codes") or [0] * len(result["times"])
        for seconds, code in zip(result["times"], codes, strict=True):
            values = {"wall_seconds": [float(seconds)]}
            yield Process(level or str(result["command"]), place, values, ok=code == 0)


def _list(content: Any, level: str, stem: str) -> Iterator[Process]:
    """Yield the entries of a list, a process each."""
    for entry in content:
        values = {str(key): [float(value)] for key, value in entry["metrics"].items()}
        params = {str(key): str(value) for key, value in entry.get("params", {}).items()}
        times = [entry.get(name) for name in ("start_ms", "end_ms")]
        start, end = (None if time is None else int(time) for time in times)
        name, block = str(entry.get("level", level or stem)), str(entry.get("block", ""))
        yield Process(name, 0, values, params, start, end, block)


def _runs(by_file: Sequence[Sequence[Process]]) -> Iterator[tuple[Process, str, bool]]:
    """Yield runs with their blocks, and whether each is the median of a file's processes.

    Processes of one file follow each other: they are repetitions, not blocks. If a level comes
    from several files, each of them is one run. It has a block if files hold several levels.
    """
    files_of = Counter(
        level for processes in by_file for level in {process.level for process in processes}
    )
    for number, processes in enumerate(by_file, start=1):
        levels = {process.level for process in processes}
        groups: dict[tuple[str, str], list[Process]] = {}
        for process in processes:
            if files_of[process.level] == 1 or process.block:
                yield process, "", False
            else:
                key = (process.level, process.params.get(BENCHMARK, ""))
                groups.setdefault(key, []).append(process)
        for group in groups.values():
            yield _merged(group), str(number) if len(levels) > 1 else "", len(group) > 1


def _merged(processes: Sequence[Process]) -> Process:
    """Return a file's processes of one level as one, with a value of each."""
    first = processes[0]
    starts = [process.start_ms for process in processes if process.start_ms is not None]
    ends = [process.end_ms for process in processes if process.end_ms is not None]
    return replace(
        first,
        values={key: [process.medians[key] for process in processes] for key in first.values},
        start_ms=min(starts, default=None),
        end_ms=max(ends, default=None),
        ok=all(process.ok for process in processes),
    )
