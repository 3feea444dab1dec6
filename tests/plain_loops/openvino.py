"""Loop of OpenVINO's documentation: the runtime and the file, and no part of this tool.

Source: "Integrate OpenVINO with Your Application"; docs.openvino.ai.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import openvino

from models.contract import Array, Weights


class Plain:
    def __init__(self, file: Path, _: Weights, images: Array, labels: Array, device: str) -> None:
        # images: float32 (n, height, width, channels); the file's are channels first
        config = {"INFERENCE_NUM_THREADS": 1, "INFERENCE_PRECISION_HINT": "f32"}
        config["PERFORMANCE_HINT"] = "LATENCY"
        self._model = openvino.compile_model(file, "CPU", config)
        self._images = np.ascontiguousarray(images.transpose(0, 3, 1, 2))

    def requests(self) -> Callable[[], Array]:
        request, images = self._model.create_infer_request(), self._images
        return lambda: request.infer([images], share_inputs=True)[0]
