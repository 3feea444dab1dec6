"""float64 where Keras networks ask for float32 whatever their weights are."""

from __future__ import annotations

from math import pi, sqrt
from typing import Any

import keras


def widen() -> None:
    """Compute in float64 what networks convert to float32 on purpose, until the process ends."""
    from keras.src.backend.common import dtypes

    dtypes.PYTHON_DTYPES_MAP["float32"] = "float64"
    if keras.config.backend() == "tensorflow":
        import tensorflow as tf

        tf.nn.gelu = _gelu  # TensorFlow's rounds its constants to float32


def _gelu(features: Any, approximate: bool = False, name: str | None = None) -> Any:
    import tensorflow as tf

    if approximate:
        inner = sqrt(2 / pi) * (features + 0.044715 * features**3)
        return 0.5 * features * (1 + tf.tanh(inner))
    return 0.5 * features * (1 + tf.math.erf(features / sqrt(2)))
