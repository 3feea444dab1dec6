"""TensorFlow's scan."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def outputs_of(step: Callable[[Any, Any], Any], first: Any, given: Any) -> Any:
    """The state after each step for each of `given`, along their first axis."""
    import tensorflow as tf

    return tf.scan(step, given, first)
