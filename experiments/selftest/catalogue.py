"""The checks of the acceptance kit: one list, for the command and for `tests/gpu`."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from experiments.config import devices
from experiments.selftest import cells, children
from experiments.selftest.cells import AloneResult
from experiments.selftest.checks import (
    Check,
    Context,
    Figure,
    Skip,
    at_most,
    equal,
    reason_missing,
    reported,
    unmeasured,
    within,
)
from experiments.selftest.children import ProbeError, probe, run_module
from models import parity
from tracking import provenance
from tracking.records import RunOutcome
from tracking.sensors import Sample, Sampler, Sensors, Window, summarise

# Relative L2 errors against float64 that each precision may have.
ERRORS = {"float32": (0.0, 2e-6), "tf32": (1e-4, 3e-3), "bfloat16": (1e-3, 0.1)}
SMALL_CONTRACT = (
    "check_weights_go_in_and_out_unchanged",
    "check_optimizers_have_names",
    "check_it_says_where_it_runs",
    "check_a_placed_batch_is_the_batch",
)
GATED = ("lenet", "caption_decoder", "bert")
FOUR_VARIANTS = ("pytorch", "pytorch+compile", "keras-torch", "keras-jax")
FREE_PAIRS = ((0.005, 0.002), (0.002, 0.005))
# A first step that a warm cache shortens is less than half of a cold one.
EQUALLY_COLD = 2.0
NO_TF32 = "a CPU has no such arithmetic"
ON_A_GPU = "measured on a GPU only"
GIB, MIB = 2**30, 2**20
ENERGY_SECONDS, SENSOR_SECONDS = 5.0, 0.1


def _visible_gpu(context: Context) -> Sequence[Figure]:
    _, figures = context.installed("pytorch")
    facts = probe("identity")
    cards = _cards()
    bare = str(facts.get("uuid", "")).removeprefix("GPU-")
    own = [card for card in cards if card["uuid"].removeprefix("GPU-") == bare]
    figures += [
        reported(name, str(facts[name]))
        for name in ("torch", "cuda", "cudnn", "device")
        if name in facts
    ]
    figures.append(reported("drivers and cards", "; ".join(provenance.gpus())))
    figures.append(equal("cards of NVML with PyTorch's UUID", len(own), 1))
    sensors = Sensors(device="cuda")
    if own and sensors.gpus and (number := re.fullmatch(r"gpu_(\d+)", sensors.gpus[0])):
        figures.append(
            equal("NVML index that the sensors read", int(number[1]), int(own[0]["index"]))
        )
    hidden = probe("device_of", {provenance.VISIBLE: ""}, framework="pytorch")
    figures.append(equal("device=auto with CUDA_VISIBLE_DEVICES empty", hidden["device"], "cpu"))
    return figures


def _cards() -> list[dict[str, str]]:
    """Return index and UUID of each card as NVML's own program lists them."""
    command = ["nvidia-smi", "--query-gpu=index,uuid", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=30)
    except (OSError, subprocess.SubprocessError) as error:
        raise Skip(f"nvidia-smi does not answer: {error}") from None
    return [
        dict(zip(("index", "uuid"), map(str.strip, line.split(",")), strict=True))
        for line in done.stdout.splitlines()
    ]


def _precision(context: Context) -> Sequence[Figure]:
    names, figures = context.installed("pytorch", "keras-torch", "keras-jax", "tensorflow")
    treatments = [(name, precision) for name in names for precision in ERRORS]
    if (
        context.has_gpu
        and "pytorch+compile" in context.frameworks
        and not reason_missing("pytorch+compile")
    ):
        treatments.append(("pytorch+compile", "tf32"))  # Inductor reads switches of its own
    for name, precision in treatments:
        if precision == "tf32" and not context.has_gpu:
            figures.append(unmeasured(f"{name}, tf32", NO_TF32))
            continue
        try:
            found = probe("precision", framework=name, device=context.device, precision=precision)
        except ProbeError as error:
            figures.append(Figure(f"{name}, {precision}", None, holds=False, reason=str(error)))
            continue
        low, high = ERRORS[precision]
        figures += [
            within(f"{name}, {precision}, {what}, error", error, low, high)
            for what, error in found["errors"].items()
        ]
    return figures


