"""OpenVINO's adapter."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import openvino

from models.contract import Array
from models.devices import CPU
from models.frameworks.exported import Runtime

# OpenVINO computes in bfloat16 where the CPU has instructions for it, unless it is told.
PRECISIONS = {"float32": "f32", "bfloat16": "bf16"}


class Adapter(Runtime):
    """OpenVINO on the CPU, one request after the other, each on all threads."""

    architecture, suffix, precisions = "pytorch", ".onnx", tuple(PRECISIONS)

    def _open(self, threads: int) -> None:
        self._core = openvino.Core()
        self._config = {
            "PERFORMANCE_HINT": "LATENCY",
            "INFERENCE_PRECISION_HINT": PRECISIONS[self.precision],
            "CPU_DENORMALS_OPTIMIZATION": True,  # as the frameworks do
            **({"INFERENCE_NUM_THREADS": threads} if threads else {}),
        }

    def versions(self) -> dict[str, str]:
        config = self._config
        return {
            "openvino": openvino.get_version(),
            "openvino_threads": str(config.get("INFERENCE_NUM_THREADS", "default")),
            "openvino_precision": str(config["INFERENCE_PRECISION_HINT"]),
            "openvino_performance_hint": str(config["PERFORMANCE_HINT"]),
        }

    def load(self, path: Path) -> Any:
        return self._core.compile_model(str(path), CPU.upper(), self._config).create_infer_request()

    def run(self, session: Any, inputs: tuple[Array, ...]) -> Array:
        # the inputs' memory is read, not copied; the outputs are the request's until its next run
        outputs = session.infer(inputs, share_inputs=True, share_outputs=True)
        return np.array(outputs[0])
