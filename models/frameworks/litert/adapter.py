"""LiteRT's adapter."""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path
from typing import Any

from ai_edge_litert.interpreter import Interpreter

from models.contract import Array
from models.frameworks.exported import Runtime


class Adapter(Runtime):
    """LiteRT on the CPU, with its kernels of XNNPACK; another size of a batch is planned anew."""

    architecture, suffix = "keras", ".tflite"

    def _open(self, threads: int) -> None:
        self._threads = threads or None

    def versions(self) -> dict[str, str]:
        threads = str(self._threads or "default")
        return {"litert": version("ai-edge-litert"), "litert_threads": threads}

    def load(self, path: Path) -> Any:
        interpreter = Interpreter(str(path), num_threads=self._threads)
        inputs = sorted(interpreter.get_input_details(), key=lambda each: each["name"])
        (output,) = interpreter.get_output_details()
        return interpreter, [each["index"] for each in inputs], output["index"], list[Any]()

    def run(self, session: Any, inputs: tuple[Array, ...]) -> Array:
        interpreter, indices, output, planned = session
        shapes = [array.shape for array in inputs]
        if planned != shapes:
            for index, shape in zip(indices, shapes, strict=True):
                interpreter.resize_tensor_input(index, shape)
            interpreter.allocate_tensors()
            planned[:] = shapes
        for index, array in zip(indices, inputs, strict=True):
            interpreter.set_tensor(index, array)
        interpreter.invoke()
        return interpreter.get_tensor(output)
