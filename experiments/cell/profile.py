"""Where the time of a training step goes: computing, copying, launching, waiting for input."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from experiments.cell.contract import CellSpec, Output, Task
from experiments.cell.timing import Feed, Stopwatch, pace
from models.contract import Framework, ModelError, Profile
from tracking import spreadsheet
from tracking.records import Tags

STEPS = 8
NOTHING = "the profiler saw no kernels: CUPTI may lack the privilege (NVreg_RestrictProfilingToAdminUsers)"
PARTS = ("compute", "copy", "launch", "input")


def profile(task: Task, spec: CellSpec, framework: Framework, network: Any, optimizer: Any, output: Output) -> None:
    """A few more steps under the framework's profiler, at the pace of all others; what cannot be profiled is said."""
    feed = Feed(islice(task.training(0, framework), STEPS))
    watch = Stopwatch(lambda step, *_: output.progress("profile", step, STEPS), pace=pace(spec.settings, first=0))
    folder = spec.path / "profile"
    folder.mkdir()
    seconds = 0.0

    def work() -> None:
        nonlocal seconds
        began = time.perf_counter()
        framework.train_epoch(network, optimizer, feed, watch)
        seconds = time.perf_counter() - began

    try:
        found = framework.profile(folder, work)
    except (ModelError, OSError, RuntimeError) as error:
        output.record(Tags(spec.run, {"not_available.profile": str(error)[:200]}))
        return
    if not found.computing:
        output.record(Tags(spec.run, {"not_available.profile": NOTHING}))
    else:
        shares = parts(found, seconds, feed.seconds)
        _write(spec.path / "profile.csv", shares, len(watch.losses))
        output.metrics({f"profile/{name}_percent": 100 * shares[name] / seconds for name in PARTS})
        output.artifact("profile.csv")
    output.artifact("profile", "profile")


def parts(found: Profile, seconds: float, waited: float) -> dict[str, float]:
    """Seconds of each of `PARTS`, which add up to all. Spans that overlap count once; copying is what is not computing meanwhile.

    launch: everything else of the steps: Python, dispatch, launching kernels, waiting for them.
    """
    computing = covered(found.computing)
    copying = covered([*found.computing, *found.copying]) - computing
    rest = max(0.0, seconds - computing - copying - waited)
    return {"compute": computing, "copy": copying, "launch": rest, "input": waited}


def covered(spans: Iterable[tuple[float, float]]) -> float:
    """Seconds covered by at least one of the spans."""
    total, reach = 0.0, float("-inf")
    for start, end in sorted(spans):
        total += max(0.0, end - max(start, reach))
        reach = max(reach, end)
    return total


def _write(path: Path, shares: dict[str, float], steps: int) -> None:
    everything = sum(shares.values())
    rows: Sequence[Sequence[object]] = [(name, shares[name] / steps, shares[name] / everything) for name in PARTS]
    path.write_text(spreadsheet.as_csv([("part", "seconds_a_step", "share"), *rows]), encoding="utf-8")
