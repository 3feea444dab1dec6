"""Parity gate: in float64, from the same weights, the same function, training and dropout.

`python -m models.parity FRAMEWORK FOLDER JSON` computes one side in a separate process.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

import models
from models import frameworks, own
from models.contract import Array, Batch, ErrorCode, Framework, ModelError, OptimizerConfig, Weights
from models.devices import CPU
from models.errors import EvenhandError, last_lines
from models.frameworks import described, lean_import, missing, open_framework
from models.frameworks.exported import AGREEMENT
from models.frameworks.introspection import first_difference

STEPS, DROPPED_AFTER = 5, 3
# Values drawn of a layer that drops, and the probability that chance alone makes a measured share
# lie outside its interval.
DRAWS, CHANCE = 2**20, 1e-9
# A gradient of at most this share of the network's largest is zero but for rounding, if it is so on
# both sides. Those that are zero by the mathematics, of the bias of the keys in self-attention,
# were measured at 8e-22 to 3e-19; the smallest of the others of these networks at 1e-6.
ROUNDING = 1e-12
COMPUTED, PROGRESS_SECONDS = ".npz", 0.5
# Quantities of a runtime, and the key of the reason why it has no network.
INFERENCE, REASON = ("forward",), "reason"
LAYER = "layer/"  # prefix of values that are compared only to name a layer


@dataclass(frozen=True)
class Quantity:
    """Quantity that the gate compares, described by `what`.

    limit: of the relative L2 error; in_float32: if a side cannot compute in float64. None: the
    difference that chance explains.
    """

    limit: float | None
    in_float32: float | None
    what: str


# Equal networks were measured at 1e-16 to 2e-13 (forward, gradients) and 1e-16 to 1e-9 (five
# steps); one wrong epsilon at 2e-4, 9e-3 and 2e-7, because training with BatchNorm and Adam
# forgives scale: the limits lie between. Running statistics of equal networks were measured at
# 2e-15 to 3e-10, and a factor N / (N - 1) too many is 7e-6 at 6 images of 150 × 150.
# In float32, small equal networks with LSTMs: 3e-7 (forward), 3e-6 (gradients), 2e-4 (steps), 7e-6
# (statistics); with an operator whose gradient is wrong: 1.3 to 1.9, 2e-2 to 9e-2, 1e-1. Deep
# networks cannot be proven there.
QUANTITIES = {
    "count": Quantity(0.0, 0.0, "parameters, trainable and not"),
    "forward": Quantity(1e-10, 1e-5, "outputs, nothing dropped"),
    "loss": Quantity(1e-10, 1e-5, "the weighted mean loss"),
    "gradient": Quantity(1e-9, 1e-4, "the gradient of the loss by every trainable tensor"),
    "step": Quantity(
        1e-8,
        2e-3,
        f"every trainable tensor after {STEPS} optimizer steps, the rate a tenth after "
        f"{DROPPED_AFTER}",
    ),
    "statistics": Quantity(
        1e-6,
        1e-3,
        "running means and variances after these steps, the variances of a batch all taken as "
        "biased",
    ),
    "place": Quantity(1e-9, 1e-5, "what each layer that drops is given, in training mode"),
    "mask": Quantity(
        1e-10,
        1e-6,
        "what each of them multiplies by what it keeps, and the axes along which it drops whole "
        "slices",
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
    """Quantity of a framework against the reference.

    tensor: the worst of the `compared` tensors, layers or numbers. vanishing: the number of
    gradients that are zero but for rounding on both sides; their difference is relative to the
    largest. layer, behind: as `introspection.first_difference` returns them, if the outputs
    differ. device: of both sides. reason: why there is no such network in a runtime; empty if there
    is.
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
    device: str = CPU
    reason: str = ""

    @property
    def equal(self) -> bool:
        return self.error <= self.limit


