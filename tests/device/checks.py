"""Checks of one framework: `python -m tests.device.checks FRAMEWORK DEVICE FILE CHECK …`.

Each check appends its figures to the file as a line of JSON: a timeout loses none of those before.
A figure is its value, and the least and the most that it may be; None: no limit.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

import models
from experiments.cell.timing import Pace, Stopwatch
from models import frameworks
from models.contract import Array, Batch, Framework, Mark, ModelError, OptimizerConfig
from models.frameworks import lean_import, open_framework
from models.layers import images
from tracking import nvml
from tracking.sensors import Sampler, Sensors

Figures = dict[str, tuple[Any, float | None, float | None]]
GIB, MIB = 2**30, 2**20
# Relative L2 errors against float64 that each precision may have.
ERRORS = {"float32": (1e-8, 2e-6), "tf32": (1e-4, 3e-3), "bfloat16": (1e-3, 0.1)}
SHAPES = {"product": (1_024, 1_024), "convolution": (8, 32, 32, 16), "lstm": (16, 24, 64)}
STEPS, TURNS = 20, 7
ENERGY_SECONDS, SENSOR_SECONDS = 4.0, 0.1


class Skipped(Exception):
    """Reason why a check cannot run here."""


def opened(name: str, device: str, precision: str = "float32") -> Framework:
    with lean_import(name):  # as a cell does
        return open_framework(name, device=device, threads=0, precision=precision, seed=0)


def need_gpu(device: str) -> None:
    if device != "cuda":
        raise Skipped("needs an NVIDIA GPU")


def need_pytorch(name: str) -> None:
    if name != "pytorch":
        raise Skipped("a check of PyTorch")


def network_of(framework: Framework, model: str, side: int, rows: int) -> tuple[Any, Batch]:
    """Return a network with its initial weights, and a batch on the device."""
    module, rng = models.spec(model), np.random.default_rng(0)
    spec = module.Spec(classes=10)
    network = framework.build(model, spec)
    framework.load_weights(network, module.initial_weights(spec, rng))
    return network, framework.place(images.batch(spec, side, rng, rows))


def check_precision(name: str, device: str) -> Figures:
    """Each operator rounds as its precision does, against the same in float64.

    This check is the first: JAX has float64 only if it is imported for that.
    """
    exact, figures = _operators(opened(name, device, "float64")), Figures()
    for precision, limits in ERRORS.items():
        if precision == "tf32" and device == "cpu":
            continue
        framework = opened(name, device, precision)
        for operator, values in _operators(framework).items():
            label = f"{precision}, {operator}"
            if isinstance(values, str):
                figures[label] = (values, None, None)
                continue
            difference = np.linalg.norm(values - exact[operator])
            figures[label] = (float(difference / np.linalg.norm(exact[operator])), *limits)
    return figures


def _operators(framework: Any) -> dict[str, Any]:
    """Return the outputs of a product, a convolution and an LSTM, or why one is refused."""
    rng = np.random.default_rng(0)

    def draw(*shape: int) -> Array:
        return rng.standard_normal(shape) / np.sqrt(shape[-1])

    make = _torch_layers if framework.architecture == "pytorch" else _keras_networks
    outputs: dict[str, Any] = {}
    for operator, network in make(framework, draw).items():
        inputs = draw(*SHAPES[operator]).astype(np.float32)
        try:
            if framework.architecture == "pytorch" and framework._mixed:
                frameworks.load("pytorch", "adapter").check_autocast(network, framework.device)
            outputs[operator] = framework.infer(network, (inputs,)).astype(np.float64)
        except (ModelError, RuntimeError) as error:  # by this tool, or by a CPU without bfloat16
            if not getattr(framework, "_mixed", False):
                raise
            outputs[operator] = f"refused: {error}"
    return outputs


def _torch_layers(framework: Any, draw: Any) -> dict[str, Any]:
    import torch
    from torch import nn

    class Convolution(nn.Conv2d):
        def forward(self, images: Any) -> Any:
            return super().forward(images.permute(0, 3, 1, 2))

    class LSTM(nn.LSTM):
        def forward(self, sequences: Any) -> Any:
            return super().forward(sequences)[0]

    layers = {
        "product": nn.Linear(1_024, 1_024, bias=False),
        "convolution": Convolution(16, 32, 3, bias=False),
        "lstm": LSTM(64, 128, bias=False, batch_first=True),
    }
    for layer in layers.values():
        for parameter in layer.parameters():
            parameter.data = torch.from_numpy(draw(*parameter.shape))
        layer.to(framework.device, framework._dtype).eval()
    return layers


def _keras_networks(_: Framework, draw: Any) -> dict[str, Any]:
    from keras import Input, Sequential, layers

    made = {
        "product": layers.Dense(1_024, use_bias=False),
        "convolution": layers.Conv2D(32, 3, use_bias=False),
        "lstm": layers.LSTM(128, use_bias=False, return_sequences=True),
    }
    networks = {}
    for name, layer in made.items():
        networks[name] = Sequential([Input(batch_shape=SHAPES[name]), layer])
        networks[name].compile()
        layer.set_weights([draw(*array.shape) for array in layer.get_weights()])
    return networks


def check_device(name: str, device: str) -> Figures:
    """The framework computes on the one device that a cell gets."""
    framework = opened(name, device)
    figures: Figures = {"on the device": (framework.device == device, 1, 1)}
    figures["versions"] = (framework.versions(), None, None)
    if device == "cuda":
        cards = nvml.visible_cards()
        figures["visible cards"] = (len(cards), 1, 1)
        if name == "pytorch":
            import torch

            uuid = str(torch.cuda.get_device_properties(0).uuid)
            same = sum(card.uuid.endswith(uuid) for card in cards)
            figures["cards with the framework's UUID"] = (same, 1, 1)
    return figures


def check_peak_memory(name: str, device: str) -> Figures:
    """Arrays of 1 GiB and 3 GiB are seen as such, and a reset forgets them.

    An allocator hands out a free block as a whole if what would be left of it is less than this.
    JAX's did: 1 MiB, its first region, less the 256 bytes in use there.
    """
    need_gpu(device)
    framework, figures = opened(name, device), Figures()
    unsplit = MIB if name.startswith(("pytorch", "keras-torch")) else 128 * MIB
    first = framework.place_inputs((np.zeros(MIB, np.float32),))
    before = framework.peak_device_bytes() or 0
    for count in (1, 3):
        placed = framework.place_inputs((np.zeros((count, GIB // 4), np.float32),))
        framework.synchronise()
        rise = (framework.peak_device_bytes() or 0) - before - count * GIB
        figures[f"MiB over {count} GiB"] = (rise / MIB, 0, unsplit / MIB)
        del placed
    del first  # until here: a rise is that of the later arrays alone
    if framework.reset_peak():
        rest = (framework.peak_device_bytes() or 0) - before
        figures["MiB after the reset"] = (rest / MIB, None, 16)
    return figures


def check_clock(name: str, device: str) -> Figures:
    """The clock has all time that the device works, step by step and in windows.

    The time until the last loss of a series of steps is a number cannot hide any of it. Where the
    clock did not wait, a step would take no longer than its launch.
    """
    framework, figures = opened(name, device), Figures()
    size = ("resnet50", 224, 64) if device == "cuda" else ("lenet", 28, 16)
    network, batch = network_of(framework, *size)
    optimizer = framework.optimizer(network, OptimizerConfig("adam", 1e-4))

    def clocked(pace: Pace) -> float:
        watch = Stopwatch(lambda *_: None, pace=pace)
        # not the framework's own way, such as Keras' fit: the same steps as without a clock
        Framework.train_epoch(framework, network, optimizer, iter([batch] * STEPS), watch)
        losses.extend(watch.losses)
        return sum(watch.seconds) + sum(window.seconds for window in watch.windows)

    def unclocked() -> float:
        began = time.perf_counter()
        for _ in range(STEPS):
            loss = framework.train_step(network, optimizer, batch)
        float(loss)
        return time.perf_counter() - began

    losses: list[float] = []
    ways = {"steps": Pace(), "windows": Pace(10, first=0), "": None}
    clocked(Pace())  # compiles
    turns = [
        [clocked(pace) if pace else unclocked() for pace in ways.values()] for _ in range(TURNS)
    ]
    *quickest, unclocked_seconds = np.min(turns, axis=0)  # others can only add to it
    limits = (0.95, 1.2) if device == "cuda" else (0.5, 2.0)  # other programs share a CPU
    for kind, seconds in zip(ways, quickest, strict=False):
        figures[f"clock over time, {kind}"] = (float(seconds / unclocked_seconds), *limits)
    figures["last loss over first"] = (losses[-1] / losses[0], 0, 0.9)
    return figures


def check_energy(name: str, device: str) -> Figures:
    """The energy counter is the integral of power, and JAX takes only the memory that it needs."""
    need_gpu(device)
    framework = opened(name, device)
    network, batch = network_of(framework, "resnet50", 224, 64)
    sampler = Sampler(Sensors(os.getpid(), "cuda"), SENSOR_SECONDS, lambda _: None)
    framework.infer(network, batch.inputs)
    sampler.start()
    until = time.perf_counter() + ENERGY_SECONDS
    while time.perf_counter() < until:
        framework.infer(network, batch.inputs)
    sampler.stop()
    (gpu,) = sampler.sensors.gpus
    samples = [sample for sample in sampler.samples if gpu in sample.counters_joules]
    if not samples:
        raise Skipped("; ".join(sampler.missing.values()) or "the driver has no energy counter")
    watts = [sample.values[f"system/{gpu}_power_usage_watts"] for sample in samples]
    integral = np.trapezoid(watts, [sample.time_seconds for sample in samples])
    joules = samples[-1].counters_joules[gpu] - samples[0].counters_joules[gpu]
    held = samples[-1].values.get(f"system/{gpu}_process_memory_megabytes")
    return {
        "watts": (float(np.mean(watts)), None, None),
        "counter over the integral of power": (float(joules / integral), 0.9, 1.1),
        "GB of the process": (held and held / 1e3, None, None if held is None else 12),
    }


def check_profiler(name: str, device: str) -> Figures:
    """Seven sums, three products and one copy to the host are counted as such."""
    need_pytorch(name)
    need_gpu(device)
    import torch

    matrix = torch.ones(4_096, 4_096, device=device)

    def work(mark: Mark) -> None:
        with mark():
            for _ in range(7):
                matrix + 1.0
            for _ in range(3):
                matrix @ matrix
            matrix.cpu()
        torch.cuda.synchronize()

    matrix @ matrix
    profile = _profiled(opened(name, device), work)
    return {
        "launches": (profile.counts.get("launches"), 10, 10),
        "copies": (len(profile.copies), 1, 1),
    }


def check_stock_adam(name: str, device: str) -> Figures:
    """`adam-stock` launches as many kernels as PyTorch's Adam with its defaults."""
    need_pytorch(name)
    need_gpu(device)
    import torch

    framework = opened(name, device)
    network, batch = network_of(framework, "resnet18", 64, 4)
    ours = framework.optimizer(network, OptimizerConfig("adam-stock", 1e-3))
    framework.train_step(network, ours, batch)  # makes the gradients
    launches = []
    for optimizer in (ours, torch.optim.Adam(network.parameters(), lr=1e-3)):
        optimizer.step()  # makes its state

        def work(mark: Mark, optimizer: Any = optimizer) -> None:
            with mark():
                optimizer.step()
            torch.cuda.synchronize()

        launches.append(_profiled(framework, work).counts["launches"])
    return {"launches of a step": (launches[0], launches[1], launches[1])}


