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
from models.frameworks.spans import Event, begun_in, by_kind, leaves

STEP = "evenhand.step"
# Of a library of operators: `aten::mm`, `torchvision::nms`. What autograd's engine says of itself looks alike.
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
    """Operators on the CPU, kernels on a GPU. `*.pt.trace.json` goes into the folder."""
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if device == "cuda" else [])]
    with profile(
        activities=activities, on_trace_ready=tensorboard_trace_handler(str(folder), "steps")
    ) as found:
        work(lambda: record_function(STEP))
    return seen(found.events(), device)


def seen(events: Any, device: str) -> Profile:
    """What the profiler's events come to; see `Profile`."""
    on_host = [one for one in events if one.device_type == DeviceType.CPU]
    steps = [_event(one).span for one in on_host if one.name == STEP]
    host = begun_in(
        map(_event, (one for one in on_host if not one.is_user_annotation and one.name != STEP)),
        steps,
    )
    kernels = [
        _event(one)
        for one in events
        if one.device_type == DeviceType.CUDA and not one.is_user_annotation
    ]
    called = [one for one in host if OPERATOR.match(one.name) and not _computes_nothing(one.name)]
    copies = leaves(one for one in called if one.name.startswith(COPIES))
    operators = leaves(one for one in called if not one.name.startswith(COPIES))
    compiled = begun_in((_event(one) for one in on_host if COMPILED.match(one.name)), steps)
    shown = begun_in(kernels, steps) if device == "cuda" else [*operators, *copies]
    moving = [one for one in shown if one.name.startswith(COPIES)]
    computing = [one for one in shown if not one.name.startswith(COPIES)]
    return Profile(
        steps,
        by_kind(computing),
        composed=[one.span for one in called if not one.name.startswith(COPIES)]
        if device == "cpu"
        else (),
        copies=[one.span for one in moving],
        unrecorded=[one.span for one in compiled] if device == "cpu" else (),
        framework=[one.span for one in host],
        counts={
            **({} if compiled else {"ops": len(operators) + len(copies)}),
            **({"launches": len(computing)} if device == "cuda" else {}),
        },
        uncounted={"ops": FUSED} if compiled else {},
    )


@cache
def _computes_nothing(name: str) -> bool:
    """Whether an operator allocates, or looks at the same memory in another way: its schema says that it hands on what it got."""
    if name.startswith(ALLOCATING):
        return True
    try:
        schemas = torch._C._jit_get_schemas_for_operator(name)
    except RuntimeError:
        return False
    given = [
        one.alias_info
        for schema in schemas
        for one in schema.arguments
        if one.alias_info is not None
    ]
    return bool(given) and not any(one.is_write for one in given)


def _event(one: Any) -> Event:
    return Event(
        one.name, one.time_range.start * MICROSECOND, one.time_range.end * MICROSECOND, one.thread
    )
