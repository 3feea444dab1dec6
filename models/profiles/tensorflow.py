"""tf.profiler, also under Keras."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import tensorflow as tf
from tensorflow.tsl.profiler.protobuf import xplane_pb2

from models.contract import Profile

COPIES = ("Memcpy", "Memset", "MemcpyH2D", "_Send", "_Recv", "Copy", "Identity", "Transpose")
PICOSECOND, NANOSECOND = 1e-12, 1e-9


def profiled(folder: Path, device: str, work: Callable[[], object]) -> Profile:
    """Operators on the CPU, kernels on a GPU. `plugins/profile/…/*.xplane.pb` goes into the folder."""
    tf.profiler.experimental.start(str(folder), tf.profiler.experimental.ProfilerOptions(host_tracer_level=2, python_tracer_level=0))
    try:
        work()
    finally:
        tf.profiler.experimental.stop()
    events = list(_events(folder, "/device:GPU" if device == "cuda" else "/host:CPU"))
    copies = [span for name, *span in events if name.startswith(COPIES)]
    others = [span for name, *span in events if not name.startswith(COPIES)]
    trouble = "" if events else "the profiler saw no kernels: CUPTI may lack the privilege to (NVreg_RestrictProfilingToAdminUsers)"
    return Profile([(a, b) for a, b in others], [(a, b) for a, b in copies], trouble)


def _events(folder: Path, plane_name: str) -> Iterator[tuple[str, float, float]]:
    """Name, start and end of every operator or kernel on the planes so called."""
    for path in folder.rglob("*.xplane.pb"):
        space = xplane_pb2.XSpace.FromString(path.read_bytes())
        for plane in space.planes:
            if not plane.name.startswith(plane_name):
                continue
            operators = {key for key, meta in plane.stat_metadata.items() if meta.name in ("tf_op", "hlo_op")}
            for line in plane.lines:
                for event in line.events:
                    if plane_name == "/host:CPU" and not any(stat.metadata_id in operators for stat in event.stats):
                        continue
                    start = line.timestamp_ns * NANOSECOND + event.offset_ps * PICOSECOND
                    yield plane.event_metadata[event.metadata_id].name, start, start + event.duration_ps * PICOSECOND