def _profiled(framework: Framework, work: Any) -> Any:
    with tempfile.TemporaryDirectory() as folder:
        return framework.profile(Path(folder), work)


def check_one_worker(name: str, device: str) -> Figures:
    """DistributedDataParallel with one worker, on a GPU over NCCL, trains as PyTorch without it."""
    need_pytorch(name)
    framework, module = opened(name, device, "float64"), models.spec("lenet")
    spec, batch = module.probe(np.random.default_rng(0))
    weights = module.initial_weights(spec, np.random.default_rng(1))
    config, batch = OptimizerConfig("sgd", 0.01), framework.place(batch)
    network = framework.build("lenet", spec)
    framework.load_weights(network, weights)
    optimizer = framework.optimizer(network, config)
    workers = frameworks.load(name, "workers").Workers(framework, 0, ["127.0.0.1:0"], 60.0, "none")
    try:
        workers.build("lenet", spec, weights, config)
        for _ in range(5):
            framework.train_step(network, optimizer, batch)
            workers.step(batch)
        together = framework.weights(workers.network)
    finally:
        workers.close()
    single = framework.weights(network)
    error = max(float(np.abs(together[key] - single[key]).max()) for key in single)
    return {"difference of the weights": (error, 0, 1e-12)}


CHECKS = {name[6:]: function for name, function in globals().items() if name.startswith("check_")}


def run(name: str, device: str, check: str) -> dict[str, Any]:
    """Return a check's figures with their limits, why it is skipped, or its error."""
    began, line = time.perf_counter(), {"framework": name, "check": check}
    try:
        line["figures"] = CHECKS[check](name, device)
    except Skipped as skipped:
        line["skipped"] = str(skipped)
    except Exception as error:  # the other checks run all the same
        line["error"] = f"{type(error).__name__}: {error}"
    return line | {"seconds": round(time.perf_counter() - began, 1)}


if __name__ == "__main__":
    framework, device, path, *checks = sys.argv[1:]
    with Path(path).open("a", encoding="utf-8", buffering=1) as file:
        for check in checks:
            print(json.dumps(run(framework, device, check), default=str), file=file)