def _lstm_type(context: Context) -> Sequence[Figure]:
    names, figures = context.installed("pytorch", "keras-torch", "keras-jax", "tensorflow")
    for name in names:
        found = probe("lstm_type", framework=name, device=context.device)
        if "refused" in found:
            figures.append(unmeasured(name, f"refused: {found['refused']}"))
        else:
            figures.append(equal(name, ", ".join(found["types"]), "bfloat16"))
    return figures


def _contract(context: Context) -> Sequence[Figure]:
    if not _has_pytest():
        raise Skip("pytest is not installed, and the contract suite is written with it")
    names, figures = context.installed(*(FOUR_VARIANTS if context.has_gpu else ("pytorch",)))
    computed = {}
    with tempfile.TemporaryDirectory() as folder:
        for name in names:
            own = Path(folder, name)
            own.mkdir()
            small = ["--checks", ",".join(SMALL_CONTRACT)] if not context.has_gpu else []
            command = ("models.testing", name, str(own), "--device", context.device, *small)
            run_module(*command, device=context.device)
            outcomes = json.loads((own / "outcomes.json").read_text())
            failed = {
                check: text.strip().splitlines()[-1] for check, text in outcomes.items() if text
            }
            reasons = "; ".join(f"{check}: {why}" for check, why in failed.items())
            figures.append(reported(f"{name}, checks", len(outcomes)))
            figures.append(equal(f"{name}, failed checks", reasons or "none", "none"))
            if context.has_gpu:
                with np.load(own / "cross.npz") as arrays:
                    computed[name] = dict(arrays)
    others = [name for name in FOUR_VARIANTS if name in context.frameworks and not context.has_gpu]
    figures += [unmeasured(name, ON_A_GPU) for name in others if name not in names]
    return figures + _shared(computed)


def _has_pytest() -> bool:
    from importlib.util import find_spec

    return find_spec("pytest") is not None


def _shared(computed: dict[str, dict[str, np.ndarray]]) -> list[Figure]:
    """Compare what contract suites of several frameworks computed of the same weights."""
    figures = []
    reference = computed.get("pytorch", {})
    for name, arrays in computed.items():
        if name == "pytorch" or not reference:
            continue
        for model in sorted({key.split("/")[1] for key in arrays if key.startswith("parity/")}):
            prefix = f"parity/{model}/"
            sides = [
                {
                    key.removeprefix(prefix): array
                    for key, array in side.items()
                    if key.startswith(prefix)
                }
                for side in (reference, arrays)
            ]
            figures += _rows(parity.judge(model, ("pytorch", sides[0]), (name, sides[1])))
        captions = [key for key in arrays if key.startswith("decode/")]
        same = all(np.array_equal(arrays[key], reference[key]) for key in captions)
        figures.append(equal(f"{name}, captions", "equal" if same else "different", "equal"))
    return figures


def _rows(rows: Sequence[parity.Row]) -> list[Figure]:
    figures = []
    for row in rows:
        name = f"{row.model}, {row.framework}: {parity.QUANTITIES[row.quantity].what}"
        if row.compared or not row.equal:
            figures.append(Figure(name, row.error, f"at most {row.limit:g}", row.equal))
        else:
            figures.append(unmeasured(name, "the network has none"))
    return figures


def _gate(context: Context) -> Sequence[Figure]:
    names, figures = context.installed("pytorch", "keras-torch", "keras-jax", "tensorflow")
    if len(names) < 2:
        raise Skip(f"the gate compares two frameworks; here is {names[0]} alone")
    sides = names if context.has_gpu else names[:2]
    environment = devices.environment_on(context.device, os.environ)
    for model in GATED if context.has_gpu else GATED[:1]:
        request = parity.ParityRequest(model, device=context.device)
        figures += _rows(parity.gate(request, sides, environment=environment))
    left_out = () if context.has_gpu else (*GATED[1:], *names[2:])
    return figures + [unmeasured(name, ON_A_GPU) for name in left_out]


