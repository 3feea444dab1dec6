"""Known work of the acceptance kit, measured with the clock and the adapters of campaigns."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib import import_module
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

import models
from experiments.cell.timing import EVERY_STEP, Pace, Stopwatch
from models import frameworks
from models.contract import Array, Batch, Framework, ModelError, OptimizerConfig
from models.frameworks import lean_import, open_framework

Result = dict[str, Any]
MATMUL, IMAGES, SEQUENCES = 1_024, (8, 32, 32, 16), (16, 24, 64)
KERNEL, HIDDEN = (3, 3, 16, 32), 128
GIB = 2**30
FREE_BYTES = 300 * 10**6
RANDOM = 20_261_125


def opened(framework: str, device: str, precision: str = "float32") -> Framework:
    """Return a framework as a cell opens it."""
    with lean_import(framework):
        return open_framework(framework, device=device, threads=0, precision=precision, seed=0)


def raw(framework: str) -> Any:
    """Return the module with known work in a framework's library, which it imports."""
    name = {"keras-torch": "pytorch", "keras-jax": "jax"}.get(framework)
    return import_module(f"models.probes.{name or framework.partition('+')[0]}")


def identity(_: Connection) -> Result:
    facts: Result = raw("pytorch").identity()
    return facts


def device_of(_: Connection, *, framework: str) -> Result:
    """Return the device that `auto` is."""
    return {"device": opened(framework, "auto").device}


# ---- precision


def precision(_: Connection, *, framework: str, device: str, precision: str) -> Result:
    """Return the relative L2 error of each operator against float64."""
    adapter = opened(framework, device, precision)
    weights, inputs = operands()
    built = _networks(adapter, weights, inputs)
    expected = references(weights, inputs)
    errors = {}
    for name, network in built.items():
        values = np.asarray(adapter.infer(network, (inputs[name],)), np.float64)
        errors[name] = float(
            np.linalg.norm(values - expected[name]) / np.linalg.norm(expected[name])
        )
    return {"errors": errors, "switches": adapter.versions()}


def operands() -> tuple[dict[str, tuple[Array, ...]], dict[str, Array]]:
    """Return the weights and the inputs of `matmul`, `convolution` and `lstm`, in float32."""
    rng = np.random.default_rng(RANDOM)

    def draw(*shape: int, scale: float = 1.0) -> Array:
        return (scale * rng.standard_normal(shape)).astype(np.float32)

    features = SEQUENCES[-1]
    weights: dict[str, tuple[Array, ...]] = {
        "matmul": (draw(MATMUL, MATMUL),),
        "convolution": (draw(*KERNEL),),
        "lstm": (
            draw(features, 4 * HIDDEN, scale=features**-0.5),
            draw(HIDDEN, 4 * HIDDEN, scale=HIDDEN**-0.5),
        ),
    }
    return weights, {
        "matmul": draw(MATMUL, MATMUL),
        "convolution": draw(*IMAGES),
        "lstm": draw(*SEQUENCES),
    }


def references(
    weights: Mapping[str, tuple[Array, ...]], inputs: Mapping[str, Array]
) -> dict[str, Array]:
    """Return what the operators compute, in float64 with NumPy."""
    functions: dict[str, Callable[..., Array]] = {
        "matmul": np.matmul,
        "convolution": _convolution,
        "lstm": _lstm,
    }
    return {
        name: function(
            inputs[name].astype(np.float64), *(w.astype(np.float64) for w in weights[name])
        )
        for name, function in functions.items()
    }


def _convolution(images: Array, kernel: Array) -> Array:
    height, width = images.shape[1:3]
    padded = np.pad(images, ((0, 0), (1, 1), (1, 1), (0, 0)))
    total = np.zeros((*images.shape[:3], kernel.shape[3]))
    for row in range(kernel.shape[0]):
        for column in range(kernel.shape[1]):
            total += padded[:, row : row + height, column : column + width] @ kernel[row, column]
    return total


def _lstm(sequences: Array, kernel: Array, recurrent: Array) -> Array:
    """Gates in the order i f g o (Hochreiter & Schmidhuber 1997, with forget gates)."""
    state, cell = (np.zeros((len(sequences), recurrent.shape[0])) for _ in range(2))
    outputs = []
    for step in range(sequences.shape[1]):
        gates = np.split(sequences[:, step] @ kernel + state @ recurrent, 4, axis=1)
        enter, forget, leave = (1 / (1 + np.exp(-gates[index])) for index in (0, 1, 3))
        cell = forget * cell + enter * np.tanh(gates[2])
        state = leave * np.tanh(cell)
        outputs.append(state)
    return np.stack(outputs, 1)


