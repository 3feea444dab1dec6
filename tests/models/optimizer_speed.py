"""Whether our optimizers cost more than Keras' own: `python -m tests.models.optimizer_speed FRAMEWORK [MODEL …]`.

One update of all of a model's weights by our Adam and by Keras' own, in turns in one process; medians and their ratio.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np

import models
from models.contract import OptimizerConfig
from models.frameworks import open_framework
from tests.models.mirror_speed import ratio

THREADS = 2


def update(
    backend: str, optimizer: Any, gradients: list[Any], variables: list[Any]
) -> Callable[[], object]:
    """One step of the optimizer as the backend runs it, to its end."""
    if backend == "jax":
        return _jax_update(optimizer, gradients, variables)
    if backend == "torch":
        import torch

        return torch.no_grad()(lambda: optimizer.apply(gradients, variables))  # type: ignore[no-any-return]
    return lambda: optimizer.apply(gradients, variables)


def _jax_update(optimizer: Any, gradients: list[Any], variables: list[Any]) -> Callable[[], object]:
    import jax

    apply = jax.jit(optimizer.stateless_apply, donate_argnums=(0, 2))
    state = [
        [jax.numpy.array(one.value) for one in some] for some in (optimizer.variables, variables)
    ]

    def run() -> None:
        values, slots = apply(state[0], gradients, state[1])
        state[:] = jax.block_until_ready([list(slots), list(values)])

    return run


def main(name: str, *wanted: str) -> None:
    framework: Any = open_framework(
        name, device="cpu", threads=THREADS, precision="float32", seed=0
    )
    from keras import ops

    print(f"{name}, {THREADS} threads; variables, ours, Keras' own, their ratio")
    for model in wanted or ("resnet18", "mobilenet_v2"):
        variables = framework.build(model, models.spec(model).Spec()).trainable_variables
        rng = np.random.default_rng(0)
        gradients = [
            ops.convert_to_tensor(1e-3 * rng.standard_normal(one.shape, np.float32))
            for one in variables
        ]
        works = []
        for kind in ("adam", "adam-stock"):
            network = type(
                "Network", (), {"trainable_variables": variables, "compile": lambda *_, **__: None}
            )
            optimizer = framework.optimizer(network, OptimizerConfig(kind, 1e-3))
            works.append(update(framework.backend, optimizer, gradients, variables))
        ours, stock, times = ratio(*works)
        print(
            f"{model:16} {len(variables):4} {1e3 * ours:8.2f} ms {1e3 * stock:8.2f} ms   {times:.3f}",
            flush=True,
        )


if __name__ == "__main__":
    main(*sys.argv[1:])
