"""The device of a process that computes with PyTorch, also under Keras."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from itertools import pairwise
from typing import Any

from models.frameworks.devices import (
    OPERATIONS,
    float32_arithmetic,
    flushes_denormals,
    onednn,
    resolve,
    verify_arithmetic,
)


class CudaEvents:
    """A CUDA event after each step of a window, on the stream that the steps are on.

    The time until the first of them is not a step's: the device was idle when the window began, so
    it also contains the wait for the host.
    """

    def __init__(self, steps: int, event: Callable[..., Any]) -> None:
        self._events = [event(enable_timing=True) for _ in range(steps)]
        self._marked = 0

    def mark(self) -> None:
        self._events[self._marked].record()
        self._marked += 1

    def seconds(self) -> list[float]:
        """Return the seconds of all steps but the first; CUDA has milliseconds."""
        return [before.elapsed_time(after) / 1_000 for before, after in pairwise(self._events)]


class TorchDevice:
    """PyTorch's device, also under Keras."""

    def __init__(self, wanted: str, threads: int, precision: str, conv_algorithm: str) -> None:
        import torch

        self._torch = torch
        self.name = resolve(wanted, torch.cuda.is_available(), "torch", precision, torch.cuda.init)
        _set_arithmetic(torch, float32_arithmetic(precision))
        verify_arithmetic("torch", precision, self._arithmetic())
        torch.backends.cudnn.benchmark = conv_algorithm == "profiled"
        torch.backends.cudnn.deterministic = conv_algorithm == "fixed"
        if (wanted_onednn := onednn(conv_algorithm, self.name)) is not None:
            torch.backends.mkldnn.set_flags(_enabled=wanted_onednn)
        torch.set_flush_denormal(
            True
        )  # before its threads start: they take it over, and never change
        if threads:
            torch.set_num_threads(threads)
            with suppress(RuntimeError):  # set before in this process; `versions` has what it is
                torch.set_num_interop_threads(threads)

    def seed(self, seed: int) -> None:
        self._torch.manual_seed(seed)

    def synchronise(self) -> None:
        if self.name == "cuda":
            self._torch.cuda.synchronize()

    def step_events(self, steps: int) -> CudaEvents | None:
        return CudaEvents(steps, self._torch.cuda.Event) if self.name == "cuda" else None

    def peak_bytes(self) -> int | None:
        return int(self._torch.cuda.max_memory_allocated()) if self.name == "cuda" else None

    def reset_peak(self) -> bool:
        if self.name == "cuda":
            self._torch.cuda.reset_peak_memory_stats()
        return self.name == "cuda"

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
            "torch_inter_op_threads": str(torch.get_num_interop_threads()),
            "torch_flushes_denormals": self._flushes_denormals(),
            **{
                f"torch_{operation}_precision": switch
                for operation, switch in self._arithmetic().items()
            },
            "torch_bfloat16_reduced_sums": str(
                torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction
            ),
            "torch_cudnn_benchmark": str(torch.backends.cudnn.benchmark),
            "torch_cudnn_deterministic": str(torch.backends.cudnn.deterministic),
            "torch_onednn": str(
                torch.backends.mkldnn.is_available() and torch.backends.mkldnn.enabled
            ),
            "torch_deterministic": str(torch.are_deterministic_algorithms_enabled()),
        }

    def _flushes_denormals(self) -> str:
        torch = self._torch
        return flushes_denormals(
            lambda array: (torch.from_numpy(array).to(self.name) * 0.5).numpy(force=True)
        )

    def _arithmetic(self) -> dict[str, str]:
        """Return each operation's switch, of the library that computes it on this device."""
        backends = self._torch.backends
        on_gpu = backends.cuda.matmul, backends.cudnn.conv, backends.cudnn.rnn
        on_cpu = backends.mkldnn.matmul, backends.mkldnn.conv, backends.mkldnn.rnn
        switches = on_gpu if self.name == "cuda" else on_cpu
        return {
            name: str(switch.fp32_precision)
            for name, switch in zip(OPERATIONS, switches, strict=True)
        }


def _set_arithmetic(torch: Any, arithmetic: str) -> None:
    """Set the switches of matmul, convolutions and recurrent layers one by one.

    In PyTorch 2.11 the switch for all of them does not reach cuDNN's, which are on by default
    (pytorch#179445). The older switches are set too: Inductor and Lightning read them, and reading
    raises an error where they disagree with the newer ones.
    """
    backends, rounds = torch.backends, arithmetic == "tf32"
    backends.fp32_precision = arithmetic
    torch.set_float32_matmul_precision("high" if rounds else "highest")
    backends.cudnn.allow_tf32 = rounds
    backends.cuda.matmul.fp32_precision = arithmetic
    backends.cudnn.conv.fp32_precision = arithmetic
    backends.cudnn.rnn.fp32_precision = arithmetic
    for switch in (backends.mkldnn.matmul, backends.mkldnn.conv, backends.mkldnn.rnn):
        switch.fp32_precision = arithmetic