def _synchronisation(context: Context) -> Sequence[Figure]:
    names, figures = context.installed("pytorch", "keras-torch", "keras-jax")
    for name in names:
        found = probe("step_times", framework=name, device=context.device)
        steps, device = found["steps"], found["device"]
        figures.append(
            within(
                f"{name}, step of four times the work",
                steps["four times"] / steps["once"],
                3.88,
                4.12,
            )
        )
        # 1 %: two clocks read at two moments
        figures += [
            within(f"{name}, step over device time, {size}", steps[size] / device[size], 0.99, 1.5)
            for size in steps
        ]
    return figures


def _free_running(context: Context) -> Sequence[Figure]:
    _, figures = context.installed("pytorch")
    found = probe("free_running", device=context.device, pairs=FREE_PAIRS)
    for pair in found["pairs"]:
        device, host = pair["device_seconds"], pair["host_seconds"]
        name = f"{1_000 * device:.0f} ms device, {1_000 * host:.0f} ms host"
        windows = pair["window_seconds"]
        if context.has_gpu:
            ratio = float(np.median(windows)) / (10 * max(device, host))
            figures.append(within(f"{name}: window over ten times the longer", ratio, 0.98, 1.06))
            share = len(pair["interval_seconds"]) / (10 * len(windows))
            whole = sum(pair["interval_seconds"]) / (share * sum(windows)) if share else 0.0
            figures.append(within(f"{name}: device intervals over windows", whole, 0.95, 1.05))
        else:  # nothing runs beside the host: a window is the sum of its steps, and 10 % for the loop around them
            sums = np.reshape(pair["step_seconds"], (-1, 10)).sum(axis=1)
            ratio = float(np.median(np.array(windows) / sums))
            figures.append(within(f"{name}: window over the sum of its steps", ratio, 1.0, 1.1))
        figures.append(
            within(
                f"{name}: timed share of the wall time",
                pair["timed_seconds"] / pair["wall_seconds"],
                0.5,
                1.0,
            )
        )
    return figures


def _peaks(context: Context) -> Sequence[Figure]:
    names, figures = context.installed("pytorch", "keras-jax")
    for name in names:
        found = probe("peaks", framework=name)
        for count, rise in zip((1, 3), found["rises"], strict=True):
            off = (rise - count * GIB) / MIB
            figures.append(within(f"{name}, peak of {count} GiB, off by MiB", off, -1, 1))
        if "after_reset" in found:
            figures.append(
                at_most(f"{name}, peak after its reset, MiB", (found["after_reset"] or 0) / MIB, 16)
            )
    if "keras-jax" in names:
        result = _grid(context, "keras-jax", "lenet", 28, 32, seconds=2.0)
        held = result.metrics.get("memory/peak_device_process_bytes")
        if held is None:
            figures.append(
                unmeasured(
                    "keras-jax LeNet, memory of the process", "the driver does not report it"
                )
            )
        else:
            figures.append(at_most("keras-jax LeNet, memory of the process, GB", held / 1e9, 3.0))
    return figures


def _out_of_memory(context: Context) -> Sequence[Figure]:
    names, figures = context.installed("pytorch", "keras-torch", "keras-jax", "tensorflow")
    for name in names:
        full = _grid(context, name, "vgg16", 224, 4_096, seconds=0.1, phases=("train",))
        figures += [
            equal(f"{name}, vgg16 of 4,096 images", full.outcome, str(RunOutcome.OUT_OF_MEMORY))
        ]
        figures += [equal(f"{name}, its phase", full.phase, "train")]
        figures += [
            equal(
                f"{name}, the next cell",
                _grid(context, name, "lenet", 28, 32).outcome,
                str(RunOutcome.OK),
            )
        ]
    if "pytorch" in names:
        with children.running("ballast"):
            result = _grid(context, "pytorch", "resnet18", 224, 64)
        figures.append(
            equal("pytorch beside ballast", result.outcome, str(RunOutcome.OUT_OF_MEMORY))
        )
        figures.append(
            equal(
                "pytorch after it",
                _grid(context, "pytorch", "lenet", 28, 32).outcome,
                str(RunOutcome.OK),
            )
        )
    return figures


