"""OpenVINO on ONNX files of PyTorch's networks. Importing this does not import it."""

from __future__ import annotations

from dataclasses import replace

from models.frameworks.onnxruntime import VARIANTS as OF_ONNX

EXPORTERS = ("onnx", "onnxscript", "torch", "torchvision")
VARIANTS = {
    "openvino": replace(
        OF_ONNX["onnxruntime"],
        packages=("openvino",),
        distributions=("openvino", *EXPORTERS),
        extra="openvino",
        imports_if_there=("absl", "openvino_telemetry"),
    )
}