def _networks(
    adapter: Framework, weights: Mapping[str, tuple[Array, ...]], inputs: Mapping[str, Array]
) -> dict[str, Any]:
    shapes = {name: array.shape for name, array in inputs.items()}
    built: dict[str, Any]
    if adapter.architecture == "pytorch":
        built = raw("pytorch").networks(weights, adapter.device)
    else:
        built = raw("keras").networks(weights, shapes)
    return built


def lstm_type(_: Connection, *, framework: str, device: str) -> Result:
    """Return the types that an LSTM returns under bfloat16, or why a framework refuses them."""
    weights, inputs = operands()
    try:
        adapter = opened(framework, device, "bfloat16")
        network = _networks(adapter, weights, inputs)["lstm"]
        if adapter.architecture != "pytorch":
            return {"types": [raw("keras").output_type(network, inputs["lstm"])]}
        infer = partial(adapter.infer, network, (inputs["lstm"],))
        return {"types": sorted(set(raw("pytorch").output_types(network, infer)))}
    except ModelError as error:
        return {"refused": str(error)}


# ---- the clock


def step_times(_: Connection, *, framework: str, device: str, steps: int = 30) -> Result:
    """Return the median steps of known work and of four times that, also by the device's clock."""
    adapter, library, sizes = opened(framework, device), raw(framework), ("once", "four times")
    if framework == "keras-jax":
        counts = (40, 160)
        steps_of, seconds_of = library.chain_step, library.ready_seconds
        work = {size: steps_of(count) for size, count in zip(sizes, counts, strict=True)}
        timed: dict[str, Any] = dict(work)
    else:
        cycles = round(0.005 * library.cycles_per_second())
        counts = (cycles, 4 * cycles)
        steps_of, seconds_of = library.sleeping_step, library.sleeping_seconds
        work = {size: steps_of(count) for size, count in zip(sizes, counts, strict=True)}
        timed = dict(zip(sizes, counts, strict=True))
    step_seconds = {
        size: float(np.median([seconds_of(argument) for _ in range(steps)]))
        for size, argument in timed.items()
    }
    watches = {size: Stopwatch(lambda *_: None, pace=EVERY_STEP) for size in sizes}
    for _turn in range(steps):  # in turns, for the clock of the device may move
        for size, step in work.items():
            train(adapter, step, 1, watches[size])
    return {
        "steps": {size: float(np.median(watch.seconds)) for size, watch in watches.items()},
        "device": step_seconds,
    }


def train(adapter: Framework, step: Callable[[], Any], count: int, watch: Stopwatch) -> None:
    """Make steps of known work in the loop that every adapter inherits."""
    batch = Batch((np.zeros((1, 1), np.float32),), np.zeros(1, np.int32), np.ones(1, np.float32))
    adapter.train_step = lambda *_: step()  # type: ignore[method-assign]
    Framework.train_epoch(adapter, None, None, (batch for _ in range(count)), watch)


def free_running(
    _: Connection, *, device: str, pairs: Sequence[tuple[float, float]], windows: int = 6
) -> Result:
    """Return windows of ten steps that occupy device and host for known seconds (a pair)."""
    adapter, library = opened("pytorch", device), raw("pytorch")
    rate = library.cycles_per_second() if device == "cuda" else 0.0
    return {"pairs": [_windows(adapter, library, rate, pair, windows) for pair in pairs]}


def _windows(
    adapter: Framework, library: Any, rate: float, pair: tuple[float, float], windows: int
) -> Result:
    device_seconds, host_seconds = pair
    taken: list[float] = []
    if adapter.device == "cuda":
        cycles = round(device_seconds * rate)
        step = library.sleeping_step(cycles, host_seconds)
        device_seconds = library.sleeping_seconds(cycles)
    else:
        step = library.waiting_step(device_seconds + host_seconds, taken)
    watch = Stopwatch(lambda *_: None, pace=Pace(10, first=1))
    began = time.perf_counter()
    train(adapter, step, 1 + 10 * windows, watch)
    wall = time.perf_counter() - began - watch.telling_seconds
    return {
        "window_seconds": [window.seconds for window in watch.windows],
        "step_seconds": taken[1:],
        "device_seconds": device_seconds,
        "host_seconds": host_seconds,
        "timed_seconds": sum(watch.seconds) + sum(window.seconds for window in watch.windows),
        "wall_seconds": wall,
    }


