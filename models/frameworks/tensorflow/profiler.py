"""tf.profiler, also under Keras."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import tensorflow as tf
from tensorflow.tsl.profiler.protobuf import xplane_pb2

from models.contract import Mark, Profile
from models.frameworks.spans import Event
from models.frameworks.xplane import STEP, XLA, Trace, TraceEvent, read_trace, to_profile

PICOSECOND, NANOSECOND = 1e-12, 1e-9


def profiled(
    folder: Path,
    device: str,
    work: Callable[[Mark], object],
    forget: Callable[[], object] | None = None,
) -> Profile:
    """Return the profile of some work. `plugins/profile/…/*.xplane.pb` goes into the folder.

    Args:
        forget: makes the work trace its functions afresh. The runtime soon stops showing operators
            that it finds to be quick, but shows all of a function that has never run without the
            profiler: so they are counted in such a one.
    """

    def count() -> int:
        assert forget
        forget()
        with tempfile.TemporaryDirectory() as another:
            return len(_trace(Path(another), work).operators)

    return to_profile(_trace(folder, work), device, count if forget else None)


def _trace(folder: Path, work: Callable[[Mark], object]) -> Trace:
    options = tf.profiler.experimental.ProfilerOptions(host_tracer_level=2, python_tracer_level=0)
    tf.profiler.experimental.start(str(folder), options)
    try:
        work(lambda: tf.profiler.experimental.Trace(STEP))
    finally:
        tf.profiler.experimental.stop()
    texts = (path.read_bytes() for path in folder.rglob("*.xplane.pb"))
    planes = [plane for text in texts for plane in xplane_pb2.XSpace.FromString(text).planes]
    return read_trace(traced for plane in planes for traced in _events(plane))


def _events(plane: Any) -> Iterator[TraceEvent]:
    names = {key: meta.name for key, meta in plane.event_metadata.items()}
    marks = {key for key, meta in plane.stat_metadata.items() if meta.name == XLA}
    for line in plane.lines:
        for event in line.events:
            start = line.timestamp_ns * NANOSECOND + event.offset_ps * PICOSECOND
            end = start + event.duration_ps * PICOSECOND
            # there can be a million
            is_xla = bool(marks) and any(stat.metadata_id in marks for stat in event.stats)
            traced = Event(names[event.metadata_id], start, end, line.id)
            yield TraceEvent(plane.name, line.name, is_xla, traced)
