"""PyTorch's device, also under Keras."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from models.devices import CUDA
from models.frameworks.devices import (
    ARITHMETIC,
    OPERATIONS,
    flushes_denormals,
    onednn,
    resolve,
    verify_arithmetic,
)


class TorchDevice:
    """Device of PyTorch, part of an adapter."""

    device: str

    def _open_device(
        self, requested: str, threads: int, precision: str, conv_algorithm: str, seed: int
    ) -> None:
        import torch

        self._torch = torch
        accelerator = CUDA if torch.cuda.is_available() else ""
        self.device = resolve(requested, accelerator, "torch", precision, torch.cuda.init)
        _set_arithmetic(torch, ARITHMETIC.get(precision, "ieee"))
        verify_arithmetic("torch", precision, self._arithmetic())
        torch.backends.cudnn.benchmark = conv_algorithm == "profiled"
        torch.backends.cudnn.deterministic = conv_algorithm == "fixed"
        if (enabled := onednn(conv_algorithm, self.device)) is not None:
            torch.backends.mkldnn.set_flags(_enabled=enabled)
        torch.manual_seed(seed)
        torch.set_flush_denormal(True)  # its threads take it over when they start
        if threads:
            torch.set_num_threads(threads)
            with suppress(RuntimeError):  # set before in this process; `versions` records it
                torch.set_num_interop_threads(threads)

    def synchronise(self) -> None:
        if self.device == CUDA:
            self._torch.cuda.synchronize()

    def peak_device_bytes(self) -> int | None:
        return int(self._torch.cuda.max_memory_allocated()) if self.device == CUDA else None

    def reset_peak(self) -> bool:
        if self.device == CUDA:
            self._torch.cuda.reset_peak_memory_stats()
        return self.device == CUDA

    def _device_versions(self) -> dict[str, str]:
        torch, backends = self._torch, self._torch.backends
        is_reduced = backends.cuda.matmul.allow_bf16_reduced_precision_reduction
        has_onednn = backends.mkldnn.is_available() and backends.mkldnn.enabled
        return {
            "torch": torch.__version__,
            "torch_cuda": str(torch.version.cuda),
            "torch_threads": str(torch.get_num_threads()),
            "torch_inter_op_threads": str(torch.get_num_interop_threads()),
            "torch_flushes_denormals": flushes_denormals(
                lambda array: (torch.from_numpy(array).to(self.device) * 0.5).numpy(force=True)
            ),
            **{f"torch_{name}_precision": switch for name, switch in self._arithmetic().items()},
            "torch_bfloat16_reduced_sums": str(is_reduced),
            "torch_cudnn_benchmark": str(backends.cudnn.benchmark),
            "torch_cudnn_deterministic": str(backends.cudnn.deterministic),
            "torch_onednn": str(has_onednn),
            "torch_deterministic": str(torch.are_deterministic_algorithms_enabled()),
        }

    def _arithmetic(self) -> dict[str, str]:
        """Return each operation's switch, of the library that computes it on this device."""
        backends = self._torch.backends
        on_gpu = backends.cuda.matmul, backends.cudnn.conv, backends.cudnn.rnn
        on_cpu = backends.mkldnn.matmul, backends.mkldnn.conv, backends.mkldnn.rnn
        switches = on_gpu if self.device == CUDA else on_cpu
        precisions = [str(switch.fp32_precision) for switch in switches]
        return dict(zip(OPERATIONS, precisions, strict=True))


def _set_arithmetic(torch: Any, arithmetic: str) -> None:
    """Set the switches of matmul, convolutions and recurrent layers one by one.

    In PyTorch 2.11 the switch for all of them does not reach cuDNN's, which are on by default
    (pytorch#179445). The older switches are set too: Inductor and Lightning read them, and reading
    raises an error if they disagree with the newer ones.
    """
    backends, rounds = torch.backends, arithmetic == "tf32"
    backends.fp32_precision = arithmetic
    torch.set_float32_matmul_precision("high" if rounds else "highest")
    backends.cudnn.allow_tf32 = rounds
    of_cudnn, of_onednn = backends.cudnn, backends.mkldnn
    switches = backends.cuda.matmul, of_cudnn.conv, of_cudnn.rnn
    for switch in (*switches, of_onednn.matmul, of_onednn.conv, of_onednn.rnn):
        switch.fp32_precision = arithmetic
