"""Checks of a model: sizes, initial weights, equality in every framework."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from models import parity, spec


def check_sizes(model: str, expected: tuple[int, int]) -> None:
    """Check (trainable, non-trainable) parameters, and that the small version is no larger."""
    module = spec(model)
    small, _ = module.probe(np.random.default_rng(0))
    whole, _ = module.probe(np.random.default_rng(0), full=True)
    assert module.parameters(whole) == expected
    assert sum(prod(shape) for shape in module.shapes(whole).values()) == sum(expected)
    assert sum(module.parameters(small)) <= sum(expected)


def check_initial_weights(model: str) -> None:
    """Check shapes, types and values, which depend on the seed."""
    module = spec(model)
    small, _ = module.probe(np.random.default_rng(0))
    first, again, other = (
        module.initial_weights(small, np.random.default_rng(seed)) for seed in (1, 1, 2)
    )
    assert {name: array.shape for name, array in first.items()} == module.shapes(small)
    for name, array in first.items():
        assert array.dtype == np.float32, name
        assert np.isfinite(array).all(), name
        np.testing.assert_array_equal(array, again[name], err_msg=name)
    assert any(not np.array_equal(array, other[name]) for name, array in first.items())


def check_equality(model: str, frameworks: Sequence[str]) -> None:
    rows = parity.gate(parity.ParityRequest(model), frameworks)
    assert not [row for row in rows if not row.equal]
