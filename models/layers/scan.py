"""Loop over the steps of a sequence that a compiler sees once, on Keras' backends."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from keras import ops
from keras.backend import backend

from models.frameworks.tensorflow import operators


def outputs_of(step: Callable[[Any, Any], Any], first: Any, inputs: Any) -> Any:
    """Return the state after each step, stacked along the first axis.

    Args:
        step: Returns the next state of a state and one step's inputs.
        first: State before the first step.
        inputs: Arrays, nested, whose first axis is that of the steps.
    """
    if backend() == "tensorflow":  # XLA differentiates TensorFlow's scan, but not that of Keras
        return operators.scan(step, first, inputs)

    def both(state: Any, now: Any) -> tuple[Any, Any]:
        state = step(state, now)
        return state, state

    return ops.scan(both, first, inputs)[1]
