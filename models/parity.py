"""The gate: in float64, from the same weights, the same function, the same training, the same that training drops.

`python -m models.parity FRAMEWORK OUT.npz JSON` is the child that computes one side: one framework a process.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np

import models
from models import frameworks, own
from models.contract import Array, Batch, Framework, ModelError, OptimizerConfig, Weights
from models.frameworks import lean_import, missing, open_framework
from models.layer_values import first_difference

STEPS, DROPPED_AFTER = 5, 3
# Values drawn of a layer that drops, and the probability at which chance makes a measured share of them lie outside its interval.
DRAWS, CHANCE = 2**20, 1e-9
# A gradient of at most this share of the network's largest is zero but for rounding, if it is so on both sides. Those that are
# zero by the mathematics, of the bias of the keys in self-attention, were measured at 8e-22 to 3e-19; the smallest of the
# others of these networks at 1e-6.
ROUNDING = 1e-12
LAYER = "layer/"  # what is compared only to name a layer


@dataclass(frozen=True)
class Quantity:
    """What the gate compares. limit: of the relative L2 error; in_float32: where a side cannot compute in float64.

    None: what chance explains.
    """

    limit: float | None
    in_float32: float | None
    what: str


# Equal networks were measured at 1e-16 to 2e-13 (forward, gradients) and 1e-16 to 1e-9 (five steps); one wrong epsilon at 2e-4,
# 9e-3 and 2e-7, because training with BatchNorm and Adam forgives scale: the limits lie between. Running statistics of equal
# networks were measured at 2e-15 to 3e-10, and a factor N / (N - 1) too many is 7e-6 at 6 images of 150 × 150.
# In float32, small networks with LSTMs, equal ones: 3e-7 (forward), 3e-6 (gradients), 2e-4 (steps), 7e-6 (statistics); with an
# operator whose gradient is wrong: 1.3 to 1.9, 2e-2 to 9e-2, 1e-1. Deep networks are not to be proven there.
QUANTITIES = {
    "count": Quantity(0.0, 0.0, "parameters, trainable and not"),
    "forward": Quantity(1e-10, 1e-5, "outputs, nothing dropped"),
    "loss": Quantity(1e-10, 1e-5, "the weighted mean loss"),
    "gradient": Quantity(1e-9, 1e-4, "the gradient of the loss by every trainable tensor"),
    "step": Quantity(
        1e-8,
        2e-3,
        f"every trainable tensor after {STEPS} optimizer steps, the rate a tenth after {DROPPED_AFTER}",
    ),
    "statistics": Quantity(
        1e-6,
        1e-3,
        "running means and variances after these steps, the variances of a batch all taken as biased",
    ),
    "place": Quantity(1e-9, 1e-5, "what each layer that drops is given, in training mode"),
    "mask": Quantity(
        1e-10,
        1e-6,
        "what each of them multiplies by what it keeps, and the axes along which it drops whole slices",
    ),
    "dropout": Quantity(
        None, None, f"the share that each of them drops, of {DRAWS:,} values drawn"
    ),
}
RULES = {
    "adam": (OptimizerConfig("adam", 1e-3),),
    "sgd": (
        OptimizerConfig("sgd", 3e-4),
        OptimizerConfig("sgd", 3e-4, momentum=0.9, weight_decay=1e-2),
    ),
    "adam-stock": (OptimizerConfig("adam-stock", 1e-3),),
}


@dataclass(frozen=True)
class Row:
    """One quantity of one framework against the reference: the worst of the `compared` tensors, layers or numbers.

    vanishing: of these, gradients that are zero but for rounding on both sides; their difference is relative to the largest.
    layer, behind: where the outputs differ, see `models.layer_values.first_difference`.
    device: that both sides computed on.
    """

    model: str
    framework: str
    reference: str
    quantity: str
    tensor: str
    error: float
    limit: float
    compared: int = 1
    vanishing: int = 0
    layer: str = ""
    behind: str = ""
    device: str = "cpu"

    @property
    def equal(self) -> bool:
        return self.error <= self.limit


@dataclass(frozen=True)
class Side:
    """Who computes: a framework, and what of the network's spec is its own, by name.

    precision: float32 where it has no other. python: the interpreter that it is installed for; empty: this one.
    """

    framework: str
    own: tuple[tuple[str, str], ...] = ()
    precision: str = "float64"
    python: str = ""

    def __str__(self) -> str:
        """`tensorflow`, or `tensorflow, lstm=block, float32`."""
        precision = [] if self.precision == "float64" else [self.precision]
        return ", ".join(
            [self.framework, *(f"{name}={value}" for name, value in self.own), *precision]
        )


@dataclass(frozen=True)
class ParityRequest:
    """What both sides compute.

    rules: how the steps are made; full: the whole network instead of its small version. device: `cpu` or
    `cuda`: on a GPU frameworks run other code than on the CPU.
    """

    model: str
    rules: tuple[OptimizerConfig, ...] = RULES["adam"]
    full: bool = False
    seed: int = 0
    device: str = "cpu"


def rule(name: str, momentum: float = 0.0, weight_decay: float = 0.0) -> OptimizerConfig:
    """The rule by which something trains, at a rate of the gate's own: at one of 1e-9 no step would show a difference."""
    return OptimizerConfig(name, RULES[name][0].learning_rate, momentum, weight_decay)


