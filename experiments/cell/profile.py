"""Where the time of a training step goes: operators, copies, launching, Python, waiting for input."""

from __future__ import annotations

import json
import math
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import chain, islice
from typing import Any, SupportsFloat

import numpy as np

from experiments.cell.timing import Feed, Stopwatch, pace
from experiments.contract import CellSpec, Output
from models.contract import Batch, Framework, Mark, ModelError, Profile, Span
from tracking.records import Tags

STEPS = 8
# A cost is shown where chance, by which a profiled step is as often quicker as slower, makes so many slower in 5 % of cases.
ALPHA = 0.05
MAX_KINDS = 20
NOTHING = "the profiler saw no kernels: CUPTI may lack the privilege (NVreg_RestrictProfilingToAdminUsers)"
TOO_FEW = "an epoch of a single step: the first step is never counted"
NO_COST = "{slower} of {count} profiled steps or windows are slower than without the profiler: no cost beyond chance"
# A moment of a step belongs to the first of these that goes on then.
PARTS = ("op", "copy", "unrecorded", "dispatch", "python")
GAPS = ("dispatch", "python")
COUNTS = ("ops", "launches")
Round = tuple[Stopwatch, Feed]


class Marked:
    """A step clock that marks what it times for a profiler, but for the first step: it pays for the profiler's own start."""

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

    def on_device(self, seconds: Sequence[float]) -> None:
        self._watch.on_device(seconds)


def profile(
    spec: CellSpec,
    framework: Framework,
    network: Any,
    optimizer: Any,
    batches: Callable[[], Iterable[Batch]],
    output: Output,
) -> None:
    """A few more steps, as they are and then under the framework's profiler; what cannot be profiled is said.

    batches: of a training, from its first; the same in every call. Nothing of this is in any other metric of the run.
    """
    rounds: list[Round] = []

    def work(mark: Mark = nullcontext) -> None:
        feed = Feed(islice(batches(), 1 + STEPS))
        watch = Stopwatch(
            lambda step, *_: output.progress("profile", step, 1 + STEPS),
            pace=pace(spec.settings, first=1),
        )
        framework.train_epoch(network, optimizer, feed, Marked(watch, mark))
        rounds.append((watch, feed))

    folder = spec.path / "profile"
    folder.mkdir()
    try:
        work()
        found = framework.profile(folder, work)
    except (ModelError, OSError, RuntimeError) as error:
        output.record(Tags(spec.run, {"not_available.profile": str(error)[:200]}))
        return
    if not (found.operators and found.steps):
        output.record(
            Tags(spec.run, {"not_available.profile": NOTHING if found.steps else TOO_FEW})
        )
    else:
        _tell(spec, found, rounds[0], rounds[1], output)
    output.artifact("profile", "profile")


def parts(found: Profile) -> dict[str, float]:
    """Seconds of all steps by part, which add up to them. Spans that overlap count once, in the part that comes first.

    op: an operator or kernel goes on; copy: nothing but copies; unrecorded: operators that are not shown one by one; dispatch:
    other code of the framework; python: none of these, so Python, and what the framework does without saying so.
    """
    operators = chain(*found.operators.values(), found.composed)
    layers = (operators, found.copies, found.unrecorded, found.framework, found.steps)
    seconds, so_far, before = dict[str, float](), list[Span](), 0.0
    for part, spans in zip(PARTS, layers, strict=True):
        so_far += _inside(spans, found.steps)
        reached = covered(so_far)
        seconds[part], before = reached - before, reached
    return seconds


def covered(spans: Iterable[Span]) -> float:
    """Seconds covered by at least one of the spans."""
    total, reach = 0.0, float("-inf")
    for start, end in sorted(spans):
        total += max(0.0, end - max(start, reach))
        reach = max(reach, end)
    return total


def _inside(spans: Iterable[Span], steps: Sequence[Span]) -> Iterable[Span]:
    """What of the spans lies in a step. Steps follow one another."""
    steps = sorted(steps)
    starts = [start for start, _ in steps]
    for start, end in spans:
        for step_start, step_end in steps[max(0, bisect_right(starts, start) - 1) :]:
            if step_start >= end:
                break
            if step_end > start:
                yield max(start, step_start), min(end, step_end)


def _tell(spec: CellSpec, found: Profile, plain: Round, profiled: Round, output: Output) -> None:
    """As metrics, seconds and counts of a step, and as `profile.json`, which has the kinds of operators besides."""
    watch, feed = profiled
    steps, batches = len(watch.losses) - 1, len(watch.losses)
    seconds = {part: value / steps for part, value in parts(found).items()}
    metrics = {f"{part}_seconds": value for part, value in seconds.items()}
    metrics |= {
        "step_seconds": sum(seconds.values()),
        "gap_seconds": sum(seconds[part] for part in GAPS),
    }
    metrics |= {"input_seconds": feed.seconds / batches}
    cost, no_cost = _cost(plain[0], watch)
    metrics |= {} if cost is None else {"profiler_cost_ratio": cost}
    metrics |= {f"{name}_per_step": count / steps for name, count in found.counts.items()}
    output.metrics({f"profile/{name}": value for name, value in metrics.items()})
    why = {
        f"not_available.profile/{name}_per_step": reason for name, reason in found.uncounted.items()
    }
    why |= {"not_available.profile/profiler_cost_ratio": no_cost} if no_cost else {}
    if why:
        output.record(Tags(spec.run, why))
    told = {
        "steps": steps,
        **metrics,
        "not_counted": dict(found.uncounted),
        "operators": _kinds(found, steps),
    }
    (spec.path / "profile.json").write_text(json.dumps(told, indent=1))
    output.artifact("profile.json")


def _cost(plain: Stopwatch, profiled: Stopwatch) -> tuple[float | None, str]:
    """Return a step with the profiler over the same step without, or why there is none.

    The median of the steps, or of the windows, where a sign test shows that they take longer with it.
    """
    pairs = zip(_readings(profiled), _readings(plain), strict=True)
    ratios = [with_it / without for with_it, without in pairs]
    slower, count = sum(ratio > 1 for ratio in ratios), len(ratios)
    chance = sum(math.comb(count, at) for at in range(slower, count + 1)) / 2**count
    if chance > ALPHA:
        return None, NO_COST.format(slower=slower, count=count)
    return float(np.median(ratios)), ""


def _readings(watch: Stopwatch) -> list[float]:
    return [*watch.seconds[1:], *(one.seconds for one in watch.windows)]


def _kinds(found: Profile, steps: int) -> list[dict[str, Any]]:
    """The kinds of operators that took the most time between them. Two that ran side by side count both."""
    totals = {
        kind: (len(spans), sum(end - start for start, end in spans))
        for kind, spans in found.operators.items()
    }
    most = sorted(totals.items(), key=lambda one: -one[1][1])[:MAX_KINDS]
    return [
        {"kind": kind, "per_step": count / steps, "seconds_per_step": total / steps}
        for kind, (count, total) in most
    ]
