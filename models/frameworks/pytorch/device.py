"""The device of a process that computes with PyTorch, also under Keras."""

from __future__ import annotations

from models.frameworks.devices import resolve


class TorchDevice:
    """PyTorch's device, also under Keras."""

    def __init__(self, wanted: str, threads: int, precision: str, conv_algorithm: str) -> None:
        import torch

        self._torch = torch
        self.name = resolve(wanted, torch.cuda.is_available(), "torch", precision)
        torch.backends.fp32_precision = "tf32" if precision == "tf32" else "ieee"
        torch.backends.cudnn.benchmark = conv_algorithm == "profiled"
        torch.backends.cudnn.deterministic = conv_algorithm == "fixed"
        if threads:
            torch.set_num_threads(threads)

    def seed(self, seed: int) -> None:
        self._torch.manual_seed(seed)

    def synchronise(self) -> None:
        if self.name == "cuda":
            self._torch.cuda.synchronize()

    def peak_bytes(self) -> int | None:
        return int(self._torch.cuda.max_memory_allocated()) if self.name == "cuda" else None

    def compilations(self) -> int:
        from torch._dynamo.utils import counters

        return int(counters["stats"]["unique_graphs"])

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
            "torch_deterministic": str(torch.are_deterministic_algorithms_enabled()),
        }