@dataclass(frozen=True)
class Side:
    """Framework, with fields of the network's spec that only this side has.

    precision: float32 if there is no other. python: its interpreter; empty for this one.
    version: packages that tell this side from others of the same framework.
    """

    framework: str
    spec_fields: tuple[tuple[str, str], ...] = ()
    precision: str = "float64"
    python: str = ""
    version: str = ""

    @property
    def is_runtime(self) -> bool:
        return bool(described(self.framework).exported_from)

    @property
    def computes_in(self) -> str:
        """Precision of the gate; runtimes have no other than float32."""
        return "float32" if self.is_runtime else self.precision

    def __str__(self) -> str:
        precision = [] if self.precision == "float64" else [self.precision]
        fields = [f"{name}={value}" for name, value in self.spec_fields]
        version = [self.version] if self.version else []
        return ", ".join([self.framework, *version, *fields, *precision])


@dataclass(frozen=True)
class ParityRequest:
    """Computation of both sides.

    rules: of the optimizer steps. full: the whole network instead of its small version. device:
    a kind, on which frameworks run other code than on others.
    """

    model: str
    rules: tuple[OptimizerConfig, ...] = RULES["adam"]
    full: bool = False
    seed: int = 0
    device: str = CPU


def rule(name: str, momentum: float = 0.0, weight_decay: float = 0.0) -> OptimizerConfig:
    """Return a training's rule with the gate's learning rate.

    At a rate of 1e-9 no step would show a difference.

    Args:
        name: One of `OptimizerConfig.NAMES`.
        momentum: Of SGD.
        weight_decay: Of SGD.
    """
    return OptimizerConfig(name, RULES[name][0].learning_rate, momentum, weight_decay)


def side_of(side: str | Side) -> Side:
    """Return a side.

    Args:
        side: A side, or the name of a framework without anything of its own.
    """
    return Side(side) if isinstance(side, str) else side


def compute(request: ParityRequest, side: str | Side, threads: int = 1) -> dict[str, Array]:
    """Return the arrays of a side by `quantity/tensor`: of the probe with seeded weights."""
    module, side = models.spec(request.model), side_of(side)
    with lean_import(side.framework):
        adapter = open_framework(
            side.framework,
            device=request.device,
            threads=threads,
            precision=side.computes_in,
            seed=request.seed,
        )
    rng = np.random.default_rng(request.seed)
    spec, batch = module.probe(rng, full=request.full)
    spec_fields = {name: value for name, value in side.spec_fields if name in vars(spec)}
    spec = replace(spec, **spec_fields)
    network = adapter.build(request.model, spec)
    weights = _perturbed(module.initial_weights(spec, rng), rng)
    try:
        adapter.load_weights(network, weights)
    except ModelError as error:
        raise ModelError(
            ErrorCode.NOT_EQUAL, f"the network is not the one that spec.py describes: {error}"
        ) from None

    if side.is_runtime:
        return _inferred(adapter, network, module.inference_batches(spec, rng), batch)
    loss, total = adapter.evaluate(network, batch)
    gradients = adapter.gradients(network, batch)
    layers = adapter.layer_values(network, batch.inputs)
    arrays = {
        "count/trainable, non-trainable": np.array(adapter.parameter_counts(network)),
        "forward/outputs": adapter.infer(network, batch.inputs),
        "loss/mean": np.array(loss / total),
        **{f"gradient/{name}": gradient for name, gradient in gradients.items()},
        **{f"{LAYER}{path}": values for path, values in layers.items()},
        **_dropped(adapter, network, batch),  # moves running statistics: the last
    }
    adapter.drop_nothing(network)
    for config in request.rules:
        options = {"momentum": config.momentum, "weight decay": config.weight_decay}
        texts = [f"{name} {value:g}" for name, value in options.items() if value]
        suffix = f" by {', '.join([config.name, *texts])}"
        for name, array in _trained(adapter, network, weights, batch, config).items():
            quantity = "step" if name in gradients else "statistics"
            arrays[f"{quantity}/{name}{suffix}"] = array
    return arrays


