"""Parts of a training step's time: operators, copies, launching, Python, waiting for input."""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import chain, islice
from typing import Any, SupportsFloat

from experiments.cell.timing import Stopwatch, TimedIterator, pace
from experiments.contract import AnyCell, Output
from models.contract import Batch, Framework, Mark, ModelError, Profile, Span
from tracking.records import Tags

STEPS = 8
MAX_KINDS = 20
NOTHING = (
    "the profiler saw no kernels: "
    "CUPTI may lack the privilege (NVreg_RestrictProfilingToAdminUsers)"
)
TOO_FEW = "an epoch of a single step: the first step is never counted"
# A moment of a step belongs to the first of these that goes on then.
PARTS = ("op", "copy", "unrecorded", "dispatch", "python")
GAPS = ("dispatch", "python")
COUNTS = ("ops", "launches")


class MarkedClock:
    """Step clock that marks for a profiler what it times, but for the first step.

    The first step pays for the profiler's own start.
    """

    def __init__(self, watch: Stopwatch, mark: Mark) -> None:
        self._watch, self._mark = watch, mark
        self._marked: AbstractContextManager[object] = nullcontext()

    @property
    def window_steps(self) -> int:
        return self._watch.window_steps

    def begin(self) -> None:
        self._marked = self._mark() if self._watch.losses else nullcontext()
        self._watch.begin()
        self._marked.__enter__()

    def end(self, *losses: SupportsFloat) -> None:
        last = float(losses[-1])
        self._marked.__exit__(None, None, None)
        self._watch.end(*losses[:-1], last)


def profile(
    spec: AnyCell,
    framework: Framework,
    network: Any,
    optimizer: Any,
    batches: Callable[[], Iterable[Batch]],
    output: Output,
) -> None:
    """Make a few more steps under the framework's profiler, and record them.

    No other metric of the run contains them. `batches` returns those of a training from its
    first, the same in every call.
    """
    rounds = list[tuple[Stopwatch, TimedIterator]]()

    def work(mark: Mark) -> None:
        timed = TimedIterator(islice(batches(), 1 + STEPS))
        watch = Stopwatch(
            lambda step, *_: output.progress("profile", step, 1 + STEPS),
            pace=pace(spec.settings, first=1),
        )
        framework.train_epoch(network, optimizer, timed, MarkedClock(watch, mark))
        rounds.append((watch, timed))

    folder = spec.path / "profile"
    folder.mkdir()
    try:
        result = framework.profile(folder, work)
    except (ModelError, OSError, RuntimeError) as error:
        output.record(Tags(spec.run, {"not_available.profile": str(error)[:200]}))
        return
    if result.operators and result.steps:
        _record(spec, result, *rounds[0], output)
    else:
        reason = NOTHING if result.steps else TOO_FEW
        output.record(Tags(spec.run, {"not_available.profile": reason}))
    output.artifact("profile", "profile")


def parts(result: Profile) -> dict[str, float]:
    """Return the seconds of all steps by part, which add up to them.

    Spans that overlap count once, in the part that comes first: an operator or kernel (op), only
    copies (copy), operators that are not shown one by one (unrecorded), other code of the
    framework (dispatch), and the rest (python).
    """
    operators = chain(*result.operators.values(), result.composed)
    layers = (operators, result.copies, result.unrecorded, result.framework, result.steps)
    seconds, spans, before = dict[str, float](), list[Span](), 0.0
    for part, layer in zip(PARTS, layers, strict=True):
        spans += _inside(layer, result.steps)
        total = covered(spans)
        seconds[part], before = total - before, total
    return seconds


def covered(spans: Iterable[Span]) -> float:
    """Return the seconds covered by at least one of the spans."""
    total, reach = 0.0, float("-inf")
    for start, end in sorted(spans):
        total += max(0.0, end - max(start, reach))
        reach = max(reach, end)
    return total


def _inside(spans: Iterable[Span], steps: Sequence[Span]) -> Iterable[Span]:
    """Yield the parts of the spans that lie in a step; steps do not overlap."""
    steps = sorted(steps)
    starts = [start for start, _ in steps]
    for start, end in spans:
        for step_start, step_end in steps[max(0, bisect_right(starts, start) - 1) :]:
            if step_start >= end:
                break
            if step_end > start:
                yield max(start, step_start), min(end, step_end)


def _record(
    spec: AnyCell, result: Profile, watch: Stopwatch, batches: TimedIterator, output: Output
) -> None:
    """Record metrics by step, and `profile.json`, which also has the kinds of operators."""
    steps = len(watch.losses) - 1
    seconds = {part: value / steps for part, value in parts(result).items()}
    metrics = {f"{part}_seconds": value for part, value in seconds.items()}
    metrics["step_seconds"] = sum(seconds.values())
    metrics["gap_seconds"] = sum(seconds[part] for part in GAPS)
    metrics["input_seconds"] = batches.seconds / len(watch.losses)
    missing = {f"{name}_per_step": reason for name, reason in result.uncounted.items()}
    metrics |= {f"{name}_per_step": count / steps for name, count in result.counts.items()}
    output.metrics({f"profile/{name}": value for name, value in metrics.items()})
    if missing:
        tags = {f"not_available.profile/{name}": reason for name, reason in missing.items()}
        output.record(Tags(spec.run, tags))
    content = {
        "steps": steps,
        **metrics,
        "not_counted": dict(result.uncounted),
        "operators": _slowest_kinds(result, steps),
    }
    (spec.path / "profile.json").write_text(json.dumps(content, indent=1))
    output.artifact("profile.json")


def _slowest_kinds(result: Profile, steps: int) -> list[dict[str, Any]]:
    """Return the kinds of operators that took the most time; parallel operators all count."""
    kinds: list[dict[str, Any]] = [
        {
            "kind": kind,
            "per_step": len(spans) / steps,
            "seconds_per_step": sum(end - start for start, end in spans) / steps,
        }
        for kind, spans in result.operators.items()
    ]
    return sorted(kinds, key=lambda kind: -kind["seconds_per_step"])[:MAX_KINDS]
