"""Traces of the profiler that TensorFlow and JAX share (`*.xplane.pb`): their events, and the profile made of them."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from models.contract import Profile, Span
from models.frameworks.spans import Event, begun_in, by_kind, leaves

STEP = "evenhand.step"
HOST, GPU, STREAM = "/host:CPU", "/device:GPU", "Stream"
# An executor calls an operator's span `path/of/the/node:Type`. Eagerly, the kernel's span lies in
# one that bears the type.
IN_A_GRAPH = re.compile(r"[^:\s]+:(_?[A-Z]\w*)")
EAGERLY = re.compile(r"EagerLocalExecute: (_?[A-Z]\w*)")
KERNEL = "KernelAndDeviceFunc::Run"
EXECUTOR = "ExecutorState::Process"
# XLA's kernels have this statistic. They bear the name of their instruction, whose number is left
# out; a second span marks the end of each.
XLA, NUMBER, END = "hlo_op", re.compile(r"\.\d+$"), "end: "
# Spans of C++ in TensorFlow, whose Python has its own, as that of a tf.function's call.
TENSORFLOW = re.compile(r".*::|TFE_|Eager|FunctionRun|Executor|__inference|BlockUntilReady")
# What computes nothing: it hands a value over.
HANDED_ON = ("_EagerConst", "_Send", "_Recv", "_HostSend", "_HostRecv", "_Arg", "_Retval")
COPIES = ("Memcpy", "Memset", "Copy", "Identity", "Transpose", "_MklToTf", "copy", "transpose")
FUSED = "XLA fuses operators: its kernels are counted, as launches"
LEFT_OUT = "the profiler leaves out small operators of a graph, and this graph cannot be traced afresh to count them"


class TraceEvent(NamedTuple):
    """An event with the names of its plane and line. is_xla: whether it is a kernel of XLA."""

    plane: str
    line: str
    is_xla: bool
    event: Event


@dataclass(frozen=True)
class Trace:
    """Events of the marked steps.

    fused: kernels of XLA on the CPU. kernels: of a GPU, `kernels_fused` if XLA made them.
    """

    steps: list[Span]
    operators: list[Event]
    fused: list[Event]
    kernels: list[Event]
    kernels_fused: bool
    executor: list[Event]
    framework: list[Event]


def read_trace(events: Iterable[TraceEvent], framework: re.Pattern[str] = TENSORFLOW) -> Trace:
    """Sort the events of a trace.

    Args:
        framework: matches the names of host events that are the framework's own code.
    """
    on_host, on_gpu = list[TraceEvent](), list[TraceEvent]()
    for traced in events:
        if traced.plane == HOST:
            on_host.append(traced)
        elif traced.plane.startswith(GPU) and traced.line.startswith(STREAM):
            on_gpu.append(traced)  # other lines of a GPU sum up the same
    steps = [traced.event.span for traced in on_host if traced.event.name == STEP]
    fused = [traced.event for traced in on_host if traced.is_xla]
    others = begun_in((traced.event for traced in on_host if not traced.is_xla), steps)
    kernels = begun_in((traced.event for traced in on_gpu), steps)
    computing = (*_in_graphs(others), *_eager(others))
    return Trace(
        steps,
        leaves(event for event in computing if event.name not in HANDED_ON),
        leaves(
            map(
                _unnumbered,
                (event for event in begun_in(fused, steps) if not event.name.startswith(END)),
            )
        ),
        [_unnumbered(event) for event in kernels],
        any(traced.is_xla for traced in on_gpu),
        [event for event in others if event.name == EXECUTOR],
        [event for event in others if event.name != STEP and framework.match(event.name)],
    )


def to_profile(trace: Trace, device: str, count: Callable[[], int] | None = None) -> Profile:
    """Return the profile of a trace: operators on the CPU, kernels on a GPU or of XLA.

    Args:
        count: counts the operators of graphs, of which the trace itself leaves out the quick ones.
    """
    is_fused = bool(trace.fused) or trace.kernels_fused
    shown = trace.kernels if device == "cuda" else [*trace.operators, *trace.fused]
    moving = [event for event in shown if event.name.startswith(COPIES)]
    computing = [event for event in shown if not event.name.startswith(COPIES)]
    counts, uncounted = dict[str, int](), dict[str, str]()
    if device == "cuda" or is_fused:
        counts["launches"] = len(computing)
    if is_fused:
        uncounted["ops"] = FUSED
    elif trace.executor and not count:
        uncounted["ops"] = LEFT_OUT
    else:
        counts["ops"] = count() if trace.executor and count else len(trace.operators)
    return Profile(
        trace.steps,
        by_kind(computing),
        copies=[event.span for event in moving],
        unrecorded=[event.span for event in trace.executor] if device == "cpu" else (),
        framework=[event.span for event in trace.framework],
        counts=counts,
        uncounted=uncounted,
    )


def _unnumbered(event: Event) -> Event:
    return event._replace(name=NUMBER.sub("", event.name))


def _in_graphs(events: list[Event]) -> Iterator[Event]:
    """Yield what executors ran, by type."""
    for event in events:
        if matched := IN_A_GRAPH.fullmatch(event.name):
            yield event._replace(name=matched[1])


def _eager(events: list[Event]) -> Iterator[Event]:
    """Yield the kernels of operators that Python calls one by one, by type."""
    called: dict[Any, Event] = {}
    for event in sorted(events, key=lambda event: (event.start, -event.end)):
        if matched := EAGERLY.fullmatch(event.name):
            called[event.thread] = event._replace(name=matched[1])
        elif event.name == KERNEL and event.start < _end(called.get(event.thread)):
            yield event._replace(name=called[event.thread].name)


def _end(event: Event | None) -> float:
    return event.end if event else -math.inf
