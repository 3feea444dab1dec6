"""Keras on each of its backends. Importing this package does not import Keras."""

from __future__ import annotations

from models.devices import ACCELERATORS, KINDS
from models.frameworks import Variant

# Keras has wrappers for these, and draws with them; TensorFlow has a converter of JAX's functions.
# JAX needs SciPy itself.
COMPANY = ("IPython", "jax", "matplotlib", "pandas", "scipy", "sklearn")
# Keras asks objects that it copies (bidirectional layers) whether they are TensorFlow's.
ASKED_FOR = "tensorflow"

# With jit_compile="auto" Keras leaves XLA out if TensorFlow sees no GPU.
BY_XLA = {"tensorflow": tuple(ACCELERATORS), "jax": KINDS, "torch": ()}


def _on(
    backend: str, *distributions: str, extra: str = "frameworks", has_pipeline: bool = True
) -> Variant:
    needed = {"jax", "scipy"} if backend == "jax" else set()
    return Variant(
        architecture="keras",
        packages=("keras", backend),
        imports_if_there=tuple(package for package in COMPANY if package not in needed),
        looks_for=() if backend == ASKED_FOR else (ASKED_FOR,),
        distributions=("keras", *distributions),
        extra=extra,
        compiles=backend != "torch",
        by_xla=BY_XLA[backend],
        has_pipeline=has_pipeline,
    )


VARIANTS = {
    "keras-tensorflow": _on("tensorflow", "tensorflow"),
    "keras-torch": _on("torch", "torch", "torchvision"),
    "keras-jax": _on("jax", "jax", "jaxlib", extra="jax", has_pipeline=False),
}
