"""TensorFlow with our training step on Keras layers. Importing this does not import TensorFlow."""

from __future__ import annotations

from dataclasses import replace

from models.devices import KINDS
from models.frameworks import Variant
from models.frameworks.keras import COMPANY

_ANY = Variant(
    architecture="keras",
    packages=("keras", "tensorflow"),
    imports_if_there=COMPANY,
    distributions=("keras", "tensorflow"),
    extra="frameworks",
    has_pipeline=True,
)
_COMPILED = replace(_ANY, compiles=True)
_BY_XLA = replace(_COMPILED, by_xla=KINDS)
VARIANTS = {
    "tensorflow": _COMPILED,
    "tensorflow+eager": _ANY,
    "tensorflow+xla": _BY_XLA,
}
