"""Cost of this harness over a framework's plain loop: `python -m tests.benchmarks.overhead NAME`.

Each process trains two networks with the same weights on the same batch, one in each loop, in turns
after every step and request: other programs slow both. Half of the processes build the harness's
network first, as the place in memory matters. Prints the ratio of each point, and of all points,
with its 95 % interval over processes; the exit code is 1 if the interval of a phase reaches above
1.02. A runtime has only requests. Of a process: medians over pairs, without the first quarter.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

import models
from experiments.cell.timing import Stopwatch
from experiments.comparison.statistics import estimates
from models import frameworks
from models.contract import Batch, OptimizerConfig
from models.layers import images
from tests import warm
from tests.models.children import run_python

RATE, CLASSES, SIDE = 1e-6, 10, 40
# Network, rows, pairs of steps: so many that each takes some seconds.
POINTS = (
    ("lenet", 1, 1_000),
    ("lenet", 32, 200),
    ("mobilenet_v2", 1, 80),
    ("mobilenet_v2", 32, 24),
    ("resnet18", 1, 60),
    ("resnet18", 32, 24),
)
PROCESSES, MOST = 8, 1.02


def ratios_of_process(framework: str, *point: object, first: str = "harness") -> dict[str, float]:
    """Return the time in the harness over that in the plain loop, of steps and of requests."""
    words = (framework, *map(str, point), first)
    module = ("-m", "tests.benchmarks.overhead")
    output = run_python(*module, *words, timeout=3_600, **warm.variables_of(framework)).stdout
    ratios: dict[str, float] = json.loads(output.splitlines()[-1])
    return ratios


def measure_all(framework: str) -> bool:
    """Print the ratios of all points; return whether the cost is at most 2 % on average."""
    phases = ("training", "requests") if framework in frameworks.trained() else ("requests",)
    logs: dict[str, list[list[float]]] = {phase: [] for phase in phases}
    for point in POINTS:
        processes = [
            ratios_of_process(framework, *point, first=first)
            for first in ["harness", "plain"] * (PROCESSES // 2)
        ]
        for phase, values in logs.items():
            values.append([float(np.log(ratios[phase])) for ratios in processes])
            print(
                framework, phase, *point, estimates.exponential(estimates.trimmed_mean(values[-1]))
            )
    means = {
        phase: estimates.exponential(estimates.trimmed_mean(np.mean(values, axis=0)))
        for phase, values in logs.items()
    }
    for phase, mean in means.items():
        print(framework, phase, mean)
    return all(mean.high <= MOST for mean in means.values())


def measure(name: str, model: str, rows: int, pairs: int, first: str) -> dict[str, float]:
    framework = frameworks.open_framework(
        name, device="cpu", threads=1, precision="float32", seed=0
    )
    module, rng = models.spec(model), np.random.default_rng(0)
    sizes = module.Spec(classes=CLASSES)
    weights = module.initial_weights(sizes, rng)
    side = sizes.only_side or SIDE
    batch = images.batch(sizes, side, rng, rows)
    is_runtime = name not in frameworks.trained()
    exported = Path(tempfile.gettempdir(), "evenhand-overhead", f"{model}-{side}-{CLASSES}")

    def build_network() -> Any:
        network = framework.build(model, sizes)
        framework.load_weights(network, weights)
        batches = module.inference_batches(sizes, np.random.default_rng(1), side)
        framework.deploy(network, batches, exported)
        return network

    def build_plain_loop() -> Any:
        network: Any = None
        if is_runtime:
            network = max(exported.glob("*.onnx"), key=lambda path: path.stat().st_mtime)
        else:
            network = models.load(model, framework.architecture).build(sizes)
        return import_module(f"tests.plain_loops.{name}").Plain(
            network, weights, batch.inputs[0], batch.targets, framework.device
        )

    if is_runtime:
        build_network()  # the file
    if first == "harness":
        network, plain = build_network(), build_plain_loop()
    else:
        plain, network = build_plain_loop(), build_network()
    placed, request = framework.place(batch), plain.requests()
    requests = [
        (_seconds(lambda: framework.infer(network, placed.inputs)), _seconds(request))
        for _ in range(pairs)
    ]
    if is_runtime:
        return {"requests": _ratio(requests)}
    steps = _train_in_turns(framework, network, placed, plain.steps(RATE), pairs)
    return {"training": _ratio(steps), "requests": _ratio(requests)}


def _train_in_turns(
    framework: Any, network: Any, batch: Batch, plain: Callable[[], float], pairs: int
) -> list[tuple[float, float]]:
    """Return the seconds of steps of both, the plain one where the harness waits for a batch."""
    plain_seconds: list[float] = []

    def batches() -> Iterator[Batch]:
        for _ in range(pairs):
            yield batch
            plain_seconds.append(_seconds(plain))

    watch = Stopwatch(lambda *_: None)
    optimizer = framework.optimizer(network, OptimizerConfig("adam-stock", RATE))
    framework.train_epoch(network, optimizer, batches(), watch)
    return list(zip(watch.seconds, plain_seconds, strict=True))


def _seconds(call: Callable[[], Any]) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def _ratio(pairs: list[tuple[float, float]]) -> float:
    """Return the median ratio of neighbouring steps; a ratio of medians would mix surroundings."""
    counted = np.array(pairs[len(pairs) // 4 :])
    return float(np.exp(np.median(np.log(counted[:, 0] / counted[:, 1]))))


if __name__ == "__main__":
    if len(sys.argv) == 2:
        sys.exit(not measure_all(sys.argv[1]))
    name, model, rows, pairs, first = sys.argv[1:]
    print(json.dumps(measure(name, model, int(rows), int(pairs), first)))
