"""How close cells came to the limits of the machine, which are measured before and after them."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import models
from experiments import metrics
from experiments.config import interpreters
from experiments.contract import LIMITS, WORK, Limits
from experiments.datasets.files import replace_text
from experiments.run import journal_runs, preflight
from experiments.run.campaign import Campaign
from experiments.run.cell_run import folder_of
from experiments.run.sensing import write_metrics
from models.devices import CPU
from models.frameworks import VENDOR_PEAKS
from models.limits import computing
from tracking import provenance
from tracking.records import RunKind, RunOutcome

MOST_CHANGE = 0.05
VALUE_BYTES = 4  # of weights, gradients and moments
Place = tuple[str, str, int]


def record(campaign: Campaign) -> list[str]:
    """Record FLOPs, peak and MFU of the cells that have none yet.

    Returns:
        Lines on what could not be recorded.
    """
    recorder, runs = campaign.recorder, dict[str, dict[str, Any]]()
    if not _measured_limits(campaign.prepared.findings):
        return []
    measured = journal_runs.read(recorder.folder)
    for name, run in measured.items():
        is_good = run.closed and run.closed.outcome == RunOutcome.OK
        if is_good and run.tags.get("kind") == RunKind.CELL and metrics.FLOPS not in run.metrics:
            file = recorder.folder / folder_of(run.tags["cell"], name) / WORK
            if file.is_file():
                runs[name] = json.loads(file.read_text())
    if not runs:
        return []
    campaign.recorder.display.begin("FLOPs, and peak of the machine")
    with TemporaryDirectory() as folder, ThreadPoolExecutor(1) as pool:
        networks = [work["network"] for work in runs.values()]
        counting = pool.submit(_count, campaign, networks, Path(folder))
        places = {tuple(work["place"]) for work in runs.values()}
        limits, changed = _limits(campaign, places, Path(folder))
        counts, troubles = counting.result()
    for name, work in runs.items():
        if counted := counts.get(json.dumps(work["network"])):
            values = {key: value for key, (_, value) in measured[name].metrics.items()}
            limit = limits.get(tuple(work["place"]))
            write_metrics(name, _metrics(work, counted, values, limit), recorder.write)
    return [*troubles, *changed]


def _count(
    campaign: Campaign, networks: Iterable[Mapping[str, Any]], folder: Path
) -> tuple[dict[str, Mapping[str, float]], list[str]]:
    """Return the FLOPs of each network by its JSON, counted in a process that imports PyTorch.

    Counts of the same code are read from the cache.
    """
    pythons = campaign.settings.pythons
    if missing := interpreters.missing("pytorch", pythons):
        return {}, [f"FLOPs are not counted: {missing}"]
    python = interpreters.separate("pytorch", pythons)
    code = [dict(interpreters.packages("pytorch", python)), models.code_digest()]
    files, known = dict[str, Path](), dict[str, Mapping[str, float]]()
    for text in map(json.dumps, networks):
        key = json.dumps([text, *code], sort_keys=True)
        name = f"{hashlib.sha256(key.encode()).hexdigest()[:16]}.json"
        files[text] = Path(campaign.settings.cache, "flops", name)
        with suppress(OSError, ValueError):  # not counted yet, or a damaged file
            known[text] = json.loads(files[text].read_text())
    texts = [text for text in files if text not in known]
    if not texts:
        return known, []
    with computing(folder):
        result = subprocess.run(
            [python or sys.executable, "-m", "models.flops"],
            cwd=Path(__file__).parents[2],
            input=f"[{','.join(texts)}]",
            capture_output=True,
            text=True,
        )
    if result.returncode:
        return {}, [f"FLOPs are not counted: the process exited with {result.returncode}"]
    counted = dict(zip(texts, json.loads(result.stdout), strict=True))
    troubles = [
        f"FLOPs of {json.loads(text)['model']} are not counted: {reason}"
        for text, reason in counted.items()
        if isinstance(reason, str)
    ]
    counted = {text: each for text, each in counted.items() if not isinstance(each, str)}
    for text, each in counted.items():
        files[text].parent.mkdir(parents=True, exist_ok=True)
        replace_text(files[text], json.dumps(each))
    return known | counted, troubles


def _limits(
    campaign: Campaign, places: set[Place], folder: Path
) -> tuple[dict[Place, Limits], list[str]]:
    """Return the highest limits of each place, and lines on those that changed meanwhile."""
    prepared, best = campaign.prepared, dict[Place, Limits]()
    if prepared.settings.on_cluster:  # its nodes differ
        return {}, []
    for limits in _measured_limits(prepared.findings):
        if limits.place in places:
            best[limits.place] = _higher(limits, best.get(limits.place, limits))
    if not best:
        return {}, []
    enough: dict[str, float] = {}
    for limits in best.values():
        least = (1 - MOST_CHANGE) * limits.peak_flops
        enough[limits.framework] = min(least, enough.get(limits.framework, least))
    checks = preflight.check_frameworks(prepared, enough, folder)
    again = {
        (limits.place, limits.framework): limits
        for limits in _measured_limits(check.findings for check in checks)
    }
    confirmed, lines = dict[Place, Limits](), list[str]()
    for place, before in best.items():
        after = again.get((place, before.framework))
        if after and abs(after.peak_flops / before.peak_flops - 1) <= MOST_CHANGE:
            confirmed[place] = _higher(after, before)
            continue
        speed = f"{after.peak_flops / 1e9:.0f}" if after else "unknown"
        lines.append(
            f"No share of the machine's peak on {before.device}: the fastest products of matrices "
            f"had {before.peak_flops / 1e9:.0f} GFLOP/s before the campaign, and {speed} after it"
        )
    return confirmed, lines


def _measured_limits(findings: Iterable[Mapping[str, str]]) -> list[Limits]:
    return [Limits(**json.loads(each[LIMITS])) for each in findings if LIMITS in each]


def _higher(a: Limits, b: Limits) -> Limits:
    faster = max(a, b, key=lambda limits: limits.peak_flops)
    return Limits(**{**vars(faster), "bandwidth": max(a.bandwidth, b.bandwidth)})


def _metrics(
    work: Mapping[str, Any],
    counted: Mapping[str, float],
    values: Mapping[str, float],
    limits: Limits | None,
) -> dict[str, float]:
    """Return the metrics of a run."""
    trainable = values.get("model/trainable_parameters", 0.0)
    weights = trainable + values.get("model/non_trainable_parameters", 0.0)
    trained = weights + (1 + work["moments"]) * trainable
    results = {
        metrics.FLOPS: counted["forward"],
        metrics.TRAINING_FLOPS: counted["training"],
    }
    phases = ("training", work["rows"], trained), ("answer", work["requested"], weights)
    for key, (flops, rows, moved) in zip(metrics.INTENSITIES, phases, strict=True):
        nbytes = VALUE_BYTES * moved + rows * counted["bytes_in_and_out"]
        results[key] = rows * counted[flops] / nbytes
    stepped = values.get("train/stepped_examples_per_second")
    rates = (values.get(metrics.FREELY, stepped), values.get("inference/examples_per_second"))
    if counted["tokens"]:
        results[metrics.PADDING] = counted["padding_percent"]
        if rates[0]:
            results[metrics.TOKENS] = rates[0] * counted["tokens"]
    if limits:
        results |= {metrics.PEAK: limits.peak_flops}
        results |= {metrics.BANDWIDTH: limits.bandwidth} if limits.bandwidth else {}
        gpus = provenance.gpus() if limits.device != CPU else []
        for part, peaks in VENDOR_PEAKS.items():
            if gpus and part in gpus[0] and limits.precision in peaks:
                results[metrics.VENDOR_PEAK] = peaks[limits.precision]
        for key, (flops, *_), rate in zip(metrics.SHARES_OF_PEAK, phases, rates, strict=True):
            if rate:
                results[key] = rate * counted[flops] / limits.peak_flops
    return results
