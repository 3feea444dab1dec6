"""Export of PyTorch's networks for runtimes."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from models.contract import Array

if TYPE_CHECKING:
    from models.frameworks.exported import Export, ExportJob

IMAGES = 4  # dimensions: (n, height, width, channels) in the contract


def write_onnx(job: ExportJob) -> None:
    """Write a network as ONNX, whose images are (n, channels, height, width)."""
    import torch

    from models.frameworks.exported import round_onnx

    module, examples, shapes = _exportable(job)
    with torch.no_grad():
        program = torch.onnx.export(
            module, examples, dynamo=True, dynamic_shapes=shapes, verbose=False
        )
    program.save(job.path)
    if job.in_int8:
        round_onnx(job.path)


def write_package(job: ExportJob) -> None:
    """Compile a network into a package of AOTInductor, for any number of threads."""
    import torch

    module, examples, shapes = _exportable(job)
    with torch.no_grad():
        program = torch.export.export(module, examples, dynamic_shapes=shapes)
    torch._inductor.aoti_compile_and_package(
        program, package_path=str(job.path), inductor_configs={"cpp.dynamic_threads": True}
    )


def _exportable(job: ExportJob) -> tuple[Any, tuple[Any, ...], Any]:
    """Return a network that gets images as its convolutions do, with examples and free shapes."""
    import torch
    from torch import Tensor, nn

    class ChannelsFirst(nn.Module):  # type: ignore[misc]
        """Network that gets images as its convolutions do: the two permutations cancel."""

        def __init__(self) -> None:
            super().__init__()
            self.network = job.network

        def forward(self, *inputs: Tensor) -> Tensor:
            return self.network(*(_channels_last(tensor) for tensor in inputs))

    examples = tuple(torch.from_numpy(_channels_first(array)) for array in job.inputs)
    # an error, not a constant, where the network has only one size
    free = tuple(
        {_place(axis, array): torch.export.Dim.DYNAMIC for axis in axes}
        for axes, array in zip(job.free_axes, job.inputs, strict=True)
    )
    return ChannelsFirst().eval(), examples, (free,)  # of the one variadic argument


WRITERS = {".onnx": write_onnx, ".pt2": write_package}


def first_difference(export: Export, path: Path) -> str:
    """Return the first weight of a file that another export has otherwise; empty if none.

    A package is not compiled again: its weights are exchanged for the network's.
    """
    if path.suffix != ".onnx":
        return _first_repaired(export, path)
    from models.frameworks.exported import first_difference_of_onnx

    with tempfile.TemporaryDirectory() as folder:
        other = Path(folder, path.name)
        export.write(other)
        return first_difference_of_onnx(path, other).removeprefix("network.")


def _first_repaired(export: Export, path: Path) -> str:
    """Return the first weight of a package that changes its outputs when it gets the network's."""
    import torch

    package = torch._inductor.aoti_load_package(str(path))
    batches = [
        [torch.from_numpy(_channels_first(array)) for array in inputs] for inputs in export.batches
    ]

    def outputs() -> Array:
        return np.concatenate([package(*inputs).numpy().ravel() for inputs in batches])

    before = outputs()
    for constant in package.get_constant_fqns():
        name = constant.removeprefix("network.")
        if (weight := export.network.weights.get(name)) is None:
            continue
        package.load_constants({constant: torch.from_numpy(weight)}, check_full_update=False)
        if not np.array_equal(outputs(), before, equal_nan=True):
            return name
    return ""


def _channels_first(array: Array) -> Array:
    moved = array.transpose(0, 3, 1, 2) if array.ndim == IMAGES else array
    return np.ascontiguousarray(moved)


def _channels_last(tensor: Any) -> Any:
    return tensor.permute(0, 2, 3, 1) if tensor.ndim == IMAGES else tensor


def _place(axis: int, array: Array) -> int:
    """Return the axis in the file of an axis of the contract."""
    return (0, 2, 3, 1)[axis] if array.ndim == IMAGES else axis