# ---- memory


def peaks(_: Connection, *, framework: str) -> Result:
    """Return the rise of the peak after 1 GiB, and after 3 GiB at once, each freed."""
    adapter, library = opened(framework, "cuda"), raw(framework)
    allocated = library.allocate(2**20)
    before = adapter.peak_device_bytes() or 0
    held = int(allocated.nbytes)
    rises = []
    for count in (1, 3):
        array = library.allocate(count * GIB)
        del array
        rises.append((adapter.peak_device_bytes() or 0) - held)
    result: Result = {"rises": rises, "before": before}
    if adapter.reset_peak():
        result["after_reset"] = adapter.peak_device_bytes()
    return result


def ballast(pipe: Connection) -> Result:
    """Hold the device's memory but for 300 MB until the parent closes the pipe."""
    library = raw("pytorch")
    library.allocate(1)
    held = library.allocate(library.free_bytes() - FREE_BYTES)
    pipe.send("ready")
    pipe.poll(None)
    return {"bytes": int(held.nbytes)}


def busy(pipe: Connection) -> Result:
    """Keep the device busy until the parent closes the pipe."""
    step, count = raw("pytorch").busy_step(), 0
    step()
    pipe.send("ready")
    while not pipe.poll():
        step()
        count += 1
    return {"steps": count}


# ---- what frameworks are asked about


def profiler(_: Connection, *, device: str, side: int) -> Result:
    """Return what a profiled step of seven additions, three products and one copy comes to."""
    adapter = opened("pytorch", device)
    work = raw("pytorch").countable_work(device, side)
    with tempfile.TemporaryDirectory() as folder:
        profile = adapter.profile(Path(folder), work)
        traces = len(list(Path(folder).rglob("*")))
    computing = sum(len(spans) for spans in profile.operators.values())
    return {
        "counts": dict(profile.counts),
        "computing": computing,
        "copies": len(profile.copies),
        "traces": traces,
    }


def worker(_: Connection, *, device: str, model: str = "lenet") -> Result:
    """Return the difference of one DistributedDataParallel worker from none, and its limit."""
    from experiments.workloads.distributed import check

    adapter, module = opened("pytorch", device, "float64"), models.spec(model)
    spec, batch = module.probe(np.random.default_rng(0))
    weights = module.initial_weights(spec, np.random.default_rng(1))
    config, batch = OptimizerConfig("sgd", 0.01), adapter.place(batch)
    network = adapter.build(model, spec)
    adapter.load_weights(network, weights)
    optimizer = adapter.optimizer(network, config)
    together = frameworks.load("pytorch", "workers").Workers(
        adapter, 0, ["127.0.0.1:0"], 60.0, "none"
    )
    try:
        together.build(model, spec, weights, config)
        for _step in range(check.STEPS):
            adapter.train_step(network, optimizer, batch)
            together.step(batch)
        distributed = adapter.weights(together.network)
    finally:
        together.close()
    single = adapter.weights(network)
    differences = [np.abs(distributed[name] - array).max() for name, array in single.items()]
    largest = max(np.abs(array).max() for array in single.values())
    return {"error": float(max(differences) / largest), "limit": check.EXACT}


def adam_kernels(
    _: Connection, *, device: str, model: str = "resnet18", side: int = 64, rows: int = 4
) -> Result:
    """Return the kernels of one update by `adam-stock` and by PyTorch's Adam as it comes."""
    from experiments.workloads.grid.measure import drawn_batch

    adapter, module, library = opened("pytorch", device), models.spec(model), raw("pytorch")
    spec = module.Spec(classes=10)
    kernels = {}
    for name in ("adam-stock", "stock"):
        rng = np.random.default_rng(0)
        network = adapter.build(model, spec)
        adapter.load_weights(network, module.initial_weights(spec, rng))
        batch = adapter.place(drawn_batch(spec, side, rows, rng))
        ours = adapter.optimizer(network, OptimizerConfig("adam-stock", 1e-3))
        adapter.train_step(network, ours, batch)  # makes the gradients
        kernels[name] = library.kernels_of_step(
            ours if name == "adam-stock" else library.stock_adam(network, 1e-3), device
        )
    return {"kernels": kernels, "implementation": adapter.optimizer_implementation(ours)}
