"""float64 where Keras networks ask for float32 whatever their weights are."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from math import pi, sqrt
from typing import Any

import keras


@cache
def widen() -> None:
    """Compute in float64 what networks convert to float32 on purpose, until the process ends."""
    from keras.src.backend.common import dtypes

    dtypes.PYTHON_DTYPES_MAP["float32"] = "float64"
    if keras.config.backend() == "tensorflow":
        import tensorflow as tf
        from keras.src.backend.tensorflow import core

        # both round constants to float32
        tf.nn.gelu, core.cast = _gelu, partial(_cast, core.cast)
    elif keras.config.backend() == "jax":
        import jax

        jax.nn.dot_product_attention = _attention  # JAX's computes the softmax in float32


def _cast(convert: Callable[[Any, str], Any], x: Any, dtype: str) -> Any:
    import tensorflow as tf

    dtype = keras.backend.standardize_dtype(dtype)
    return tf.constant(x, dtype) if type(x) is float and "float" in dtype else convert(x, dtype)


def _gelu(features: Any, approximate: bool = False, name: str | None = None) -> Any:
    import tensorflow as tf

    if approximate:
        inner = sqrt(2 / pi) * (features + 0.044715 * features**3)
        return 0.5 * features * (1 + tf.tanh(inner))
    return 0.5 * features * (1 + tf.math.erf(features / sqrt(2)))


def _attention(
    query: Any,
    key: Any,
    value: Any,
    bias: Any = None,
    mask: Any = None,
    *,
    scale: float | None = None,
    is_causal: bool = False,
    implementation: str | None = None,
) -> Any:
    """Return (n, queries, heads, width) for keys and values (n, keys, groups of heads, width)."""
    import jax
    from jax import numpy as jnp

    heads_of_a_group = query.shape[2] // key.shape[2]
    key, value = (jnp.repeat(each, heads_of_a_group, axis=2) for each in (key, value))
    logits = jnp.einsum("nqhw,nkhw->nhqk", query, key) * (
        query.shape[-1] ** -0.5 if scale is None else scale
    )
    logits = logits if bias is None else logits + bias
    is_seen = jnp.tri(query.shape[1], key.shape[1], dtype=bool) if is_causal else jnp.array(True)
    is_seen = is_seen if mask is None else is_seen & mask
    logits = jnp.where(is_seen, logits, jnp.finfo(logits.dtype).min)
    return jnp.einsum("nhqk,nkhw->nqhw", jax.nn.softmax(logits), value)
