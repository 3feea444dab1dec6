"""ONNX Runtime on files of two frameworks' networks. Importing this does not import it."""

from __future__ import annotations

from dataclasses import replace

from models.frameworks import Variant

_OF_PYTORCH = Variant(
    architecture="pytorch",
    packages=("onnxruntime",),
    distributions=("onnxruntime", "onnx", "onnxscript", "torch", "torchvision"),
    extra="onnxruntime",
    exported_from="pytorch",
    export_packages=("onnx", "onnxscript"),
)
VARIANTS = {
    "onnxruntime": _OF_PYTORCH,
    "onnxruntime+int8": replace(_OF_PYTORCH, in_int8=True),
    "onnxruntime@tensorflow": replace(
        _OF_PYTORCH,
        architecture="keras",
        distributions=("onnxruntime", "onnx", "tf2onnx", "keras", "tensorflow"),
        exported_from="tensorflow",
        export_packages=("onnx", "tf2onnx"),
    ),
}