def _energy(context: Context) -> Sequence[Figure]:
    _, figures = context.installed("pytorch")
    idle, _ = _sampled(None, ENERGY_SECONDS)
    with children.running("busy") as pid:
        busy, sensors = _sampled(pid, ENERGY_SECONDS)
    gpu = sensors.gpus[0] if sensors.gpus else ""
    missing = [
        name for name in ("energy", "power_usage_watts") if f"{gpu}_{name}" in sensors.missing
    ]
    if missing or not any(gpu in sample.counters_joules for sample in busy):
        reason = (
            "; ".join(
                f"{name}: {text}"
                for name, text in sensors.missing.items()
                if name.startswith("gpu")
            )
            or "no counter"
        )
        return [*figures, unmeasured("energy counter", reason)]
    power = f"system/{gpu}_power_usage_watts"
    joules = _joules(busy, gpu)
    integral = _integral(busy, power)
    figures.append(within("counter over the integral of power", joules / integral, 0.9, 1.1))
    watts = [float(np.mean([sample.values[power] for sample in side])) for side in (idle, busy)]
    figures += [
        reported("idle, W", watts[0]),
        reported("busy, W", watts[1]),
        at_most("idle over busy", watts[0] / watts[1], 0.6),
    ]
    only = [
        dataclasses.replace(sample, counters_joules={gpu: sample.counters_joules[gpu]})
        for sample in busy
    ]
    for what, last in (("all samples", len(only) - 1), ("three samples", 2)):
        found = summarise(only, _window(only, last), gpus=sensors.gpus, ranges_joules={})
        available = "available" if "energy/joules" in found.metrics else "not available"
        figures.append(
            equal(f"energy of {what}", available, "available" if last > 2 else "not available")
        )
    return figures


def _sampled(pid: int | None, seconds: float) -> tuple[list[Sample], Sensors]:
    sampler = Sampler(Sensors(pid, "cuda"), SENSOR_SECONDS, lambda _: None)
    sampler.start()
    time.sleep(seconds)
    sampler.stop()
    if sampler.trouble:
        raise Skip(f"sensors {sampler.trouble}")
    return sampler.samples, sampler.sensors


def _joules(samples: Sequence[Sample], name: str) -> float:
    counters = [
        sample.counters_joules[name] for sample in samples if name in sample.counters_joules
    ]
    return counters[-1] - counters[0]


def _integral(samples: Sequence[Sample], key: str) -> float:
    seconds = [sample.time_seconds for sample in samples]
    watts = [sample.values[key] for sample in samples]
    return float(np.trapezoid(watts, seconds))


def _window(samples: Sequence[Sample], last: int) -> Window:
    return Window("", samples[0].time_seconds, samples[min(last, len(samples) - 1)].time_seconds, 1)


def _neighbour(context: Context) -> Sequence[Figure]:
    _, figures = context.installed("pytorch")
    quiet = _grid(context, "pytorch", "resnet18", 64, 32, seconds=3.0)
    with children.running("busy"):
        beside = _grid(context, "pytorch", "resnet18", 64, 32, seconds=3.0)
    figures.append(reported("by itself", quiet.disturbed or "not disturbed"))
    figures.append(
        equal(
            "beside another process",
            "disturbed" if beside.disturbed else "not disturbed",
            "disturbed",
        )
    )
    return figures


