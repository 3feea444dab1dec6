"""Known work in PyTorch: single operators, sleeping kernels, allocations of a known size."""

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

SIDE = 4_096  # of a product that cuBLAS computes in one kernel: a smaller one may be split along its sum
CALIBRATION_CYCLES = 50_000_000
BUSY_SIDE = 8_192


def identity() -> dict[str, Any]:
    """Return what PyTorch knows of the device that it sees first, and its own versions."""
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


class _Product(nn.Module):  # type: ignore[misc]
    def __init__(self, matrix: Array) -> None:
        super().__init__()
        self.matrix = nn.Parameter(torch.from_numpy(matrix))

    def forward(self, inputs: Tensor) -> Tensor:
        return inputs @ self.matrix


class _Convolution(nn.Module):  # type: ignore[misc]
    """Images and outputs have their channels last."""

    def __init__(self, kernel: Array) -> None:
        super().__init__()
        self.kernel = nn.Parameter(torch.from_numpy(kernel).permute(3, 2, 0, 1).contiguous())

    def forward(self, images: Tensor) -> Tensor:
        return nn.functional.conv2d(
            images.permute(0, 3, 1, 2), self.kernel, padding="same"
        ).permute(0, 2, 3, 1)


class _Lstm(nn.Module):  # type: ignore[misc]
    """The layer of all networks here, its biases zero."""

    def __init__(self, kernel: Array, recurrent: Array) -> None:
        super().__init__()
        self.lstm = OneBiasLSTM(kernel.shape[0], recurrent.shape[0])
        with torch.no_grad():
            for name, weights in (("weight_ih_l0", kernel.T), ("weight_hh_l0", recurrent.T)):
                getattr(self.lstm, name).copy_(torch.from_numpy(weights))
            for name, values in (*self.lstm.named_parameters(), *self.lstm.named_buffers()):
                if "bias" in name:
                    values.zero_()

    def forward(self, sequences: Tensor) -> Tensor:
        outputs: Tensor = self.lstm(sequences)[0]
        return outputs


def networks(weights: Mapping[str, tuple[Array, ...]], device: str) -> dict[str, nn.Module]:
    """Return networks of one operator each: `matmul`, `convolution` (kernel HWIO), `lstm` (gates i f g o)."""
    built: dict[str, nn.Module] = {
        "matmul": _Product(*weights["matmul"]),
        "convolution": _Convolution(*weights["convolution"]),
        "lstm": _Lstm(*weights["lstm"]),
    }
    return {name: network.to(device).eval() for name, network in built.items()}


def output_types(network: nn.Module, compute: Callable[[], object]) -> list[str]:
    """Return the types of what every LSTM of a network returns while something is computed."""
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
    """Return how many cycles a sleeping kernel counts a second, the clock of the GPU having risen."""
    for _ in range(10):
        torch.cuda._sleep(CALIBRATION_CYCLES)
    seconds = [sleeping_seconds(CALIBRATION_CYCLES) for _ in range(5)]
    return CALIBRATION_CYCLES / sorted(seconds)[2]


def sleeping_seconds(cycles: int) -> float:
    """Return how long a sleeping kernel takes by the device's own clock."""
    before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    before.record()
    torch.cuda._sleep(cycles)
    after.record()
    after.synchronize()
    return float(before.elapsed_time(after)) / 1_000


def sleeping_step(cycles: int, host_seconds: float = 0.0) -> Callable[[], Tensor]:
    """Return a step that starts a sleeping kernel, then keeps the host busy; its loss is on the device."""
    loss = torch.zeros((), device="cuda")

    def step() -> Tensor:
        torch.cuda._sleep(cycles)
        _spin(host_seconds)
        return loss

    return step


def waiting_step(seconds: float, taken: list[float]) -> Callable[[], Tensor]:
    """Return a step of the CPU, which takes so long, or longer beside other programs; `taken` gets how long."""
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
    """Return memory of the device."""
    return torch.empty(size_bytes, dtype=torch.uint8, device="cuda")


def free_bytes() -> int:
    """Return what is free on the device, whoever uses the rest."""
    return int(torch.cuda.mem_get_info()[0])


def busy_step() -> Callable[[], None]:
    """Return a large product of matrices, which waits for its result."""
    matrix = torch.ones(BUSY_SIDE, BUSY_SIDE, device="cuda") / BUSY_SIDE

    def step() -> None:
        torch.matmul(matrix, matrix)
        torch.cuda.synchronize()

    return step


def countable_work(device: str, side: int = SIDE) -> Callable[[Mark], None]:
    """Return one step of seven additions, three products and one copy, which has been run once."""
    matrix = torch.ones(side, side, device=device)
    # on the CPU PyTorch converts a number by a copy of its own
    one: Any = 1.0 if device == "cuda" else torch.ones_like(matrix)

    def work(mark: Mark) -> None:
        with mark():
            for _ in range(7):
                matrix + one
            for _ in range(3):
                matrix @ matrix
            matrix.cpu() if device == "cuda" else matrix.clone()
        if device == "cuda":
            torch.cuda.synchronize()

    with torch.inference_mode():
        matrix @ matrix
        matrix + one
    return work


def kernels_of_step(optimizer: torch.optim.Optimizer, device: str) -> dict[str, int]:
    """Return the kernels of one update, by name; on the CPU the operators. Gradients must be there."""
    optimizer.step()  # makes its state
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if device == "cuda" else [])]
    with profile(activities=activities) as profiler:
        optimizer.step()
        if device == "cuda":
            torch.cuda.synchronize()
    wanted = DeviceType.CUDA if device == "cuda" else DeviceType.CPU
    names = (
        event.name
        for event in profiler.events()
        if event.device_type == wanted
        and not event.is_user_annotation
        and (device == "cuda" or event.name.startswith("aten::"))
    )
    return dict(sorted(Counter(names).items()))


def stock_adam(network: nn.Module, learning_rate: float) -> torch.optim.Optimizer:
    """Return PyTorch's Adam as it comes."""
    return torch.optim.Adam(network.parameters(), lr=learning_rate)


def event_seconds(step: Callable[[], object], count: int, warmup: int) -> list[float]:
    """Return how long each step took by CUDA events around it, those of the warm-up left out."""
    seconds = []
    for _ in range(warmup + count):
        before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        before.record()
        step()
        after.record()
        after.synchronize()
        seconds.append(float(before.elapsed_time(after)) / 1_000)
    return seconds[warmup:]