def judge(
    model: str,
    reference: tuple[str, Mapping[str, Array]],
    other: tuple[str, Mapping[str, Array]],
    precision: str = "float64",
    only: Sequence[str] = tuple(QUANTITIES),
) -> list[Row]:
    """Return a row for each quantity, with its worst tensor; without any, an error of 0.

    Args:
        model: its name.
        reference: name of a side and its result of `compute`.
        other: the same of the other side.
        precision: the lower one of the two sides.
        only: the quantities that both sides compute.
    """
    (reference_name, left), (other_name, right) = reference, other
    vanishing = _vanishing(left, right)
    if reason := next((str(side[REASON]) for side in (left, right) if REASON in side), ""):
        return [Row(model, other_name, reference_name, only[0], "", 0.0, 0.0, 0, reason=reason)]
    rows = []
    for quantity in only:
        description = QUANTITIES[quantity]
        names = [
            name for name in sorted(left.keys() | right.keys()) if name.startswith(f"{quantity}/")
        ]
        limit = description.limit if precision == "float64" else description.in_float32
        results: dict[str, tuple[float, float]] = {}
        for name in names:
            if limit is None:
                results[name] = _compare_rates(left.get(name), right.get(name))
            else:
                error = vanishing.get(name, _relative_l2(left.get(name), right.get(name)))
                results[name] = error, limit
        worst = max(results, key=lambda name: results[name][0] - results[name][1], default="")
        row = Row(
            model,
            other_name,
            reference_name,
            quantity,
            worst.partition("/")[2],
            *results.get(worst, (0.0, 0.0)),
            compared=len(names),
            vanishing=len(vanishing.keys() & names),
        )
        if quantity == "forward" and not row.equal:
            layer, behind = first_difference(layers_of(left), layers_of(right), row.limit)
            row = replace(row, layer=layer, behind=behind)
        rows.append(row)
    return rows


def layers_of(arrays: Mapping[str, Array]) -> dict[str, Array]:
    """Return the fingerprints among the arrays of a side.

    Returns:
        By path of the layer, (calls, 3).
    """
    names = (name for name in arrays if name.startswith(LAYER))
    return {name.removeprefix(LAYER): arrays[name] for name in names}


def gate(
    requests: Sequence[ParityRequest],
    sides: Sequence[str | Side],
    *,
    at_once: int = 2,
    threads: int = 1,
    progress: Callable[[int, int], None] | None = None,
    environment: Mapping[str, str] | None = None,
) -> list[Row]:
    """Compare each side with the first; one process of each side computes all requests.

    Args:
        requests: computations of each side.
        sides: the reference, then the others.
        at_once: number of processes.
        threads: of each process.
        progress: called twice a second as `progress(done, total)`, of computations.
        environment: of the processes, such as the GPU that they use; by default this one's.

    Returns:
        Rows of each request for all sides but the first; a difference is a row that is not `equal`.

    Raises:
        ModelError: if a framework is missing or its process fails.
        EvenhandError: if a signal ends its process.
    """
    for request in requests:
        models.spec(request.model)
    all_sides = list(map(side_of, sides))
    for side in all_sides:
        if not side.python and (reason := missing(side.framework)):
            raise ModelError(ErrorCode.NOT_INSTALLED, reason)
    first, *others = all_sides
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(at_once) as pool:
        folders = [Path(folder, str(number)) for number in range(len(all_sides))]
        computing = [
            pool.submit(compute_in_process, requests, side, place, threads, environment)
            for side, place in zip(all_sides, folders, strict=True)
        ]
        while progress and wait(computing, timeout=PROGRESS_SECONDS).not_done:
            done = sum(1 for _ in Path(folder).glob(f"*/*{COMPUTED}"))
            progress(done, len(requests) * len(all_sides))
        reference, *results = [side.result() for side in computing]
    rows = list[Row]()
    for at, request in enumerate(requests):
        for side, result in zip(others, results, strict=True):
            is_float32 = "float32" in (first.computes_in, side.computes_in)
            precision = "float32" if is_float32 else "float64"
            pair = (str(first), reference[at]), (str(side), result[at])
            only = INFERENCE if first.is_runtime or side.is_runtime else tuple(QUANTITIES)
            judged = judge(request.model, *pair, precision, only)
            rows += [replace(row, device=request.device) for row in judged]
    return rows


