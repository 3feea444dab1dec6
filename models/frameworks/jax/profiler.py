"""jax.profiler, also under Keras."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import jax

from models.contract import Mark, Profile
from models.frameworks.spans import Event
from models.frameworks.xplane import STEP, XLA, to_profile

NANOSECOND = 1e-9
# Without the tracer of Python, each event of a trace is JAX's or XLA's.
ANYTHING = re.compile("")


def profiled(folder: Path, device: str, work: Callable[[Mark], object]) -> Profile:
    """Return the profile of some work. `plugins/profile/…/*.xplane.pb` goes into the folder."""
    options = jax.profiler.ProfileOptions()
    options.host_tracer_level, options.python_tracer_level = 2, 0
    jax.profiler.start_trace(str(folder), profiler_options=options)
    try:
        work(lambda: jax.profiler.TraceAnnotation(STEP))
    finally:
        jax.profiler.stop_trace()
    return to_profile(list(_events(folder)), device, framework=ANYTHING)


def _events(folder: Path) -> Iterator[Event]:
    for path in folder.rglob("*.xplane.pb"):
        for plane in jax.profiler.ProfileData.from_file(str(path)).planes:
            for thread, line in enumerate(plane.lines):
                for event in line.events:
                    start, end = event.start_ns * NANOSECOND, event.end_ns * NANOSECOND
                    is_xla = any(name == XLA for name, _ in event.stats)
                    of_line = (plane.name, thread), plane.name, line.name
                    yield Event(event.name, start, end, *of_line, is_xla)
