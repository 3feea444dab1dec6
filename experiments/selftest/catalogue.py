"""Catalogue of the acceptance kit's checks, for the command and for `tests/gpu`."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from experiments.config import devices
from experiments.selftest import cells, children
from experiments.selftest.cells import CellOutcome
from experiments.selftest.checks import Check, Context, Figure, Skip, reason_missing
from experiments.selftest.children import ProbeError, probe
from models import parity
from tracking import nvml, provenance
from tracking.records import RunOutcome
from tracking.sensors import Sample, Sampler, Sensors

# Relative L2 errors against float64 that each precision may have.
ERRORS = {"float32": (0.0, 2e-6), "tf32": (1e-4, 3e-3), "bfloat16": (1e-3, 0.1)}
GATED = ("lenet", "caption_decoder", "bert")
FOUR_VARIANTS = ("pytorch", "pytorch+compile", "keras-torch", "keras-jax")
LIBRARIES = ("pytorch", "keras-torch", "keras-jax", "tensorflow")
FREE_PAIRS = ((0.005, 0.002), (0.002, 0.005))
# A first step that a warm cache shortens is less than half of a cold one.
EQUALLY_COLD = 2.0
NO_TF32 = "a CPU has no such arithmetic"
CONTRACT_SECONDS = 300.0
PATHS = os.pathsep.join(
    filter(None, [str(Path(__file__).resolve().parents[2]), os.environ.get("PYTHONPATH")])
)
GIB, MIB = 2**30, 2**20
ENERGY_SECONDS, SENSOR_SECONDS = 5.0, 0.1
# Script of a child of a race's command.
HOLD_GIB = (
    "import time, torch; held = torch.ones(2**30, dtype=torch.uint8, device='cuda'); "
    "torch.cuda.synchronize(); time.sleep(2)"
)


def _visible_gpu(context: Context) -> None:
    context.installed("pytorch")
    facts, cards = probe("identity"), nvml.visible_cards()
    uuid = str(facts.get("uuid", "")).removeprefix("GPU-")
    matches = [card for card in cards if card.uuid.removeprefix("GPU-") == uuid]
    for name in ("torch", "cuda", "cudnn", "device"):
        if name in facts:
            context.report(name, str(facts[name]))
    context.report("drivers and cards", "; ".join(provenance.gpus()))
    context.equal("cards of NVML with PyTorch's UUID", len(matches), 1)
    sensors = Sensors(device="cuda")
    if matches and sensors.gpus and (number := re.fullmatch(r"gpu_(\d+)", sensors.gpus[0])):
        context.equal("NVML index that the sensors read", int(number[1]), matches[0].index)
    hidden = probe("device_of", {nvml.VISIBLE: ""}, framework="pytorch")
    context.equal("device=auto with CUDA_VISIBLE_DEVICES empty", hidden["device"], "cpu")


def _precision(context: Context) -> None:
    treatments = [(name, kind) for name in context.installed(*LIBRARIES) for kind in ERRORS]
    compiled = "pytorch+compile"
    if context.has_gpu and compiled in context.frameworks and not reason_missing(compiled):
        treatments.append((compiled, "tf32"))  # Inductor reads different switches
    for name, precision in treatments:
        label, (low, high) = f"{name}, {precision}", ERRORS[precision]
        if precision == "tf32" and not context.has_gpu:
            context.report(label, None, NO_TF32)
            continue
        try:
            result = probe("precision", framework=name, device=context.device, precision=precision)
        except ProbeError as error:
            context.figures.append(Figure(label, None, holds=False, reason=str(error)))
            continue
        for operator, distance in result["errors"].items():
            context.within(f"{label}, {operator}, error", distance, low, high)


def _lstm_type(context: Context) -> None:
    for name in context.installed(*LIBRARIES):
        result = probe("lstm_type", framework=name, device=context.device)
        if "refused" in result:
            context.report(name, None, f"refused: {result['refused']}")
        else:
            context.equal(name, ", ".join(result["types"]), "bfloat16")


def _contract(context: Context) -> None:
    if not find_spec("pytest"):
        raise Skip("pytest is not installed, and the contract suite is written with it")
    captions = {}
    for name in context.installed(*FOUR_VARIANTS):
        folder = context.folder / name
        folder.mkdir()
        arguments = ("models.testing", name, str(folder), "--device", context.device)
        subprocess.run(
            [sys.executable, "-P", "-m", *arguments],
            env=devices.environment_on(context.device, os.environ) | {"PYTHONPATH": PATHS},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=True,
            timeout=CONTRACT_SECONDS,
        )
        outcomes = json.loads((folder / "outcomes.json").read_text())
        failures = [
            f"{check}: {text.strip().splitlines()[-1]}" for check, text in outcomes.items() if text
        ]
        context.report(f"{name}, checks", len(outcomes))
        context.equal(f"{name}, failed checks", "; ".join(failures) or "none", "none")
        with np.load(folder / "cross.npz") as arrays:
            captions[name] = {key: arrays[key] for key in arrays if key.startswith("decode/")}
    for name in captions if "pytorch" in captions else ():
        is_same = all(
            np.array_equal(array, captions["pytorch"][key]) for key, array in captions[name].items()
        )
        context.equal(f"{name}, captions", "equal" if is_same else "different", "equal")


def _gate(context: Context) -> None:
    sides = context.installed(*LIBRARIES)
    if len(sides) < 2:
        raise Skip(f"the gate compares two frameworks; only {sides[0]} can run here")
    environment = devices.environment_on(context.device, os.environ)
    for model in GATED:
        request = parity.ParityRequest(model, device=context.device)
        for row in parity.gate(request, sides, environment=environment):
            name = f"{row.model}, {row.framework}: {parity.QUANTITIES[row.quantity].what}"
            if row.compared or not row.equal:
                limit = f"at most {row.limit:g}"
                context.figures.append(Figure(name, row.error, limit, row.equal))
            else:
                context.report(name, None, "the network has none")


def _synchronisation(context: Context) -> None:
    for name in context.installed("pytorch", "keras-torch", "keras-jax"):
        result = probe("step_times", framework=name, device=context.device)
        steps, device = result["steps"], result["device"]
        ratio = steps["four times"] / steps["once"]
        context.within(f"{name}, step of four times the work", ratio, 3.88, 4.12)
        for size in steps:  # 1 %: two clocks read at two moments
            ratio = steps[size] / device[size]
            context.within(f"{name}, step over device time, {size}", ratio, 0.99, 1.5)


def _free_running(context: Context) -> None:
    context.installed("pytorch")
    for pair in probe("free_running", device=context.device, pairs=FREE_PAIRS)["pairs"]:
        device, host = pair["device_seconds"], pair["host_seconds"]
        label = f"{1_000 * device:.0f} ms device, {1_000 * host:.0f} ms host"
        windows = pair["window_seconds"]
        if context.has_gpu:
            ratio = float(np.median(windows)) / (10 * max(device, host))
            context.within(f"{label}: window over ten times the longer", ratio, 0.98, 1.06)
        else:  # a window is the sum of its steps, and up to 10 % for the loop around them
            sums = np.reshape(pair["step_seconds"], (-1, 10)).sum(axis=1)
            ratio = float(np.median(np.array(windows) / sums))
            context.within(f"{label}: window over the sum of its steps", ratio, 1.0, 1.1)
        timed = pair["timed_seconds"] / pair["wall_seconds"]
        context.within(f"{label}: timed share of the wall time", timed, 0.5, 1.0)


def _peaks(context: Context) -> None:
    names = context.installed("pytorch", "keras-jax")
    for name in names:
        result = probe("peaks", framework=name)
        for count, rise in zip((1, 3), result["rises"], strict=True):
            error = (rise - count * GIB) / MIB
            context.within(f"{name}, peak of {count} GiB, off by MiB", error, -1, 1)
        if "after_reset" in result:
            peak = (result["after_reset"] or 0) / MIB
            context.within(f"{name}, peak after its reset, MiB", peak, 0, 16)
    if "keras-jax" in names:
        metrics = _grid(context, "keras-jax", "lenet", 28, 32, seconds=2.0).metrics
        used = metrics.get("memory/peak_device_process_bytes")
        if used is None:
            context.report("keras-jax, None, LeNet, memory", "the driver does not report it")
        else:
            context.within("keras-jax, LeNet, memory of the process, GB", used / 1e9, 0, 3.0)


def _out_of_memory(context: Context) -> None:
    names = context.installed(*LIBRARIES)
    for name in names:
        full = _grid(context, name, "vgg16", 224, 4_096, seconds=0.1, phases=("train",))
        context.equal(f"{name}, vgg16 of 4,096 images", full.outcome, RunOutcome.OUT_OF_MEMORY)
        context.equal(f"{name}, its phase", full.phase, "train")
        following = _grid(context, name, "lenet", 28, 32)
        context.equal(f"{name}, the next cell", following.outcome, RunOutcome.OK)
    if "pytorch" in names:
        with children.running("ballast"):
            full = _grid(context, "pytorch", "resnet18", 224, 64)
        context.equal("pytorch beside ballast", full.outcome, RunOutcome.OUT_OF_MEMORY)
        following = _grid(context, "pytorch", "lenet", 28, 32)
        context.equal("pytorch after it", following.outcome, RunOutcome.OK)


def _energy(context: Context) -> None:
    context.installed("pytorch")
    idle, _ = _sampled(None, ENERGY_SECONDS)
    with children.running("busy") as (pid, _):
        busy, sensors = _sampled(pid, ENERGY_SECONDS)
    gpu = sensors.gpus[0] if sensors.gpus else ""
    if not any(gpu in sample.counters_joules for sample in busy):
        missing = [f"{name}: {text}" for name, text in sensors.missing.items()]
        context.report("energy counter", None, "; ".join(missing) or "no counter")
        return
    key = f"system/{gpu}_power_usage_watts"
    seconds = [sample.time_seconds for sample in busy]
    integral = float(np.trapezoid([sample.values[key] for sample in busy], seconds))
    counters = [sample.counters_joules[gpu] for sample in busy if gpu in sample.counters_joules]
    ratio = (counters[-1] - counters[0]) / integral
    context.within("counter over the integral of power", ratio, 0.9, 1.1)
    watts = [float(np.mean([sample.values[key] for sample in side])) for side in (idle, busy)]
    context.report("idle, W", watts[0])
    context.report("busy, W", watts[1])
    context.within("idle over busy", watts[0] / watts[1], 0, 0.6)


def _sampled(pid: int | None, seconds: float) -> tuple[list[Sample], Sensors]:
    sampler = Sampler(Sensors(pid, "cuda"), SENSOR_SECONDS, lambda _: None)
    sampler.start()
    time.sleep(seconds)
    sampler.stop()
    if sampler.trouble:
        raise Skip(f"sensors {sampler.trouble}")
    return sampler.samples, sampler.sensors


def _neighbour(context: Context) -> None:
    context.installed("pytorch")
    quiet = _grid(context, "pytorch", "resnet18", 64, 32, seconds=3.0)
    with children.running("busy"):
        shared = _grid(context, "pytorch", "resnet18", 64, 32, seconds=3.0)
    context.report("without another process", quiet.disturbed or "not disturbed")
    state = "disturbed" if shared.disturbed else "not disturbed"
    context.equal("with another process", state, "disturbed")


def _profiler(context: Context) -> None:
    context.installed("pytorch")
    side = 4_096 if context.has_gpu else 256
    result = probe("profiler", device=context.device, side=side)
    if context.has_gpu:
        context.equal("launches", result["counts"].get("launches"), 10)
    else:
        context.equal("operators that compute", result["computing"], 10)
    context.equal("copies", result["copies"], 1)
    context.within("files of the trace", result["traces"], 1, 100)


def _compile(context: Context) -> None:
    context.installed("pytorch+compile")
    first_steps = []
    for block in (1, 2):
        result = _training_speed(context, "pytorch+compile", block=block)
        context.equal(f"block {block}, outcome", result.outcome, RunOutcome.OK, result.reason)
        if result.outcome != RunOutcome.OK:
            return
        for name, expected in (("compilations", 1), ("recompilations", 0), ("graph_breaks", 0)):
            context.equal(f"block {block}, {name}", result.metrics[f"train/{name}"], expected)
        first_steps.append(result.metrics["train/first_step_seconds"])
        context.report(f"block {block}, first step, s", first_steps[-1])
    ratio = first_steps[1] / first_steps[0]
    context.within("first step of block 2 over block 1", ratio, 1 / EQUALLY_COLD, EQUALLY_COLD)


def _worker(context: Context) -> None:
    context.installed("pytorch")
    result = probe("worker", device=context.device)
    context.within("one worker, relative difference", result["error"], 0, result["limit"])


def _adam(context: Context) -> None:
    context.installed("pytorch")
    result = probe("adam_kernels", device=context.device)
    ours, stock = (result["kernels"][name] for name in ("adam-stock", "stock"))
    context.report("implementation", result["implementation"])
    context.equal("kernels of a step", sum(ours.values()), sum(stock.values()))
    names = sorted(name for name in {*ours, *stock} if ours.get(name) != stock.get(name))
    context.equal("kernels that differ", "; ".join(names) or "none", "none")


def _cells(context: Context) -> None:
    names = context.installed(*(FOUR_VARIANTS if context.has_gpu else ("pytorch",)))
    for name in names:
        result = _training_speed(context, name, timing="both", window_steps=5, steps=20)
        label = f"{name}, cell of training_speed"
        context.equal(label, result.outcome, RunOutcome.OK, result.reason)
        for key in ("step_seconds", "examples_per_second"):
            context.report(f"{name}, {key}", result.metrics.get(f"train/{key}"), result.reason)
    if "pytorch" not in names:
        return
    model, side, rows = ("resnet18", 224, 64) if context.has_gpu else ("lenet", 28, 8)
    values: dict[str, Any] = {"optimizer": "adam-stock", "seconds": 2.0 if context.has_gpu else 0.1}
    ours = _grid(context, "pytorch", model, side, rows, **values)
    values |= {"models": (model,), "batch_sizes": (rows,), "image_side": side, "classes": 10}
    values |= {"phases": ("train",), "blocks": 1}
    plain = cells.run(context.folder, "overhead", "pytorch", context.device, **values)
    for label, result in (("the grid", ours), ("a plain loop", plain)):
        name = f"pytorch, {model}, cell of {label}"
        context.equal(name, result.outcome, RunOutcome.OK, result.reason)
    if not (ours.ok and plain.ok):
        return
    ratio = ours.metrics["train/step_seconds"] / plain.metrics["train/step_seconds"]
    label = f"pytorch, step of {model} over that of a plain loop"
    if context.has_gpu:
        context.within(label, ratio, 0.97, 1.03)
    else:  # a CPU's steps are too short, and other programs too near, for a limit
        context.report(label, ratio)


def _command(context: Context) -> None:
    context.installed("pytorch")
    if not find_spec("pydantic"):
        raise Skip("pydantic is not installed, and a race checks its commands with it")
    in_child = f"{shlex.quote(sys.executable)} -c {shlex.quote(HOLD_GIB)} & wait $!"
    values: dict[str, Any] = {"frameworks": (), "level": (f"holds={in_child}",)}
    result = cells.run(context.folder, "race", "", context.device, **values)
    used = result.metrics.get("memory/peak_device_process_bytes")
    if result.ok and used is None:
        raise Skip("the driver does not report the memory of the command's processes")
    context.equal("command", result.outcome, RunOutcome.OK, result.reason)
    if used is not None:  # CUDA itself takes some hundred megabytes
        context.within("memory of its child, GiB", used / GIB, 1, 2)


def _grid(
    context: Context, framework: str, model: str, side: int, rows: int, **values: Any
) -> CellOutcome:
    settings: dict[str, Any] = {
        "seconds": 0.5,
        "phases": ("train",),
        "classes": 10,
        "blocks": 1,
    } | values
    sizes: dict[str, Any] = {"models": (model,), "image_sizes": (side,), "batch_sizes": (rows,)}
    return cells.run(context.folder, "grid", framework, context.device, **settings, **sizes)


def _training_speed(context: Context, framework: str, **values: Any) -> CellOutcome:
    settings: dict[str, Any] = {"models": ("lenet",), "size": "tiny", "batch_size": 32, "blocks": 1}
    clock: dict[str, Any] = {
        "steps": 5,
        "warmup_steps": 3,
        "timing": "step",
        "window_steps": 1,
    } | values
    return cells.run(
        context.folder, "training_speed", framework, context.device, **settings, **clock
    )


CHECKS: Sequence[Check] = (
    Check(
        1,
        "one GPU, one name",
        "NVML and PyTorch name one card; an empty CUDA_VISIBLE_DEVICES is the CPU",
        _visible_gpu,
    ),
    Check(
        2,
        "precision",
        "relative L2 error against float64: float32 < 2e-6, tf32 1e-4 to 3e-3, bfloat16 > 1e-3",
        _precision,
        on_cpu=True,
    ),
    Check(3, "LSTM in bfloat16", "an LSTM returns bfloat16, or is refused", _lstm_type),
    Check(
        4,
        "contract suite",
        "every framework keeps its contract in float64",
        _contract,
    ),
    Check(
        5,
        "parity gate",
        "networks are equal to PyTorch's in every framework, in float64",
        _gate,
    ),
    Check(
        6,
        "synchronisation",
        "four times the work is four times the step, ± 3 %; no step is shorter",
        _synchronisation,
    ),
    Check(
        7,
        "free-running",
        "ten steps take ten times the longer of host and device; on a CPU, their sum",
        _free_running,
        on_cpu=True,
    ),
    Check(
        8,
        "peak memory",
        "1 GiB and 3 GiB are seen as such, ± 1 MiB; JAX does not preallocate",
        _peaks,
    ),
    Check(
        9,
        "out of memory",
        "a cell that does not fit is out_of_memory with its phase; the next is ok",
        _out_of_memory,
    ),
    Check(
        10,
        "energy",
        "the counter is the integral of power, ± 10 %",
        _energy,
    ),
    Check(11, "neighbour on the GPU", "a cell beside another process is disturbed", _neighbour),
    Check(
        12,
        "profiler",
        "ten launches are counted as ten, and copies apart from them",
        _profiler,
        on_cpu=True,
    ),
    Check(
        13,
        "compile",
        "one compilation, no graph break, equally cold in blocks 1 and 2",
        _compile,
        on_cpu=True,
    ),
    Check(
        14,
        "one worker",
        "DistributedDataParallel with one worker trains as none, ± 1e-12",
        _worker,
        on_cpu=True,
    ),
    Check(15, "adam-stock", "adam-stock runs the kernels of torch.optim.Adam's default", _adam),
    Check(
        16,
        "real cells",
        "cells end well; on a GPU a step is within 3 % of a plain loop's",
        _cells,
        on_cpu=True,
    ),
    Check(
        17,
        "memory of a command",
        "1 GiB that a child of a race's command holds is the command's, up to 1 GiB more",
        _command,
    ),
)