def _profiler(context: Context) -> Sequence[Figure]:
    _, figures = context.installed("pytorch")
    side = 4_096 if context.has_gpu else 256
    found = probe("profiler", device=context.device, side=side)
    count = found["counts"].get("launches") if context.has_gpu else found["computing"]
    figures.append(equal("launches" if context.has_gpu else "operators that compute", count, 10))
    figures.append(equal("copies", found["copies"], 1))
    figures.append(within("files of the trace", found["traces"], 1, 100))
    return figures


def _compile(context: Context) -> Sequence[Figure]:
    _, figures = context.installed("pytorch+compile")
    first = []
    for block in (1, 2):
        result = _training_speed(context, "pytorch+compile", block=block)
        figures.append(equal(f"block {block}, outcome", result.outcome, str(RunOutcome.OK)))
        if result.outcome != RunOutcome.OK:
            return [*figures, unmeasured(f"block {block}, first step", result.reason)]
        for name, expected in (("compilations", 1), ("recompilations", 0), ("graph_breaks", 0)):
            figures.append(
                equal(f"block {block}, {name}", result.metrics[f"train/{name}"], expected)
            )
        first.append(result.metrics["train/first_step_seconds"])
        figures.append(reported(f"block {block}, first step, s", first[-1]))
    ratio = first[1] / first[0]
    figures.append(
        within("first step of block 2 over block 1", ratio, 1 / EQUALLY_COLD, EQUALLY_COLD)
    )
    return figures


def _workers(context: Context) -> Sequence[Figure]:
    _, figures = context.installed("pytorch")
    found = probe("workers", device=context.device, hooks=("none", "fp16"))
    figures += [
        at_most(f"one worker, hook {hook}", one["error"], one["limit"])
        for hook, one in found.items()
    ]
    return figures


def _adam(context: Context) -> Sequence[Figure]:
    _, figures = context.installed("pytorch")
    found = probe("adam_kernels", device=context.device)
    ours, stock = (found["kernels"][name] for name in ("adam-stock", "stock"))
    figures.append(reported("implementation", found["implementation"]))
    figures.append(equal("kernels of a step", sum(ours.values()), sum(stock.values())))
    different = sorted(
        name for name in ours.keys() | stock.keys() if ours.get(name) != stock.get(name)
    )
    figures.append(equal("kernels that differ", "; ".join(different) or "none", "none"))
    return figures


def _cells(context: Context) -> Sequence[Figure]:
    names, figures = context.installed(*(FOUR_VARIANTS if context.has_gpu else ("pytorch",)))
    for name in names:
        result = _training_speed(context, name, timing="both", window_steps=5, steps=20)
        figures.append(_ok(f"{name}, cell of training_speed", result))
        if result.outcome == RunOutcome.OK:
            figures.append(
                reported(f"{name}, step, ms", 1_000 * result.metrics["train/step_seconds"])
            )
            figures.append(
                reported(f"{name}, examples a second", result.metrics["train/examples_per_second"])
            )
    if "pytorch" not in names:
        return figures
    model, side, rows = ("resnet18", 224, 64) if context.has_gpu else ("lenet", 28, 8)
    result = _grid(
        context,
        "pytorch",
        model,
        side,
        rows,
        seconds=2.0 if context.has_gpu else 0.1,
        optimizer="adam-stock",
    )
    figures.append(_ok(f"pytorch, cell of the grid, {model}", result))
    plain = probe(
        "plain_loop",
        device=context.device,
        model=model,
        side=side,
        rows=rows,
        classes=10,
        steps=50,
        warmup=20,
    )
    if result.outcome == RunOutcome.OK:
        ratio = result.metrics["train/step_seconds"] / plain["step_seconds"]
        name = f"pytorch, step of {model} over that of a plain loop"
        # on a CPU a step is too short, and other programs too near, for a limit
        figures.append(
            within(name, ratio, 0.97, 1.03) if context.has_gpu else reported(name, ratio)
        )
    return figures


