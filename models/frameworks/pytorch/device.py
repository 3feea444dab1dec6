"""The device of a process that computes with PyTorch, also under Keras."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

from models.frameworks.devices import onednn, resolve


class CudaEvents:
    """A CUDA event before the first step and one after each, on the stream that the steps are on."""

    def __init__(self, steps: int, event: Callable[..., Any]) -> None:
        self._events = [event(enable_timing=True) for _ in range(steps + 1)]
        self._marked = 0
        self.mark()

    def mark(self) -> None:
        self._events[self._marked].record()
        self._marked += 1

    def seconds(self) -> list[float]:
        """CUDA has them in milliseconds."""
        return [before.elapsed_time(after) / 1_000 for before, after in pairwise(self._events)]


class TorchDevice:
    """PyTorch's device, also under Keras."""

    def __init__(self, wanted: str, threads: int, precision: str, conv_algorithm: str) -> None:
        import torch

        self._torch = torch
        self.name = resolve(wanted, torch.cuda.is_available(), "torch", precision, torch.cuda.init)
        torch.backends.fp32_precision = "tf32" if precision == "tf32" else "ieee"
        torch.backends.cudnn.benchmark = conv_algorithm == "profiled"
        torch.backends.cudnn.deterministic = conv_algorithm == "fixed"
        if (wanted_onednn := onednn(conv_algorithm, self.name)) is not None:
            torch.backends.mkldnn.set_flags(_enabled=wanted_onednn)
        if threads:
            torch.set_num_threads(threads)

    def seed(self, seed: int) -> None:
        self._torch.manual_seed(seed)

    def synchronise(self) -> None:
        if self.name == "cuda":
            self._torch.cuda.synchronize()

    def step_events(self, steps: int) -> CudaEvents | None:
        return CudaEvents(steps, self._torch.cuda.Event) if self.name == "cuda" else None

    def peak_bytes(self) -> int | None:
        return int(self._torch.cuda.max_memory_allocated()) if self.name == "cuda" else None

    def compilations(self) -> int:
        from torch._dynamo.utils import counters

        return int(counters["stats"]["unique_graphs"])

    def graph_breaks(self) -> dict[str, int]:
        """By reason. A frame that was given up as a whole is one too, under the first reason that was met in any."""
        from torch._dynamo.utils import counters

        breaks = {reason: int(count) for reason, count in counters["graph_break"].items()}
        if given_up := int(counters["frames"]["total"] - counters["frames"]["ok"]):
            why = next(iter(counters["unimplemented"]), "a frame was given up")
            breaks[why] = breaks.get(why, 0) + given_up
        return breaks

    def versions(self) -> dict[str, str]:
        torch = self._torch
        return {
            "torch": torch.__version__,
            "torch_cuda": str(torch.version.cuda),
            "torch_threads": str(torch.get_num_threads()),
            "torch_matmul_precision": torch.backends.cuda.matmul.fp32_precision,
            "torch_convolution_precision": torch.backends.cudnn.conv.fp32_precision,
            "torch_cudnn_benchmark": str(torch.backends.cudnn.benchmark),
            "torch_cudnn_deterministic": str(torch.backends.cudnn.deterministic),
            "torch_onednn": str(torch.backends.mkldnn.is_available() and torch.backends.mkldnn.enabled),
            "torch_deterministic": str(torch.are_deterministic_algorithms_enabled()),
        }
