"""Checks, lengths and weights that networks of sequences share. NumPy only."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from models import lstms
from models.contract import Array, Weights
from models.errors import ErrorCode, ModelError


def check_sizes(model: str, spec: Any, **least: int) -> None:
    """Check the sizes of a spec, its rate of dropout and its LSTM, if it has them.

    Raises:
        ModelError: One is not possible.
    """
    sizes = vars(spec)
    for name, smallest in least.items():
        if sizes[name] < smallest:
            raise ModelError(
                ErrorCode.INVALID_VALUE,
                f"{model}: {name} must be at least {smallest}, not {sizes[name]}",
            )
    if not 0 <= sizes.get("dropout", 0) < 1:
        raise ModelError(
            ErrorCode.INVALID_VALUE, f"{model}: dropout must be in [0, 1), not {sizes['dropout']}"
        )
    if (lstm := sizes.get("lstm", "layer")) not in lstms.IMPLEMENTATIONS:
        have = ", ".join(lstms.IMPLEMENTATIONS)
        raise ModelError(ErrorCode.UNKNOWN_NAME, f"{model}: no lstm {lstm!r}; have {have}")


def log_normal(
    rng: np.random.Generator, count: int, median: float, sigma: float, least: float, most: float
) -> Array:
    """Draw log-normal sizes between two bounds.

    Args:
        rng: Draws them.
        count: Number of sizes.
        median: Of the distribution without bounds.
        sigma: Standard deviation of the logarithm.
        least: Smaller ones become this.
        most: Larger ones become this.
    """
    return np.clip(median * np.exp(sigma * rng.standard_normal(count)), least, most)


def is_inside(lengths: Array, longest: int | None = None) -> Array:
    """Return which positions of padded rows lie inside their lengths.

    Args:
        lengths: Of the rows, (n,).
        longest: Positions of a row; None for the longest length.

    Returns:
        bool (n, longest).
    """
    return np.arange(longest or int(lengths.max())) < lengths[:, None]


def draw_weights(
    shapes: Mapping[str, tuple[int, ...]], draw: Callable[[str, tuple[int, ...]], Array]
) -> Weights:
    """Draw each array by its name and shape; norms begin as identities."""
    weights: Weights = {}
    for name, shape in shapes.items():
        if "norm" in name.lower():
            values: Array = np.full(shape, name.endswith((".weight", ".running_var")))
        else:
            values = draw(name, shape)
        weights[name] = values.astype(np.float32)
    return weights