def _ok(name: str, result: AloneResult) -> Figure:
    return Figure(
        name, result.outcome, "equal to ok", result.outcome == RunOutcome.OK, result.reason
    )


def _grid(
    context: Context,
    framework: str,
    model: str,
    side: int,
    rows: int,
    *,
    seconds: float = 0.5,
    phases: Sequence[str] = ("train",),
    optimizer: str = "adam",
) -> AloneResult:
    sizes: dict[str, Any] = {
        "models": (model,),
        "image_sizes": (side,),
        "batch_sizes": (rows,),
        "classes": 10,
    }
    more: dict[str, Any] = {
        "seconds": seconds,
        "phases": tuple(phases),
        "optimizer": optimizer,
        "blocks": 1,
    }
    return cells.run(context.folder, "grid", framework, context.device, **sizes, **more)


def _training_speed(
    context: Context,
    framework: str,
    *,
    block: int = 1,
    timing: str = "step",
    window_steps: int = 1,
    steps: int = 5,
) -> AloneResult:
    given: dict[str, Any] = {
        "models": ("lenet",),
        "size": "tiny",
        "batch_size": 32,
        "steps": steps,
        "warmup_steps": 3,
        "blocks": 1,
    }
    clock: dict[str, Any] = {"timing": timing, "window_steps": window_steps}
    return cells.run(
        context.folder, "training_speed", framework, context.device, block=block, **given, **clock
    )


CHECKS = (
    Check(
        1,
        "one GPU, one name",
        10,
        "NVML and PyTorch name one card; an empty CUDA_VISIBLE_DEVICES is the CPU",
        _visible_gpu,
    ),
    Check(
        2,
        "precision",
        40,
        "relative L2 error against float64: float32 < 2e-6, tf32 1e-4 to 3e-3, bfloat16 > 1e-3",
        _precision,
        on_cpu=True,
    ),
    Check(3, "LSTM in bfloat16", 10, "an LSTM returns bfloat16, or is refused", _lstm_type),
    Check(
        4,
        "contract suite",
        90,
        "every framework keeps its contract in float64",
        _contract,
        on_cpu=True,
    ),
    Check(
        5,
        "parity gate",
        60,
        "networks are equal to PyTorch's in every framework, in float64",
        _gate,
        on_cpu=True,
    ),
    Check(
        6,
        "synchronisation",
        20,
        "four times the work is four times the step, ± 3 %; no step is shorter",
        _synchronisation,
    ),
    Check(
        7,
        "free-running",
        20,
        "ten steps take ten times the longer of host and device; on a CPU, their sum",
        _free_running,
        on_cpu=True,
    ),
    Check(
        8,
        "peak memory",
        20,
        "1 GiB and 3 GiB are seen as such, ± 1 MiB; JAX does not preallocate",
        _peaks,
    ),
    Check(
        9,
        "out of memory",
        60,
        "a cell that does not fit is out_of_memory with its phase; the next is ok",
        _out_of_memory,
    ),
    Check(
        10,
        "energy",
        20,
        "the counter is the integral of power, ± 10 %; too few updates are not available",
        _energy,
    ),
    Check(11, "neighbour on the GPU", 15, "a cell beside another process is disturbed", _neighbour),
    Check(
        12,
        "profiler",
        30,
        "ten launches are counted as ten, and copies apart from them",
        _profiler,
        on_cpu=True,
    ),
    Check(
        13,
        "compile",
        30,
        "one compilation, no graph break, equally cold in blocks 1 and 2",
        _compile,
        on_cpu=True,
    ),
    Check(
        14,
        "one worker",
        20,
        "DistributedDataParallel with one worker trains as none, ± 1e-12",
        _workers,
        on_cpu=True,
    ),
    Check(15, "adam-stock", 15, "adam-stock runs the kernels of torch.optim.Adam's default", _adam),
    Check(
        16,
        "real cells",
        60,
        "cells end well; on a GPU a step is within 3 % of a plain loop's",
        _cells,
        on_cpu=True,
    ),
)
