"""ONNX Runtime's adapter."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnxruntime

from models.contract import Array
from models.frameworks.exported import Runtime


class Adapter(Runtime):
    """ONNX Runtime on the CPU, with all optimisations of the graph."""

    architecture, suffix = "pytorch", ".onnx"

    def _open(self, threads: int) -> None:
        self._options = onnxruntime.SessionOptions()
        self._options.intra_op_num_threads = threads
        self._options.inter_op_num_threads = 1
        # as the frameworks do
        self._options.add_session_config_entry("session.set_denormal_as_zero", "1")

    def versions(self) -> dict[str, str]:
        options = self._options
        return {
            "onnxruntime": onnxruntime.__version__,
            "onnxruntime_threads": str(options.intra_op_num_threads or "default"),
            "onnxruntime_inter_op_threads": str(options.inter_op_num_threads),
            "onnxruntime_graph_optimization": options.graph_optimization_level.name,
            "onnxruntime_providers": "CPUExecutionProvider",
        }

    def load(self, path: Path) -> Any:
        session = onnxruntime.InferenceSession(
            path, self._options, providers=["CPUExecutionProvider"]
        )
        return session, [each.name for each in session.get_inputs()]

    def run(self, session: Any, inputs: tuple[Array, ...]) -> Array:
        loaded, names = session
        return loaded.run(None, dict(zip(names, inputs, strict=True)))[0]