def compute(asked: ParityRequest, side: str | Side, threads: int = 1) -> dict[str, Array]:
    """What the gate compares, by `quantity/tensor`: the model's probe with seeded weights. side: a framework, or more of it."""
    module, side = models.spec(asked.model), side_of(side)
    with lean_import(side.framework):
        adapter = open_framework(
            side.framework,
            device=asked.device,
            threads=threads,
            precision=side.precision,
            seed=asked.seed,
        )
    rng = np.random.default_rng(asked.seed)
    spec, batch = module.probe(rng, full=asked.full)
    spec = replace(spec, **dict(side.own))
    network = adapter.build(asked.model, spec)
    weights = _perturbed(module.initial_weights(spec, rng), rng)
    try:
        adapter.load_weights(network, weights)
    except ModelError as error:
        raise ModelError(f"the network is not the one that spec.py describes: {error}") from None

    loss, total = adapter.evaluate(network, batch)
    gradients = adapter.gradients(network, batch)
    layers = adapter.layer_values(network, batch.inputs)
    found = {
        "count/trainable, non-trainable": np.array(adapter.parameter_counts(network)),
        "forward/outputs": adapter.infer(network, batch.inputs),
        "loss/mean": np.array(loss / total),
        **{f"gradient/{name}": gradient for name, gradient in gradients.items()},
        **{f"{LAYER}{path}": values for path, values in layers.items()},
        **_dropped(adapter, network, batch),  # moves running statistics: the last
    }
    adapter.drop_nothing(network)
    for one in asked.rules:
        trained = _trained(adapter, network, weights, batch, one)
        for name, array in trained.items():
            found[f"{'step' if name in gradients else 'statistics'}/{name} by {_told(one)}"] = array
    return found


def compare(reference: Mapping[str, Array], other: Mapping[str, Array]) -> dict[str, float]:
    """Relative L2 error of each array; infinite where one side lacks it, has another shape or is not finite."""
    return {
        name: _relative_l2(reference.get(name), other.get(name))
        for name in sorted(reference.keys() | other.keys())
    }


def judge(
    model: str,
    reference: tuple[str, Mapping[str, Array]],
    other: tuple[str, Mapping[str, Array]],
    precision: str = "float64",
) -> list[Row]:
    """Two named results of `compute` -> a row a quantity, with the worst tensor in it; of none, an error of 0.

    precision: the lower one of the two sides.
    """
    vanishing = _vanishing(reference[1], other[1])
    errors = compare(reference[1], other[1]) | vanishing
    rows = []
    for quantity, what in QUANTITIES.items():
        names = [name for name in errors if name.startswith(f"{quantity}/")]
        allowed = what.limit if precision == "float64" else what.in_float32
        if allowed is None:
            judged = {name: _rates(reference[1].get(name), other[1].get(name)) for name in names}
        else:
            judged = {name: (errors[name], allowed) for name in names}
        worst = max(judged, key=lambda name: judged[name][0] - judged[name][1], default="")
        error, limit = judged.get(worst, (0.0, 0.0))
        zeros = len(vanishing.keys() & names)
        tensor = worst.partition("/")[2]
        row = Row(model, other[0], reference[0], quantity, tensor, error, limit, len(names), zeros)
        if quantity == "forward" and not row.equal:
            layer, behind = first_difference(_layers(reference[1]), _layers(other[1]), limit)
            row = replace(row, layer=layer, behind=behind)
        rows.append(row)
    return rows


