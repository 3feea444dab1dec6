"""What networks of sequences check of their sizes. NumPy only."""

from __future__ import annotations

from typing import Any

from models import lstms
from models.errors import ModelError


def check_sizes(model: str, spec: Any, **least: int) -> None:
    """Check the sizes of a spec against their least, its rate of dropout and its LSTM, if it has them.

    Raises ModelError naming the first that cannot be.
    """
    sizes = vars(spec)
    for name, smallest in least.items():
        if sizes[name] < smallest:
            raise ModelError(f"{model}: {name} must be at least {smallest}, not {sizes[name]}")
    if not 0 <= sizes.get("dropout", 0) < 1:
        raise ModelError(f"{model}: dropout must be in [0, 1), not {sizes['dropout']}")
    lstms.check(model, sizes.get("lstm", "layer"))
