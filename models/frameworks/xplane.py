"""Profiles from traces of the profiler that TensorFlow and JAX share (`*.xplane.pb`)."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from models.contract import Profile
from models.devices import CPU
from models.frameworks.spans import Event, begun_in, by_kind, leaves

STEP = "evenhand.step"
HOST, GPU, STREAM = "/host:CPU", "/device:GPU", "Stream"
# An executor calls an operator's span `path/of/the/node:Type`. In eager mode, the kernel's span is
# nested in one with the type.
IN_A_GRAPH = re.compile(r"[^:\s]+:(_?[A-Z]\w*)")
EAGERLY = re.compile(r"EagerLocalExecute: (_?[A-Z]\w*)")
KERNEL = "KernelAndDeviceFunc::Run"
EXECUTOR = "ExecutorState::Process"
# XLA's kernels have this statistic, and the name of their instruction with a number. A second span
# marks the end of each.
XLA, NUMBER, END = "hlo_op", re.compile(r"\.\d+$"), "end: "
# Spans of C++ in TensorFlow; its Python has some too, as that of a tf.function's call.
TENSORFLOW = re.compile(r".*::|TFE_|Eager|FunctionRun|Executor|__inference|BlockUntilReady")
# Operators that compute nothing: they hand a value over.
HANDED_ON = ("_EagerConst", "_Send", "_Recv", "_HostSend", "_HostRecv", "_Arg", "_Retval")
COPIES = ("Memcpy", "Memset", "Copy", "Identity", "Transpose", "_MklToTf", "copy", "transpose")
FUSED = "XLA fuses operators: its kernels are counted, as launches"
LEFT_OUT = (
    "the profiler leaves out small operators of a graph, and this graph cannot be traced afresh "
    "to count them"
)


def operators(events: Sequence[Event]) -> list[Event]:
    """Return the operators of the marked steps on the host, named by their type."""
    on_host = [event for event in events if event.plane == HOST and not event.is_xla]
    steps = [event.span for event in on_host if event.name == STEP]
    called = _operators(begun_in(on_host, steps))
    return leaves(event for event in called if event.name not in HANDED_ON)


def to_profile(
    events: Sequence[Event],
    device: str,
    count: Callable[[], int] | None = None,
    framework: re.Pattern[str] = TENSORFLOW,
) -> Profile:
    """Return the profile of a trace: operators on the CPU, kernels on a GPU or of XLA.

    Args:
        events: of the trace.
        device: the kind.
        count: counts the operators of graphs, of which the trace leaves out the quick ones.
        framework: matches the names of host events that are the framework's own code.
    """
    on_host = [event for event in events if event.plane == HOST]
    steps = [event.span for event in on_host if event.name == STEP]
    # other lines of a GPU sum up the same
    on_gpu = [at for at in events if at.plane.startswith(GPU) and at.line.startswith(STREAM)]
    fused = begun_in((at for at in on_host if at.is_xla and not at.name.startswith(END)), steps)
    others = begun_in((at for at in on_host if not at.is_xla and at.name != STEP), steps)
    called = operators(events)
    shown = begun_in(on_gpu, steps) if device != CPU else [*called, *leaves(fused)]
    copies = [event for event in shown if event.name.startswith(COPIES)]
    computing = [event for event in shown if not event.name.startswith(COPIES)]
    executor = [event.span for event in others if event.name == EXECUTOR]

    is_fused = bool(fused) or any(event.is_xla for event in on_gpu)
    counts, uncounted = dict[str, int](), dict[str, str]()
    if device != CPU or is_fused:
        counts["launches"] = len(computing)
    if is_fused:
        uncounted["ops"] = FUSED
    elif executor and not count:
        uncounted["ops"] = LEFT_OUT
    else:
        counts["ops"] = count() if executor and count else len(called)
    return Profile(
        steps,
        by_kind(event._replace(name=NUMBER.sub("", event.name)) for event in computing),
        copies=[event.span for event in copies],
        unrecorded=executor if device == CPU else (),
        framework=[event.span for event in others if framework.match(event.name)],
        counts=counts,
        uncounted=uncounted,
    )


def _operators(events: list[Event]) -> Iterator[Event]:
    """Yield the operators of executors, and kernels of operators that Python calls one by one."""
    called: dict[Any, Event] = {}
    for event in sorted(events, key=lambda event: (event.start, -event.end)):
        last = called.get(event.thread)
        if matched := IN_A_GRAPH.fullmatch(event.name):
            yield event._replace(name=matched[1])
        elif matched := EAGERLY.fullmatch(event.name):
            called[event.thread] = event._replace(name=matched[1])
        elif event.name == KERNEL and last and event.start < last.end:
            yield event._replace(name=last.name)
