"""ONNX Runtime on files of PyTorch's networks. Importing this does not import it."""

from __future__ import annotations

from models.frameworks import Variant

VARIANTS = {
    "onnxruntime": Variant(
        architecture="pytorch",
        packages=("onnxruntime",),
        distributions=("onnxruntime", "onnx", "onnxscript", "torch", "torchvision"),
        extra="onnxruntime",
        exported_from="pytorch",
        export_packages=("onnx", "onnxscript"),
    )
}
