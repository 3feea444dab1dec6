"""torch.profiler, also under Keras."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile, tensorboard_trace_handler

from models.contract import Profile

COPIES = ("aten::copy_", "aten::to", "aten::_to_copy", "aten::contiguous", "aten::clone", "Memcpy", "Memset")
MICROSECOND = 1e-6


def profiled(folder: Path, device: str, work: Callable[[], object]) -> Profile:
    """Operators on the CPU, kernels on a GPU. `*.pt.trace.json` goes into the folder."""
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if device == "cuda" else [])]
    with profile(activities=activities, on_trace_ready=tensorboard_trace_handler(str(folder), "steps")) as found:
        work()
    on_device = [event for event in found.events() if event.device_type == DeviceType.CUDA]
    operators = [event for event in found.events() if event.name.startswith("aten::")]
    events = on_device if device == "cuda" else operators
    copies = [_span(event) for event in events if event.name.startswith(COPIES)]
    others = [_span(event) for event in events if not event.name.startswith(COPIES)]
    return Profile(others, copies)


def _span(event: Any) -> tuple[float, float]:
    return event.time_range.start * MICROSECOND, event.time_range.end * MICROSECOND
