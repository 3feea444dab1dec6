"""Cells that take turns against cells one after the other, in real campaigns on this machine.

`pytest -n 0 -s -m slow tests/benchmarks/test_pairing.py` prints the figures of docs/measurement.md.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from statsmodels.stats.power import TTestPower

from experiments.comparison.statistics.estimates import t_quantile
from experiments.comparison.statistics.significance import ALPHA
from tests import neighbours
from tests.conftest import PYTHONPATH
from tracking import journal
from tracking.records import RunClosed, RunOpened

# Total over total: a neighbour slows about half of the steps, so that their median jumps.
METRIC = "train/examples_per_second"
DELAY, CAMPAIGNS = 0.05, 3
MAX_SPREAD, MAX_TIME = 0.5, 0.5
# Each cell has one CPU, the neighbour's; training and some requests are measured.
SETTINGS = {
    "frameworks": "toy",
    "data": "synthetic",
    "vocabulary": "60",
    "length": "8",
    "epochs": "1",
    "steps_per_epoch": "50",
    "inference_requests": "2",
    "inference_batch_sizes": "1",
    "formulation": "sequence",
    "beams": "1",
    "timing": "step",
    "aa": "true",
    "blocks": "6",
    "primary": METRIC,
    "inject_delay": str(DELAY),
    "others_limit_percent": "100",
    "save_model": "none",
    "bleu_images": "1",
    "validation_captions": "1",
    "threads": "1",
}
# Burns a CPU at random seconds: longer than a turn of a cell, and shorter than a block.
NEIGHBOUR = """
import os, random, time
os.sched_setaffinity(0, [{cpu}])
rng = random.Random({seed})
while True:
    until = time.monotonic() + rng.uniform(0.5, 3.0)
    while time.monotonic() < until:
        pass
    time.sleep(rng.uniform(0.5, 3.0))
"""


@dataclass(frozen=True)
class Campaign:
    """Result of a framework against itself and, `delayed`, against itself slowed.

    Attributes:
        spread: SD of the paired log-ratio.
        seconds: Machine time until the delay is shown with a power of 80 %.
    """

    spread: float
    delayed_spread: float
    seconds: float


def run_campaign(folder: Path, pairing: str, seed: int, cache: Path) -> Campaign:
    cpus = sorted(os.sched_getaffinity(0))[-1:]  # the neighbour's
    folders = {"journal": folder / "journal", "cache": cache, "seed": seed}
    values = {**SETTINGS, **folders, "pairing": pairing}
    command = [sys.executable, "-m", "experiments", "captioning"]
    command += [f"--{name}={value}" for name, value in values.items()]
    environment = {**os.environ, "MLFLOW_TRACKING_URI": f"sqlite:///{folder}/mlflow.db"}
    run = subprocess.run(
        command,
        env=environment,
        capture_output=True,
        text=True,
        preexec_fn=lambda: os.sched_setaffinity(0, cpus),
    )
    assert run.returncode in (0, 3), run.stderr[-1_000:]
    (report,) = folder.glob("journal/**/report/comparison.json")
    rows = [row for row in json.loads(report.read_text())["rows"] if row["metric"] == METRIC]
    itself, delayed = sorted(rows, key=lambda row: not row["b"].endswith("A/A"))
    records = list(journal.read_all(report.parent.parent))
    cells = {
        record.run
        for record in records
        if isinstance(record, RunOpened) and record.tags["kind"] == "cell"
    }
    ends = [record for record in records if isinstance(record, RunOpened | RunClosed)]
    times = [record.time_ms for record in ends if record.run in cells]
    effect = math.log1p(DELAY) / log_spread(delayed)
    blocks = math.ceil(TTestPower().solve_power(effect, power=0.8, alpha=ALPHA))
    block_seconds = (max(times) - min(times)) / 1_000 / itself["n_blocks"]
    return Campaign(log_spread(itself), log_spread(delayed), blocks * block_seconds)


def log_spread(row: dict[str, Any]) -> float:
    """Return the SD of the paired log-ratio, from the interval of a row."""
    n = row["n_blocks"]
    half = math.log(row["ci_high"] / row["ci_low"]) / 2 / row["widening"]
    return half * math.sqrt(n) / t_quantile(1 - ALPHA / 2, n - 1)


@pytest.mark.slow
@pytest.mark.timeout(3_600)
def test_turns_cancel_a_neighbour(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shared_cache: Path
) -> None:
    """Campaigns of each pairing on a CPU that a neighbour burns at random seconds."""
    monkeypatch.setenv("PYTHONPATH", PYTHONPATH)
    monkeypatch.setenv("EVENHAND_TOY_COSTS", json.dumps({"toy": {"work": 150}}))
    rng, cpu = np.random.default_rng(1), max(os.sched_getaffinity(0))
    figures: dict[str, list[Campaign]] = {"sequential": [], "interleaved": []}
    for seed in range(CAMPAIGNS):
        for pairing in rng.permutation(list(figures)).tolist():
            folder = tmp_path / f"{pairing}{seed}"
            folder.mkdir()
            with neighbours.busy(1, NEIGHBOUR.format(seed=seed, cpu=cpu)):
                figures[pairing].append(run_campaign(folder, pairing, seed, shared_cache))
            print(pairing, figures[pairing][-1])
    mean = {
        pairing: Campaign(*np.mean([list(vars(run).values()) for run in campaigns], axis=0))
        for pairing, campaigns in figures.items()
    }
    one_by_one, in_turns = mean["sequential"], mean["interleaved"]
    assert in_turns.spread <= MAX_SPREAD * one_by_one.spread
    assert in_turns.seconds <= MAX_TIME * one_by_one.seconds
    assert in_turns.delayed_spread < one_by_one.delayed_spread
