"""LiteRT on files of TensorFlow's networks. Importing this does not import it."""

from __future__ import annotations

from dataclasses import replace

from models.frameworks import Variant

_LITERT = Variant(
    architecture="keras",
    packages=("ai_edge_litert",),
    distributions=("ai-edge-litert", "keras", "tensorflow"),
    extra="litert",
    exported_from="tensorflow",
)
VARIANTS = {"litert": _LITERT, "litert+int8": replace(_LITERT, in_int8=True)}