def compute_in_process(
    requests: Sequence[ParityRequest],
    side: Side,
    folder: Path,
    threads: int = 1,
    environment: Mapping[str, str] | None = None,
) -> list[dict[str, Array]]:
    """Return the results of `compute` by a separate process, which writes them into a folder.

    Args:
        requests: computations on one device.
        side: that computes them.
        folder: is made, and gets a file of each result once it is computed.
        threads: of the process.
        environment: of the process; by default that of its device.

    Raises:
        ModelError: if it fails; its last frames are named.
        EvenhandError: if a signal ends it.
    """
    variables = environment or frameworks.environment_on(requests[0].device, os.environ)
    folder.mkdir()
    inputs = {"requests": list(map(asdict, requests)), "side": asdict(side), "threads": threads}
    python = side.python or sys.executable
    command = [python, "-m", "models.parity", side.framework, str(folder), json.dumps(inputs)]
    root = Path(__file__).parents[1]
    result = subprocess.run(command, cwd=root, env=variables, capture_output=True, text=True)
    arrays = list[dict[str, Array]]()
    for number, request in enumerate(requests, start=1):
        path = folder / f"{number}{COMPUTED}"
        has_failed = result.returncode and number == len(requests)
        # the user's code may end the process with exit code 0
        if has_failed or not path.is_file():
            kind = EvenhandError if result.returncode < 0 else ModelError  # a signal ended it
            raise kind(
                ErrorCode.CHILD_FAILED,
                f"parity of {request.model}: {side} exited with {result.returncode}: "
                f"{last_lines(result.stderr)}",
            )
        with np.load(path, allow_pickle=False) as loaded:
            arrays.append(dict(loaded))
    return arrays


def _inferred(
    adapter: Framework, network: Any, batches: Sequence[tuple[Array, ...]], batch: Batch
) -> dict[str, Array]:
    """Return the outputs of a runtime, or the reason why it has no such network."""
    try:
        with tempfile.TemporaryDirectory() as folder:
            metrics = adapter.deploy(network, batches, Path(folder))
    except ModelError as error:
        if error.code is not ErrorCode.NOT_EXPORTED:
            raise
        return {REASON: np.array(str(error))}
    if frameworks.described(adapter.name).in_int8:
        same = f"{metrics[AGREEMENT]:.0%} of its answers have the same largest output"
        return {REASON: np.array(f"{adapter.name} rounds to 8 bits: {same}")}
    return {"forward/outputs": adapter.infer(network, batch.inputs)}


def _trained(
    adapter: Framework, network: Any, weights: Weights, batch: Batch, config: OptimizerConfig
) -> Weights:
    """Return weights and running statistics after the steps.

    Running variances begin at zero: they then contain only those of the batches, and with them the
    factor N / (N - 1) of unbiased variances, which is removed.
    """
    unbiased = adapter.unbiased(network, batch.inputs)
    started = {name: array * (not name.endswith("running_var")) for name, array in weights.items()}
    adapter.load_weights(network, started)
    optimizer = adapter.optimizer(network, config)
    for step in range(STEPS):
        if step == DROPPED_AFTER:
            adapter.set_learning_rate(optimizer, config.learning_rate / 10)
        adapter.train_step(network, optimizer, batch)
    adapter.synchronise()
    trained = adapter.weights(network)
    for path, values in unbiased.items():
        trained[f"{path}.running_var"] = trained[f"{path}.running_var"] * (values - 1) / values
    return trained


def _dropped(adapter: Framework, network: Any, batch: Batch) -> dict[str, Array]:
    """Return place, mask and rate of each layer that drops in training."""
    arrays = {}
    for path, layer in adapter.dropping(network, batch.inputs, DRAWS).items():
        drawn = layer.mask.squeeze()  # one framework keeps axes of length 1 that another drops
        is_shared = [bool((drawn == drawn.take([0], axis)).all()) for axis in range(drawn.ndim)]
        independent = drawn[tuple(slice(1) if shared else slice(None) for shared in is_shared)]
        kept_values = independent[independent != 0]
        if kept_values.size == independent.size and (kept_values == 1).all():
            continue  # a rate of 0, which a framework may leave out
        extremes = kept_values.min(initial=np.inf), kept_values.max(initial=0)
        arrays[f"place/{path}"] = layer.inputs
        arrays[f"mask/{path}"] = np.array([*extremes, *is_shared])
        arrays[f"dropout/{path}"] = np.array(
            [independent.size - kept_values.size, independent.size]
        )
    return arrays


