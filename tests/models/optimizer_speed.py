"""Cost of our optimizers: `python -m tests.models.optimizer_speed FRAMEWORK [MODEL …]`.

One update of all of a model's weights by our Adam and by Keras' own, in turns in one process;
medians and their ratio.
"""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import numpy as np

import models
from models.contract import OptimizerConfig
from models.frameworks import open_framework
from tests.models.mirror_speed import THREADS, Work, ratio


def update(backend: str, optimizer: Any, gradients: list[Any], variables: list[Any]) -> Work:
    """Return one step of the optimizer as the backend runs it, to its end."""
    if backend == "tensorflow":
        return lambda: optimizer.apply(gradients, variables)
    if backend == "torch":
        import torch

        without_gradients: Work = torch.no_grad()(lambda: optimizer.apply(gradients, variables))
        return without_gradients
    import jax

    apply = jax.jit(optimizer.stateless_apply, donate_argnums=(0, 2))
    state = [[jax.numpy.array(at.value) for at in of] for of in (optimizer.variables, variables)]

    def run() -> None:
        values, slots = apply(state[0], gradients, state[1])
        state[:] = jax.block_until_ready([list(slots), list(values)])

    return run


def main(name: str, *names: str) -> None:
    options = {"device": "cpu", "threads": THREADS, "precision": "float32", "seed": 0}
    framework: Any = open_framework(name, **options)  # type: ignore[arg-type]
    from keras import ops

    print(f"{name}, {THREADS} threads; variables, ours, Keras' own, their ratio")
    for model in names or ("resnet18", "mobilenet_v2"):
        variables = framework.build(model, models.spec(model).Spec()).trainable_variables
        rng = np.random.default_rng(0)
        drawn = [1e-3 * rng.standard_normal(at.shape, np.float32) for at in variables]
        gradients = [ops.convert_to_tensor(array) for array in drawn]
        network = SimpleNamespace(trainable_variables=variables, compile=lambda **_: None)
        optimizers = [
            framework.optimizer(network, OptimizerConfig(kind, 1e-3))
            for kind in ("adam", "adam-stock")
        ]
        works = [update(framework.backend, at, gradients, variables) for at in optimizers]
        ours, stock, times = ratio(*works)
        seconds = f"{1e3 * ours:8.2f} ms {1e3 * stock:8.2f} ms"
        print(f"{model:16} {len(variables):4} {seconds}   {times:.3f}", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
