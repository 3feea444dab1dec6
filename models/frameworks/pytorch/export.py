"""Export of PyTorch's networks for runtimes."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from models.contract import Array

if TYPE_CHECKING:
    from models.frameworks.exported import Export

IMAGES = 4  # dimensions: (n, height, width, channels) in the contract


def write_onnx(
    network: Any,
    inputs: tuple[Array, ...],
    free_axes: Sequence[Sequence[int]],
    path: Path,
    *,
    in_int8: bool,
) -> None:
    """Write a network as ONNX, whose images are (n, channels, height, width).

    Args:
        network: PyTorch's, in evaluation mode.
        inputs: Example, with 2 or more along each free axis.
        free_axes: Of each input, axes of any size.
        path: File.
        in_int8: Whether products are computed in integers.
    """
    import torch

    from models.frameworks.exported import round_onnx

    module, examples, shapes = _exportable(network, inputs, free_axes)
    with torch.no_grad():
        program = torch.onnx.export(
            module, examples, dynamo=True, dynamic_shapes=shapes, verbose=False
        )
    program.save(path)
    if in_int8:
        round_onnx(path)


def write_package(
    network: Any,
    inputs: tuple[Array, ...],
    free_axes: Sequence[Sequence[int]],
    path: Path,
    *,
    in_int8: bool,
) -> None:
    """Compile a network into a package of AOTInductor, for any number of threads.

    Args:
        network: PyTorch's, in evaluation mode.
        inputs: Example, with 2 or more along each free axis.
        free_axes: Of each input, axes of any size.
        path: File.
        in_int8: Whether products are computed in integers.
    """
    import torch

    module, examples, shapes = _exportable(network, inputs, free_axes)
    with torch.no_grad():
        program = torch.export.export(module, examples, dynamic_shapes=shapes)
    torch._inductor.aoti_compile_and_package(
        program, package_path=str(path), inductor_configs={"cpp.dynamic_threads": True}
    )


def _exportable(
    network: Any, inputs: tuple[Array, ...], free_axes: Sequence[Sequence[int]]
) -> tuple[Any, tuple[Any, ...], Any]:
    """Return a network that gets images as its convolutions do, with examples and free shapes."""
    import torch
    from torch import Tensor, nn

    class ChannelsFirst(nn.Module):  # type: ignore[misc]
        """Network that gets images as its convolutions do: the two permutations cancel."""

        def __init__(self) -> None:
            super().__init__()
            self.network = network

        def forward(self, *inputs: Tensor) -> Tensor:
            return network(*(_channels_last(tensor) for tensor in inputs))

    examples = tuple(torch.from_numpy(_channels_first(array)) for array in inputs)
    # an error, not a constant, where the network has only one size
    free = tuple(
        {_place(axis, array): torch.export.Dim.DYNAMIC for axis in axes}
        for axes, array in zip(free_axes, inputs, strict=True)
    )
    return ChannelsFirst().eval(), examples, (free,)  # of the one variadic argument


WRITERS = {".onnx": write_onnx, ".pt2": write_package}


def first_difference(export: Export, path: Path) -> str:
    """Return the first weight of a file that another export has otherwise; empty if none.

    A package of machine code names no weights.
    """
    if path.suffix != ".onnx":
        return ""
    from models.frameworks.exported import first_difference_of_onnx

    with tempfile.TemporaryDirectory() as folder:
        other = Path(folder, path.name)
        export.write(other)
        return first_difference_of_onnx(path, other).removeprefix("network.")


def _channels_first(array: Array) -> Array:
    moved = array.transpose(0, 3, 1, 2) if array.ndim == IMAGES else array
    return np.ascontiguousarray(moved)


def _channels_last(tensor: Any) -> Any:
    return tensor.permute(0, 2, 3, 1) if tensor.ndim == IMAGES else tensor


def _place(axis: int, array: Array) -> int:
    """Return the axis in the file of an axis of the contract."""
    return (0, 2, 3, 1)[axis] if array.ndim == IMAGES else axis