def _compare_rates(reference: Array | None, other: Array | None) -> tuple[float, float]:
    """Return the difference of two rates (dropped, drawn), and the largest one by chance.

    With the exact intervals of Clopper and Pearson (1934): beyond it they do not overlap.
    """
    from scipy.stats import binomtest

    if reference is None or other is None:
        return float("inf"), 0.0
    tests = sorted(
        (binomtest(int(dropped), int(drawn)) for dropped, drawn in (reference, other)),
        key=lambda test: test.statistic,
    )
    low, high = (test.proportion_ci(1 - CHANCE, "exact") for test in tests)
    less, more = (test.statistic for test in tests)
    return float(more - less), float((low.high - less) + (more - high.low))


def _perturbed(weights: Mapping[str, Array], rng: np.random.Generator) -> dict[str, Array]:
    """Move weights away from ones and zeros, which could hide a fault; variances stay positive.

    In proportion to each tensor: the same shift for all saturates the attention of a wide network,
    whose gradients then are only rounding.
    """
    moved = {}
    for name, array in weights.items():
        scale = float(array.std()) if np.ptp(array) else 1.0
        shift: Any = 0
        if not name.endswith("running_var"):
            shift = 0.1 * scale * rng.standard_normal(array.shape)
        moved[name] = array * rng.uniform(0.5, 1.5, array.shape) + shift
    return moved


def _vanishing(reference: Mapping[str, Array], other: Mapping[str, Array]) -> dict[str, float]:
    """Return the error of each gradient that is zero but for rounding on both sides.

    It is relative to the largest gradient of the network; relative to itself it would be chance.
    Steps need no such rule: Adam divides what rounding leaves by its epsilon, which is 1e10 times
    as large.
    """
    both = [name for name in reference.keys() & other.keys() if name.startswith("gradient/")]
    both = [name for name in both if reference[name].shape == other[name].shape]
    norms = np.array([[np.linalg.norm(side[name]) for name in both] for side in (reference, other)])
    largest = norms.max(axis=1, initial=0, keepdims=True)
    is_zero = (norms <= ROUNDING * largest).all(axis=0)
    distances = {
        name: np.linalg.norm(np.asarray(other[name] - reference[name]))
        for name in np.array(both)[is_zero].tolist()
    }
    return {name: float(distance / (largest[0, 0] or 1)) for name, distance in distances.items()}


def _relative_l2(reference: Array | None, other: Array | None) -> float:
    if reference is None or other is None or reference.shape != other.shape:
        return float("inf")
    if not np.isfinite(other).all():
        return float("inf")
    difference, size = np.linalg.norm(np.asarray(other - reference)), np.linalg.norm(reference)
    return float(difference / size) if size else float(difference)


def main(out: str, text: str) -> int:
    inputs = json.loads(text)
    side = Side(**inputs["side"])
    for number, values in enumerate(inputs["requests"], start=1):
        rules = tuple(OptimizerConfig(**rule) for rule in values.pop("rules"))
        request = ParityRequest(**values, rules=rules)
        try:
            arrays = compute(request, side, inputs["threads"])
        except ModelError as error:
            print(error, file=sys.stderr)
            return 2
        except Exception as error:
            if request.model not in own.folders():
                raise
            print(own.fault(request.model, error), file=sys.stderr)
            return 2
        path = Path(out, f"{number}{COMPUTED}")
        with path.with_suffix(".part").open("wb") as file:
            np.savez(file, allow_pickle=False, **arrays)
        path.with_suffix(".part").replace(path)
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[2:]))
