"""A loop over the steps of a sequence that a compiler sees once, on Keras' backends."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from keras import ops
from keras.backend import backend

from models.frameworks.tensorflow import operators


def outputs_of(step: Callable[[Any, Any], Any], first: Any, given: Any) -> Any:
    """The state after each step, stacked along the first axis; `step(state, one of given)` makes the next.

    given: arrays, nested, whose first axis is that of the steps.
    """
    if backend() == "tensorflow":  # XLA differentiates TensorFlow's scan, but not that of Keras
        return operators.scan(step, first, given)

    def both(state: Any, now: Any) -> tuple[Any, Any]:
        state = step(state, now)
        return state, state

    return ops.scan(both, first, given)[1]