def _layers(computed: Mapping[str, Array]) -> dict[str, Array]:
    names = (name for name in computed if name.startswith(LAYER))
    return {name.removeprefix(LAYER): computed[name] for name in names}


def gate(
    asked: ParityRequest,
    sides: Sequence[str | Side],
    *,
    at_once: int = 2,
    threads: int = 1,
    progress: Callable[[int, int], None] | None = None,
    environment: Mapping[str, str] | None = None,
) -> list[Row]:
    """Every side against the first, each in its own process, `at_once` of them; `progress(done, of)` after each.

    environment: of these processes, such as names the GPU that they use; this one's if missing.
    Raises ModelError when a framework is missing or its process fails; a difference is no error but a row that is not `equal`.
    """
    models.spec(asked.model)
    every = list(map(side_of, sides))
    for side in every:
        if not side.python and (reason := missing(side.framework)):
            raise ModelError(reason)
    done = count(1)

    def computed(side: Side) -> dict[str, Array]:
        found = _computed(asked, side, threads, environment)
        if progress:
            progress(next(done), len(every))
        return found

    with ThreadPoolExecutor(at_once) as pool:
        results = list(pool.map(computed, every))
    (first, *others), (reference, *found) = every, results
    return [
        replace(row, device=asked.device)
        for side, result in zip(others, found, strict=True)
        for row in judge(
            asked.model,
            (str(first), reference),
            (str(side), result),
            "float32" if "float32" in (first.precision, side.precision) else "float64",
        )
    ]


def side_of(side: str | Side) -> Side:
    """A framework by its name is one without anything of its own."""
    return Side(side) if isinstance(side, str) else side


def _computed(
    asked: ParityRequest, side: Side, threads: int, environment: Mapping[str, str] | None
) -> dict[str, Array]:
    variables = environment or frameworks.environment_on(asked.device, os.environ)
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "computed.npz"
        given = json.dumps({"request": asdict(asked), "side": asdict(side), "threads": threads})
        command = [
            side.python or sys.executable,
            "-m",
            "models.parity",
            side.framework,
            str(out),
            given,
        ]
        root = Path(__file__).parents[1]
        done = subprocess.run(command, cwd=root, env=variables, capture_output=True, text=True)
        if (
            done.returncode or not out.is_file()
        ):  # code of the user's may end the process as if all were well
            last = (done.stderr.strip().splitlines() or ["no message"])[-1]
            raise ModelError(
                f"parity of {asked.model}: {side} exited with {done.returncode}: {last}"
            )
        with np.load(out, allow_pickle=False) as arrays:
            return dict(arrays)


def _trained(
    adapter: Framework, network: Any, weights: Weights, batch: Batch, one: OptimizerConfig
) -> Weights:
    """Weights and running statistics after the steps.

    Running variances begin at zero: all that is in them then came from the batches, and with it the factor N / (N - 1) of what
    is kept unbiased, which is taken out.
    """
    unbiased = adapter.unbiased(network, batch.inputs)
    adapter.load_weights(
        network,
        {name: array * (not name.endswith("running_var")) for name, array in weights.items()},
    )
    optimizer = adapter.optimizer(network, one)
    for step in range(STEPS):
        if step == DROPPED_AFTER:
            adapter.set_learning_rate(optimizer, one.learning_rate / 10)
        adapter.train_step(network, optimizer, batch)
    adapter.synchronise()
    trained = adapter.weights(network)
    for path, values in unbiased.items():
        trained[f"{path}.running_var"] = trained[f"{path}.running_var"] * (values - 1) / values
    return trained


