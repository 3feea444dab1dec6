"""Loop of ONNX Runtime's documentation: the runtime and the file, and no part of this tool.

Source: "Get started with ONNX Runtime in Python"; onnxruntime.ai/docs.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnxruntime

from models.contract import Array, Weights


class Plain:
    def __init__(self, file: Path, _: Weights, images: Array, labels: Array, device: str) -> None:
        # images: float32 (n, height, width, channels); the file's are channels first
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        self._session = onnxruntime.InferenceSession(
            file, options, providers=["CPUExecutionProvider"]
        )
        self._images = np.ascontiguousarray(images.transpose(0, 3, 1, 2))

    def requests(self) -> Callable[[], Array]:
        session, images = self._session, self._images
        name = session.get_inputs()[0].name
        return lambda: session.run(None, {name: images})[0]
