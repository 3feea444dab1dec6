"""Calibrated work in PyTorch: single operators, sleeping kernels, allocations of a known size."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

from models.contract import Array, Mark
from models.layers.pytorch import OneBiasLSTM

# of a product that cuBLAS computes in one kernel; it may split the sum of a smaller one
SIDE = 4_096
CALIBRATION_CYCLES = 50_000_000
BUSY_SIDE = 8_192


def identity() -> dict[str, Any]:
    facts: dict[str, Any] = {
        "torch": torch.__version__,
        "cuda": str(torch.version.cuda),
        "is_available": torch.cuda.is_available(),
        "device_count": torch.cuda.device_count(),
    }
    if facts["is_available"]:
        properties = torch.cuda.get_device_properties(0)
        facts |= {
            "device": properties.name,
            "uuid": str(getattr(properties, "uuid", "")),
            "cudnn": torch.backends.cudnn.version(),
        }
    return facts


class _Convolution(nn.Conv2d):  # type: ignore[misc]
    def __init__(self, kernel: Array) -> None:
        height, width, inputs, outputs = kernel.shape
        super().__init__(inputs, outputs, (height, width), padding="same", bias=False)
        self.weight = nn.Parameter(torch.from_numpy(kernel).permute(3, 2, 0, 1).contiguous())

    def forward(self, images: Tensor) -> Tensor:
        return super().forward(images.permute(0, 3, 1, 2)).permute(0, 2, 3, 1)


class _Lstm(OneBiasLSTM):  # type: ignore[misc]
    """LSTM with biases of zero, its gates i f g o, that returns its outputs."""

    def __init__(self, kernel: Array, recurrent: Array) -> None:
        super().__init__(kernel.shape[0], recurrent.shape[0])
        with torch.no_grad():
            for name, values in (*self.named_parameters(), *self.named_buffers()):
                if "bias" in name:
                    values.zero_()
            self.weight_ih_l0.copy_(torch.from_numpy(kernel.T))
            self.weight_hh_l0.copy_(torch.from_numpy(recurrent.T))

    def forward(self, sequences: Tensor) -> Tensor:
        return super().forward(sequences)[0]


def networks(weights: Mapping[str, tuple[Array, ...]], device: str) -> dict[str, nn.Module]:
    """Return networks of one operator each: `matmul`, `convolution`, `lstm`."""
    (matrix,) = weights["matmul"]
    product = nn.Linear(*matrix.shape, bias=False)
    product.weight = nn.Parameter(torch.from_numpy(matrix.T))
    layers: dict[str, nn.Module] = {
        "matmul": product,
        "convolution": _Convolution(*weights["convolution"]),
        "lstm": _Lstm(*weights["lstm"]),
    }
    return {name: layer.to(device).eval() for name, layer in layers.items()}


def output_types(network: nn.Module, compute: Callable[[], object]) -> list[str]:
    """Return the types of the outputs of all LSTMs of a network in a computation."""
    types: list[str] = []

    def record(_: nn.Module, __: object, outputs: tuple[Any, object]) -> None:
        values = (
            outputs[0] if isinstance(outputs[0], Tensor) else outputs[0].data
        )  # of packed sequences
        types.append(str(values.dtype).removeprefix("torch."))

    handles = [
        module.register_forward_hook(record)
        for module in network.modules()
        if isinstance(module, nn.LSTM)
    ]
    compute()
    for handle in handles:
        handle.remove()
    return types


def cycles_per_second() -> float:
    """Return the cycles of a sleeping kernel in a second, with the GPU's clock risen."""
    for _ in range(10):
        torch.cuda._sleep(CALIBRATION_CYCLES)
    seconds = [sleeping_seconds(CALIBRATION_CYCLES) for _ in range(5)]
    return CALIBRATION_CYCLES / sorted(seconds)[2]


def sleeping_seconds(cycles: int) -> float:
    """Time a sleeping kernel by the device's clock.

    Args:
        cycles: Of the GPU's clock.
    """
    before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    before.record()
    torch.cuda._sleep(cycles)
    after.record()
    after.synchronize()
    return float(before.elapsed_time(after)) / 1_000


def sleeping_step(cycles: int, host_seconds: float = 0.0) -> Callable[[], Tensor]:
    """Return a step that starts a sleeping kernel, then keeps the host busy."""
    loss = torch.zeros((), device="cuda")

    def step() -> Tensor:
        torch.cuda._sleep(cycles)
        _spin(host_seconds)
        return loss

    return step


def waiting_step(seconds: float, taken: list[float]) -> Callable[[], Tensor]:
    """Return a step of the CPU that takes at least so long; `taken` gets its seconds."""
    loss = torch.zeros(())

    def step() -> Tensor:
        began = time.perf_counter()
        _spin(seconds)
        taken.append(time.perf_counter() - began)
        return loss

    return step


def _spin(seconds: float) -> None:
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        pass


def allocate(size_bytes: int) -> Tensor:
    """Hold memory of the GPU.

    Args:
        size_bytes: Bytes that the array has.
    """
    return torch.empty(size_bytes, dtype=torch.uint8, device="cuda")


def free_bytes() -> int:
    """Return the free memory of the GPU.

    Returns:
        Bytes, as its driver counts them over all processes.
    """
    return int(torch.cuda.mem_get_info()[0])


def busy_step() -> Callable[[], None]:
    """Return a large product of matrices that waits for its result."""
    matrix = torch.ones(BUSY_SIDE, BUSY_SIDE, device="cuda") / BUSY_SIDE

    def step() -> None:
        torch.matmul(matrix, matrix)
        torch.cuda.synchronize()

    return step


def countable_work(device: str, side: int = SIDE) -> Callable[[Mark], None]:
    """Return a warm step of seven additions, three products and one copy."""
    matrix = torch.ones(side, side, device=device)
    # on the CPU PyTorch converts a number by a copy
    unit: Any = 1.0 if device == "cuda" else torch.ones_like(matrix)

    def work(mark: Mark) -> None:
        with mark():
            for _ in range(7):
                matrix + unit
            for _ in range(3):
                matrix @ matrix
            matrix.cpu() if device == "cuda" else matrix.clone()
        if device == "cuda":
            torch.cuda.synchronize()

    with torch.inference_mode():
        matrix @ matrix
        matrix + unit
    return work


def kernels_of_step(optimizer: torch.optim.Optimizer, device: str) -> dict[str, int]:
    """Return the kernels of an update, on the CPU the operators, by name; it needs gradients."""
    optimizer.step()  # makes its state
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if device == "cuda" else [])]
    with profile(activities=activities) as profiler:
        optimizer.step()
        if device == "cuda":
            torch.cuda.synchronize()
    device_type = DeviceType.CUDA if device == "cuda" else DeviceType.CPU
    names = (
        event.name
        for event in profiler.events()
        if event.device_type == device_type
        and not event.is_user_annotation
        and (device == "cuda" or event.name.startswith("aten::"))
    )
    return dict(sorted(Counter(names).items()))


def stock_adam(network: nn.Module, learning_rate: float) -> torch.optim.Optimizer:
    """Return PyTorch's Adam with its defaults.

    Args:
        network: Network whose weights it updates.
        learning_rate: Its only setting.
    """
    return torch.optim.Adam(network.parameters(), lr=learning_rate)
