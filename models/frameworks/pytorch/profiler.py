"""torch.profiler, also under Keras."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile, record_function, tensorboard_trace_handler

from models.contract import Mark, Profile
from models.devices import CPU
from models.frameworks.spans import Event, begun_in, by_kind, leaves

STEP = "evenhand.step"
# Of a library of operators: `aten::mm`, `torchvision::nms`. Events of autograd's engine look alike.
OPERATOR = re.compile(r"(?!autograd::|torch::)[A-Za-z_]\w*::")
COMPILED = re.compile(r"## Call CompiledFxGraph")
COPIES = (
    "aten::copy_",
    "aten::to",
    "aten::_to_copy",
    "aten::contiguous",
    "aten::clone",
    "Memcpy",
    "Memset",
)
FUSED = "torch.compile fuses operators into kernels that its CPU code calls unseen by the profiler"
ALLOCATING = ("aten::empty", "aten::new_empty", "aten::resize_", "aten::set_", "aten::as_strided_")
MICROSECOND = 1e-6


def profiled(folder: Path, device: str, work: Callable[[Mark], object]) -> Profile:
    """Return operators on the CPU, kernels on a GPU. `*.pt.trace.json` goes into the folder."""
    on_device = device != CPU
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_device else [])]
    to_folder = tensorboard_trace_handler(str(folder), "steps")
    with profile(activities=activities, on_trace_ready=to_folder) as profiler:
        work(lambda: record_function(STEP))
    on_host, on_gpu, compiled, steps = list[Event](), list[Event](), list[Event](), []
    for traced in profiler.events():
        span = traced.time_range
        start, end = span.start * MICROSECOND, span.end * MICROSECOND
        event = Event(traced.name, start, end, traced.thread)
        is_of_host = traced.device_type == DeviceType.CPU
        if event.name == STEP:
            steps += [event.span] if is_of_host else []
        elif is_of_host and COMPILED.match(event.name):
            compiled.append(event)
        if not traced.is_user_annotation and event.name != STEP:
            (on_host if is_of_host else on_gpu).append(event)
    on_host, compiled = begun_in(on_host, steps), begun_in(compiled, steps)
    called = [at for at in on_host if OPERATOR.match(at.name) and not _computes_nothing(at.name)]
    composed = [event for event in called if not event.name.startswith(COPIES)]
    operators = leaves(composed)
    copies = leaves(event for event in called if event.name.startswith(COPIES))
    counts = {} if compiled else {"ops": len(operators) + len(copies)}
    if on_device:
        kernels = begun_in(on_gpu, steps)
        operators = [event for event in kernels if not event.name.startswith(COPIES)]
        copies = [event for event in kernels if event.name.startswith(COPIES)]
        counts["launches"] = len(operators)
    return Profile(
        steps,
        by_kind(operators),
        composed=() if on_device else [event.span for event in composed],
        copies=[event.span for event in copies],
        unrecorded=() if on_device else [event.span for event in compiled],
        framework=[event.span for event in on_host],
        counts=counts,
        uncounted={"ops": FUSED} if compiled else {},
    )


@cache
def _computes_nothing(name: str) -> bool:
    """Return whether an operator allocates, or only views memory, by its schema."""
    if name.startswith(ALLOCATING):
        return True
    try:
        schemas = torch._C._jit_get_schemas_for_operator(name)
    except RuntimeError:
        return False
    arguments = [argument.alias_info for schema in schemas for argument in schema.arguments]
    aliases: list[Any] = [alias for alias in arguments if alias is not None]
    return bool(aliases) and not any(alias.is_write for alias in aliases)
