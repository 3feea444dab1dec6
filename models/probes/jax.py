"""Calibrated work in JAX: chains of products, allocations."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

SIDE = 2_048


def chain_step(length: int) -> Callable[[], Any]:
    """Return a warm step of so many products one after the other."""
    import jax
    from jax import lax
    from jax import numpy as jnp

    matrix = jnp.eye(SIDE, dtype=jnp.float32)
    start = jnp.ones((SIDE, SIDE), jnp.float32)

    def chain(values: Any, factor: Any) -> Any:
        return lax.fori_loop(0, length, lambda _, product: product @ factor, values)[0, 0]

    compute = jax.jit(chain)

    def step() -> Any:
        return compute(start, matrix)

    step().block_until_ready()
    return step


def ready_seconds(step: Callable[[], Any]) -> float:
    """Time a step to the end of its work on the device.

    Args:
        step: Result of `chain_step`.
    """
    began = time.perf_counter()
    step().block_until_ready()
    return time.perf_counter() - began


def allocate(size_bytes: int) -> Any:
    """Hold memory of the device.

    Args:
        size_bytes: Bytes that the array has.
    """
    from jax import numpy as jnp

    return jnp.zeros(size_bytes, jnp.uint8).block_until_ready()
