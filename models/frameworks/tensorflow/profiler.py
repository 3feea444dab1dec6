"""tf.profiler, also under Keras."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import tensorflow as tf
from tensorflow.tsl.profiler.protobuf import xplane_pb2

from models.contract import Mark, Profile
from models.frameworks.spans import Event
from models.frameworks.xplane import STEP, XLA, operators, to_profile

PICOSECOND, NANOSECOND = 1e-12, 1e-9


def profiled(
    folder: Path,
    device: str,
    work: Callable[[Mark], object],
    forget: Callable[[], object] | None = None,
) -> Profile:
    """Return the profile of some work. `plugins/profile/…/*.xplane.pb` goes into the folder.

    Args:
        folder: of the trace.
        device: `cpu` or `cuda`.
        work: calls the mark of each step.
        forget: makes the work trace its functions afresh. The runtime soon stops showing operators
            that are quick, but shows all of a function that has never run without the profiler.
    """

    def count() -> int:
        assert forget
        forget()
        with tempfile.TemporaryDirectory() as another:
            return len(operators(_trace(Path(another), work)))

    return to_profile(_trace(folder, work), device, count if forget else None)


def _trace(folder: Path, work: Callable[[Mark], object]) -> list[Event]:
    options = tf.profiler.experimental.ProfilerOptions(host_tracer_level=2, python_tracer_level=0)
    tf.profiler.experimental.start(str(folder), options)
    try:
        work(lambda: tf.profiler.experimental.Trace(STEP))
    finally:
        tf.profiler.experimental.stop()
    paths = folder.rglob("*.xplane.pb")
    return [event for path in paths for event in _events(path)]


def _events(path: Path) -> Iterator[Event]:
    for plane in xplane_pb2.XSpace.FromString(path.read_bytes()).planes:
        names = {key: meta.name for key, meta in plane.event_metadata.items()}
        marks = {key for key, meta in plane.stat_metadata.items() if meta.name == XLA}
        for line in plane.lines:
            for event in line.events:
                start = line.timestamp_ns * NANOSECOND + event.offset_ps * PICOSECOND
                end = start + event.duration_ps * PICOSECOND
                # there can be a million
                is_xla = bool(marks) and any(stat.metadata_id in marks for stat in event.stats)
                name = names[event.metadata_id]
                yield Event(name, start, end, line.id, plane.name, line.name, is_xla)
