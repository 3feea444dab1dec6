"""tf.profiler, also under Keras."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import tensorflow as tf
from tensorflow.tsl.profiler.protobuf import xplane_pb2

from models.contract import Profile

COPIES = ("Memcpy", "Memset", "_Send", "_Recv", "Copy", "Identity", "Transpose", "_MklToTf")
# An operator's span is called `path/of/the/node:Type`; what the executor does around it is not.
OPERATOR = re.compile(r"[^:\s]+:(_?[A-Z]\w*)")
PICOSECOND, NANOSECOND = 1e-12, 1e-9


def profiled(folder: Path, device: str, work: Callable[[], object]) -> Profile:
    """Operators on the CPU, kernels on a GPU. `plugins/profile/…/*.xplane.pb` goes into the folder."""
    tf.profiler.experimental.start(
        str(folder), tf.profiler.experimental.ProfilerOptions(host_tracer_level=2, python_tracer_level=0)
    )
    try:
        work()
    finally:
        tf.profiler.experimental.stop()
    events = list(_events(folder, "/device:GPU" if device == "cuda" else "/host:CPU"))
    copies = [(start, end) for name, start, end in events if name.startswith(COPIES)]
    others = [(start, end) for name, start, end in events if not name.startswith(COPIES)]
    return Profile(others, copies)


def _events(folder: Path, plane_name: str) -> Iterator[tuple[str, float, float]]:
    """Type, start and end of every operator or kernel on the planes so called."""
    on_host = plane_name == "/host:CPU"
    for path in folder.rglob("*.xplane.pb"):
        space = xplane_pb2.XSpace.FromString(path.read_bytes())
        for plane in space.planes:
            if not plane.name.startswith(plane_name):
                continue
            names = {key: meta.name for key, meta in plane.event_metadata.items()}
            matched = {key: OPERATOR.fullmatch(name) for key, name in names.items()}
            kinds = {key: one[1] for key, one in matched.items() if one} if on_host else names
            for line in plane.lines:
                for event in line.events:
                    if event.metadata_id in kinds:
                        start = line.timestamp_ns * NANOSECOND + event.offset_ps * PICOSECOND
                        yield kinds[event.metadata_id], start, start + event.duration_ps * PICOSECOND
