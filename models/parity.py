"""The gate: in float64, from the same weights, the same outputs, the same gradients, the same optimizer steps.

`python -m models.parity MODEL FRAMEWORK OUT.npz …` is the child that computes one side: one framework a process.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import numpy as np

import models
from models.contract import Array, ModelError, OptimizerConfig
from models.frameworks import missing, open_framework

# Relative L2 in float64. Equal networks were measured at 1e-15 to 4e-13 (forward, gradients) and 1e-13 to 2e-8 (five steps); one
# wrong epsilon at 2e-4, 9e-3 and 2e-7, because training with BatchNorm and Adam forgives scale: the limits lie between.
LIMITS = {"count": 0.0, "forward": 1e-10, "loss": 1e-10, "gradient": 1e-9, "step": 1e-8}
STEPS = 5
OPTIMIZERS = {
    "adam": OptimizerConfig("adam", 1e-3),
    "sgd": OptimizerConfig("sgd", 1e-2, momentum=0.9, weight_decay=1e-2),
    "adam-stock": OptimizerConfig("adam-stock", 1e-3),
}


@dataclass(frozen=True)
class Row:
    """One quantity of one framework against the reference: the worst of its tensors."""

    model: str
    framework: str
    reference: str
    quantity: str
    tensor: str
    error: float
    limit: float

    @property
    def equal(self) -> bool:
        return self.error <= self.limit


@dataclass(frozen=True)
class ParityRequest:
    """What both sides compute. optimizer: a name of `OPTIMIZERS`; full: the whole network instead of its small version."""

    model: str
    optimizer: str = "adam"
    full: bool = False
    seed: int = 0


def compute(asked: ParityRequest, framework: str, threads: int = 1) -> dict[str, Array]:
    """What the gate compares, by `quantity/tensor`: the model's probe with seeded weights.

    Running statistics after training are left out: PyTorch keeps the unbiased variance, Keras the biased one.
    """
    module = models.spec(asked.model)
    adapter = open_framework(framework, device="cpu", threads=threads, precision="float64", seed=asked.seed)
    rng = np.random.default_rng(asked.seed)
    spec, batch = module.probe(rng, full=asked.full)
    network = adapter.build(asked.model, spec)
    adapter.load_weights(network, _perturbed(module.initial_weights(spec, rng), rng))

    loss, total = adapter.evaluate(network, batch)
    gradients = adapter.gradients(network, batch)
    found = {
        "count/trainable, non-trainable": np.array(adapter.parameter_counts(network)),
        "forward/outputs": adapter.infer(network, batch.inputs),
        "loss/mean": np.array(loss / total),
        **{f"gradient/{name}": gradient for name, gradient in gradients.items()},
    }
    optimizer = adapter.optimizer(network, OPTIMIZERS[asked.optimizer])
    for _ in range(STEPS):
        adapter.train_step(network, optimizer, batch)
    adapter.synchronise()
    return found | {f"step/{name}": array for name, array in adapter.weights(network).items() if name in gradients}


def compare(reference: Mapping[str, Array], other: Mapping[str, Array]) -> dict[str, float]:
    """Relative L2 error of each array; infinite where one side lacks it, has another shape or is not finite."""
    return {name: _relative_l2(reference.get(name), other.get(name)) for name in sorted(reference.keys() | other.keys())}


def judge(model: str, reference: tuple[str, Mapping[str, Array]], other: tuple[str, Mapping[str, Array]]) -> list[Row]:
    """Two named results of `compute` -> a row a quantity, with the worst tensor in it."""
    errors = compare(reference[1], other[1])
    rows = []
    for quantity, limit in LIMITS.items():
        worst = max((name for name in errors if name.startswith(f"{quantity}/")), key=lambda name: errors[name])
        rows.append(Row(model, other[0], reference[0], quantity, worst.partition("/")[2], errors[worst], limit))
    return rows


def gate(
    asked: ParityRequest,
    frameworks: Sequence[str],
    *,
    at_once: int = 2,
    threads: int = 1,
    progress: Callable[[int, int], None] | None = None,
) -> list[Row]:
    """Every framework against the first, each in its own process, `at_once` of them; `progress(done, of)` after each.

    Raises ModelError when a framework is missing or its process fails; a difference is no error but a row that is not `equal`.
    """
    models.spec(asked.model)
    for name in frameworks:
        if reason := missing(name):
            raise ModelError(reason)
    done = count(1)

    def computed(name: str) -> dict[str, Array]:
        found = _computed(asked, name, threads)
        if progress:
            progress(next(done), len(frameworks))
        return found

    with ThreadPoolExecutor(at_once) as pool:
        results = list(zip(frameworks, pool.map(computed, frameworks), strict=True))
    return [row for other in results[1:] for row in judge(asked.model, results[0], other)]


def _computed(asked: ParityRequest, framework: str, threads: int) -> dict[str, Array]:
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "computed.npz"
        command = [sys.executable, "-m", "models.parity", asked.model, framework, str(out)]
        command += ["--optimizer", asked.optimizer, "--seed", str(asked.seed), "--threads", str(threads)]
        command += ["--full"] if asked.full else []
        done = subprocess.run(command, cwd=Path(__file__).parents[1], capture_output=True, text=True)
        if done.returncode:
            last = (done.stderr.strip().splitlines() or ["no message"])[-1]
            raise ModelError(f"parity of {asked.model}: {framework} exited with {done.returncode}: {last}")
        with np.load(out, allow_pickle=False) as arrays:
            return dict(arrays)


def _perturbed(weights: Mapping[str, Array], rng: np.random.Generator) -> dict[str, Array]:
    """Away from ones and zeros, where a fault could hide; variances stay positive."""
    moved = {}
    for name, array in weights.items():
        shift = 0 if name.endswith("running_var") else 0.1 * rng.standard_normal(array.shape)
        moved[name] = array * rng.uniform(0.5, 1.5, array.shape) + shift
    return moved


def _relative_l2(reference: Array | None, other: Array | None) -> float:
    if reference is None or other is None or reference.shape != other.shape or not np.isfinite(other).all():
        return float("inf")
    difference, size = np.linalg.norm(np.asarray(other - reference)), np.linalg.norm(reference)
    return float(difference / size) if size else float(difference)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("framework")
    parser.add_argument("out", type=Path)
    parser.add_argument("--optimizer", default="adam", choices=list(OPTIMIZERS))
    parser.add_argument("--full", action="store_true")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    asked = ParityRequest(options.model, options.optimizer, options.full, options.seed)
    try:
        computed = compute(asked, options.framework, options.threads)
    except ModelError as error:
        print(error, file=sys.stderr)
        return 2
    with options.out.open("wb") as file:
        np.savez(file, allow_pickle=False, **computed)
    return 0


if __name__ == "__main__":
    sys.exit(main())
