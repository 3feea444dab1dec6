"""Export of TensorFlow's networks for runtimes."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from models.contract import Array

if TYPE_CHECKING:
    from models.frameworks.exported import Export, ExportJob


def write_tflite(job: ExportJob) -> None:
    """Write a network for LiteRT."""
    import keras
    import tensorflow as tf

    infer, signature = _exportable(job)
    with tempfile.TemporaryDirectory() as folder:
        archive = keras.export.ExportArchive()
        archive.track(job.network)  # or the file has no weights
        archive.add_endpoint("serve", infer, input_signature=signature)
        archive.write_out(folder, verbose=False)
        converter = tf.lite.TFLiteConverter.from_saved_model(folder)
        if job.in_int8:
            converter.optimizations = [tf.lite.Optimize.DEFAULT]
        job.path.write_bytes(converter.convert())


def write_onnx(job: ExportJob) -> None:
    """Write a network as ONNX, whose images are (n, height, width, channels)."""
    import tensorflow as tf
    import tf2onnx

    from models.frameworks.exported import round_onnx

    infer, signature = _exportable(job)
    compiled = tf.function(infer, input_signature=signature, autograph=False)
    tf2onnx.convert.from_function(compiled, signature, output_path=str(job.path))
    if job.in_int8:
        round_onnx(job.path)


def _exportable(job: ExportJob) -> tuple[Callable[..., Any], list[Any]]:
    """Return a function of the inputs, and their shapes and types."""
    import tensorflow as tf

    signature = [
        tf.TensorSpec(
            [None if axis in axes else size for axis, size in enumerate(array.shape)],
            array.dtype,
            name=f"input_{number}",  # the order of a TensorFlow Lite file is another
        )
        for number, (axes, array) in enumerate(zip(job.free_axes, job.inputs, strict=True))
    ]

    def infer(*arrays: Any) -> Any:
        return job.network(arrays if len(arrays) > 1 else arrays[0], training=False)

    return infer, signature


WRITERS = {".onnx": write_onnx, ".tflite": write_tflite}


def first_difference(export: Export, path: Path) -> str:
    """Return the first constant of a file that another export has otherwise; empty if none."""
    from models.frameworks.exported import first_difference_of_onnx

    with tempfile.TemporaryDirectory() as folder:
        other = Path(folder, path.name)
        export.write(other)
        if path.suffix == ".onnx":
            return first_difference_of_onnx(path, other)
        left, right = _constants(path), _constants(other)
    for name, array in right.items():
        if name not in left or not np.array_equal(left[name], array):
            return name
    return ""


def _constants(path: Path) -> dict[str, Array]:
    from ai_edge_litert.interpreter import Interpreter

    interpreter, constants = Interpreter(str(path)), dict[str, Array]()
    for each in interpreter.get_tensor_details():
        try:
            constants[each["name"]] = interpreter.get_tensor(each["index"])
        except ValueError:  # computed: there is no value yet
            continue
    return constants
