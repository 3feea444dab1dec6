"""tf.profiler, also under Keras."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tensorflow as tf
from tensorflow.tsl.profiler.protobuf import xplane_pb2

from models.contract import Mark, Profile, Span
from models.frameworks.spans import Event, begun_in, by_kind, leaves

STEP = "evenhand.step"
# An executor calls an operator's span `path/of/the/node:Type`. Eagerly, the kernel's span lies in one that bears the type.
IN_A_GRAPH, EAGERLY = re.compile(r"[^:\s]+:(_?[A-Z]\w*)"), re.compile(r"EagerLocalExecute: (_?[A-Z]\w*)")
KERNEL = "KernelAndDeviceFunc::Run"
EXECUTOR = "ExecutorState::Process"
# XLA's kernels bear the name of their instruction, whose number is left out; a second span marks the end of each.
XLA, NUMBER, END = "hlo_op", re.compile(r"\.\d+$"), "end: "
# Spans of C++; Python has its own, as that of a tf.function's call.
FRAMEWORK = re.compile(r".*::|TFE_|Eager|FunctionRun|Executor|__inference|BlockUntilReady")
# What computes nothing: it hands a value over.
HANDED_ON = ("_EagerConst", "_Send", "_Recv", "_HostSend", "_HostRecv", "_Arg", "_Retval")
COPIES = ("Memcpy", "Memset", "Copy", "Identity", "Transpose", "_MklToTf", "copy", "transpose")
FUSED = "XLA fuses operators: its kernels are counted, as launches"
LEFT_OUT = "the profiler leaves out small operators of a graph, and this graph cannot be traced afresh to count them"
PICOSECOND, NANOSECOND = 1e-12, 1e-9


@dataclass(frozen=True)
class Seen:
    """What a trace holds of the marked steps. kernels: of a GPU; fused: those of XLA on the CPU."""

    steps: list[Span]
    operators: list[Event]
    fused: list[Event]
    kernels: list[Event]
    executor: list[Event]
    framework: list[Event]


def profiled(folder: Path, device: str, work: Callable[[Mark], object], forget: Callable[[], object] | None = None) -> Profile:
    """Operators on the CPU, kernels on a GPU or of XLA. `plugins/profile/…/*.xplane.pb` goes into the folder.

    forget: makes the work trace its functions afresh. The runtime soon stops showing operators that it finds to be quick, but
    shows all of a function that has never run without the profiler: so they are counted in such a one.
    """
    seen = _seen(folder, work)
    shown = seen.kernels if device == "cuda" else [*seen.operators, *seen.fused]
    moving = [one for one in shown if one.name.startswith(COPIES)]
    computing = [one for one in shown if not one.name.startswith(COPIES)]
    counts, uncounted = dict[str, int](), dict[str, str]()
    if device == "cuda" or seen.fused:
        counts["launches"] = len(computing)
    if seen.fused:
        uncounted["ops"] = FUSED
    elif seen.executor and not forget:
        uncounted["ops"] = LEFT_OUT
    else:
        counts["ops"] = _count(work, forget) if seen.executor and forget else len(seen.operators)
    return Profile(
        seen.steps,
        by_kind(computing),
        copies=[one.span for one in moving],
        unrecorded=[one.span for one in seen.executor] if device == "cpu" else (),
        framework=[one.span for one in seen.framework],
        counts=counts,
        uncounted=uncounted,
    )


def _count(work: Callable[[Mark], object], forget: Callable[[], object]) -> int:
    forget()
    with tempfile.TemporaryDirectory() as folder:
        return len(_seen(Path(folder), work).operators)


def _seen(folder: Path, work: Callable[[Mark], object]) -> Seen:
    options = tf.profiler.experimental.ProfilerOptions(host_tracer_level=2, python_tracer_level=0)
    tf.profiler.experimental.start(str(folder), options)
    try:
        work(lambda: tf.profiler.experimental.Trace(STEP))
    finally:
        tf.profiler.experimental.stop()
    planes = [plane for path in folder.rglob("*.xplane.pb") for plane in xplane_pb2.XSpace.FromString(path.read_bytes()).planes]
    host = [event for plane in planes if plane.name == "/host:CPU" for event in _events(plane)]
    steps = [event.span for event, _ in host if event.name == STEP]
    fused = [event for event, is_xla in host if is_xla and not event.name.startswith(END)]
    others = begun_in((event for event, is_xla in host if not is_xla), steps)
    return Seen(
        steps,
        leaves(event for event in (*_in_graphs(others), *_eager(others)) if event.name not in HANDED_ON),
        leaves(event._replace(name=NUMBER.sub("", event.name)) for event in begun_in(fused, steps)),
        begun_in((event for plane in planes for event in _kernels(plane)), steps),
        [event for event in others if event.name == EXECUTOR],
        [event for event in others if FRAMEWORK.match(event.name)],
    )


def _in_graphs(events: list[Event]) -> Iterator[Event]:
    """What executors ran, by type."""
    for event in events:
        if matched := IN_A_GRAPH.fullmatch(event.name):
            yield event._replace(name=matched[1])


def _eager(events: list[Event]) -> Iterator[Event]:
    """The kernels of operators that Python calls one by one, by type."""
    called: dict[Any, Event] = {}
    for event in sorted(events, key=lambda one: (one.start, -one.end)):
        if matched := EAGERLY.fullmatch(event.name):
            called[event.thread] = event._replace(name=matched[1])
        elif event.name == KERNEL and event.thread in called and event.start < called[event.thread].end:
            yield event._replace(name=called[event.thread].name)


def _events(plane: Any) -> Iterator[tuple[Event, bool]]:
    """Every event of a plane, and whether it is a kernel of XLA's."""
    names = {key: meta.name for key, meta in plane.event_metadata.items()}
    marks = {key for key, meta in plane.stat_metadata.items() if meta.name == XLA}
    for line in plane.lines:
        for event in line.events:
            start = line.timestamp_ns * NANOSECOND + event.offset_ps * PICOSECOND
            is_xla = bool(marks) and any(stat.metadata_id in marks for stat in event.stats)  # there can be a million
            yield Event(names[event.metadata_id], start, start + event.duration_ps * PICOSECOND, line.id), is_xla


def _kernels(plane: Any) -> Iterator[Event]:
    """What ran on a GPU: of its streams alone, as other lines sum up the same."""
    if plane.name.startswith("/device:GPU"):
        streams = {line.id for line in plane.lines if line.name.startswith("Stream")}
        yield from (event for event, _ in _events(plane) if event.thread in streams)