def _dropped(adapter: Framework, network: Any, batch: Batch) -> dict[str, Array]:
    """What is measured of every layer at which training drops something."""
    found = {}
    for path, one in adapter.dropping(network, batch.inputs, DRAWS).items():
        drawn = one.drawn.squeeze()  # one framework keeps axes of length 1 that another has dropped
        shared = [bool((drawn == drawn.take([0], axis)).all()) for axis in range(drawn.ndim)]
        own = drawn[
            tuple(slice(1) if along else slice(None) for along in shared)
        ]  # drawn each for itself
        kept = own[own != 0]
        if kept.size == own.size and (kept == 1).all():
            continue  # a rate of 0, which a framework may as well leave out
        found[f"place/{path}"] = one.given
        found[f"mask/{path}"] = np.array([kept.min(initial=np.inf), kept.max(initial=0), *shared])
        found[f"dropout/{path}"] = np.array([own.size - kept.size, own.size])
    return found


def _rates(reference: Array | None, other: Array | None) -> tuple[float, float]:
    """Two counts (dropped, drawn) -> how far apart their shares are, and how far chance may bring equal ones.

    By the exact intervals of Clopper and Pearson (1934): beyond it they have nothing in common.
    """
    from scipy.stats import binomtest

    if reference is None or other is None:
        return float("inf"), 0.0
    shares, below, above = [], [], []
    for dropped, drawn in (reference, other):
        test = binomtest(int(dropped), int(drawn))
        interval = test.proportion_ci(1 - CHANCE, "exact")
        shares.append(test.statistic)
        below.append(test.statistic - interval.low)
        above.append(interval.high - test.statistic)
    less, more = np.argsort(shares, stable=True)
    return float(shares[more] - shares[less]), float(above[less] + below[more])


def _told(one: OptimizerConfig) -> str:
    """`sgd, momentum 0.9, weight decay 0.01`."""
    further = {"momentum": one.momentum, "weight decay": one.weight_decay}
    return ", ".join([one.name, *(f"{name} {value:g}" for name, value in further.items() if value)])


def _perturbed(weights: Mapping[str, Array], rng: np.random.Generator) -> dict[str, Array]:
    """Away from ones and zeros, where a fault could hide; variances stay positive.

    In proportion to each tensor: the same shift for all saturates the attention of a wide network, whose gradients then are
    rounding alone.
    """
    moved = {}
    for name, array in weights.items():
        scale = float(array.std()) if np.ptp(array) else 1.0
        shift = (
            0 if name.endswith("running_var") else 0.1 * scale * rng.standard_normal(array.shape)
        )
        moved[name] = array * rng.uniform(0.5, 1.5, array.shape) + shift
    return moved


def _vanishing(reference: Mapping[str, Array], other: Mapping[str, Array]) -> dict[str, float]:
    """Error of each gradient that is zero but for rounding on both sides, where one relative to itself would be chance.

    It is relative to the largest gradient of the network. Steps need no such rule: what rounding leaves, Adam divides by its
    epsilon, which is 1e10 times as large.
    """
    both = [name for name in reference.keys() & other.keys() if name.startswith("gradient/")]
    both = [name for name in both if reference[name].shape == other[name].shape]
    norms = np.array([[np.linalg.norm(side[name]) for name in both] for side in (reference, other)])
    largest = norms.max(axis=1, initial=0, keepdims=True)
    zero = (norms <= ROUNDING * largest).all(axis=0)
    apart = {
        name: np.linalg.norm(np.asarray(other[name] - reference[name]))
        for name in np.array(both)[zero].tolist()
    }
    return {name: float(distance / (largest[0, 0] or 1)) for name, distance in apart.items()}


def _relative_l2(reference: Array | None, other: Array | None) -> float:
    if (
        reference is None
        or other is None
        or reference.shape != other.shape
        or not np.isfinite(other).all()
    ):
        return float("inf")
    difference, size = np.linalg.norm(np.asarray(other - reference)), np.linalg.norm(reference)
    return float(difference / size) if size else float(difference)


def main(out: str, text: str) -> int:
    given = json.loads(text)
    rules = tuple(OptimizerConfig(**values) for values in given["request"].pop("rules"))
    request = ParityRequest(**given["request"], rules=rules)
    try:
        computed = compute(request, Side(**given["side"]), given["threads"])
    except ModelError as error:
        print(error, file=sys.stderr)
        return 2
    except Exception as error:
        if request.model not in own.folders():
            raise
        print(own.fault(request.model, error), file=sys.stderr)
        return 2
    with Path(out).open("wb") as file:
        np.savez(file, allow_pickle=False, **computed)
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[2:]))
