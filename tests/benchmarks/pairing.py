"""Cells that take turns against cells one after the other, in real campaigns on this machine."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from experiments.calibration.simulation import Claim, Proportion, share
from experiments.comparison.statistics.estimates import t_quantile
from experiments.comparison.statistics.power import MAXIMUM_BLOCKS, POWER, power_of_t
from experiments.comparison.statistics.significance import ALPHA
from experiments.config import devices
from tracking import journal
from tracking.errors import EvenhandError
from tracking.records import RunClosed, RunOpened

PAIRINGS = ("sequential", "interleaved")
# Total over total: a neighbour slows about half of the steps, so that their median jumps.
METRIC = "train/examples_per_second"
DELAY = 0.05
MAX_SPREAD, MAX_TIME = 0.5, 0.5
# Each cell has one CPU, the neighbour's; training and some requests are measured.
SETTINGS = {
    "campaigns": "0",
    "blocks": "6",
    "primary": METRIC,
    "inject_delay": str(DELAY),
    "others_limit_percent": "100",
    "save_model": "none",
    "bleu_images": "1",
    "validation_captions": "1",
    "threads": "1",
}


@dataclass(frozen=True)
class Campaign:
    """Results of a framework against itself and, `delayed`, against itself slowed.

    Attributes:
        shift, spread: Mean and SD of the paired log-ratio.
        different: Outcomes of itself that were called different.
        blocks, block_seconds: Number of blocks, and duration of a block.
    """

    shift: float
    spread: float
    delayed_spread: float
    different: tuple[str, ...]
    blocks: int
    block_seconds: float

    def __str__(self) -> str:
        wrong = ", ".join(self.different) or "nothing"
        spreads = f"SD {100 * self.spread:.2f} %, slowed {100 * self.delayed_spread:.2f} %"
        block = f"a block {self.block_seconds:.1f} s"
        return f"A/A {math.exp(self.shift):.3f}, {spreads}, different: {wrong}, {block}"


@dataclass(frozen=True)
class PairingResult:
    """Results of the campaigns of one pairing.

    Attributes:
        shift, error: Mean log-ratio of a framework to itself, and its standard error.
        different: Whether each campaign called it different.
        blocks: Number of blocks that show the delay with a power of 80 %.
    """

    pairing: str
    shift: float
    error: float
    spread: float
    delayed_spread: float
    different: tuple[bool, ...]
    block_seconds: float
    blocks: int

    @property
    def seconds(self) -> float:
        """Machine time until the delay is shown."""
        return self.blocks * self.block_seconds


def calibrate(
    *,
    campaigns: int,
    seed: int,
    neighbour: bool,
    settings: Sequence[str] = (),
    progress: Callable[[str], None] = lambda _: None,
) -> list[PairingResult]:
    """Run campaigns of each pairing, in random order each time.

    Args:
        neighbour: Whether another program burns the CPU of the cells at random seconds.
        settings: Of the study `calibrate`, as `--name=value`.

    Raises:
        EvenhandError: A campaign failed.
    """
    rng, cpu = np.random.default_rng(seed), devices.own_cpus()[-1]
    results: dict[str, list[Campaign]] = {name: [] for name in PAIRINGS}
    with tempfile.TemporaryDirectory() as folder:
        for number in range(campaigns):
            for at in rng.permutation(len(PAIRINGS)).tolist():
                name = PAIRINGS[at]
                with _busy(seed * 1_000 + number, cpu) if neighbour else nullcontext():
                    campaign = _campaign(Path(folder), name, seed + number, settings)
                progress(f"campaign {number + 1} of {campaigns}, {name}: {campaign}")
                results[name].append(campaign)
    return [_together(name, several) for name, several in results.items()]


@contextmanager
def _busy(seed: int, cpu: int) -> Iterator[int]:
    """Run a neighbour. Yield its process id."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.benchmarks.neighbour", str(seed), str(cpu)],
        start_new_session=True,
    )
    try:
        yield process.pid
    finally:
        process.kill()
        process.wait()


def _campaign(folder: Path, pairing: str, seed: int, settings: Sequence[str]) -> Campaign:
    root = folder / "journal"
    before = set(journal.campaigns(root)) if root.exists() else set()
    values = {
        **SETTINGS,
        "pairing": pairing,
        "seed": str(seed),
        "journal": str(root),
    }
    command = [
        sys.executable,
        "-m",
        "experiments",
        "calibrate",
        *(f"--{name}={text}" for name, text in values.items()),
        *settings,
    ]
    environment = {**os.environ, "MLFLOW_TRACKING_URI": f"sqlite:///{folder}/mlflow.db"}
    done = subprocess.run(
        command,
        env=environment,
        capture_output=True,
        text=True,
        preexec_fn=lambda: os.sched_setaffinity(0, devices.own_cpus()[-1:]),
    )
    if done.returncode not in (0, 3):
        output = (done.stderr or done.stdout).strip()[-1_000:]
        raise EvenhandError(f"a campaign ended with code {done.returncode}: {output}")
    return _read((set(journal.campaigns(root)) - before).pop())


def _read(folder: Path) -> Campaign:
    rows = json.loads((folder / "report" / "comparison.json").read_text(encoding="utf-8"))["rows"]
    of_itself = [row for row in rows if row["b"].endswith("A/A")]
    delayed = [row for row in rows if not row["b"].endswith("A/A")]
    different = [
        row["metric"] for row in of_itself if row["p_holm"] is not None and row["p_holm"] <= ALPHA
    ]
    records = list(journal.read_all(folder))
    starts_ms = {
        record.run: record.time_ms
        for record in records
        if isinstance(record, RunOpened) and record.tags["kind"] == "cell"
    }
    ends_ms = [
        record.time_ms
        for record in records
        if isinstance(record, RunClosed) and record.run in starts_ms
    ]
    seconds = (max(ends_ms) - min(starts_ms.values())) / 1_000
    (shift, spread, blocks), (_, delayed_spread, _) = _log_ratio(of_itself), _log_ratio(delayed)
    return Campaign(shift, spread, delayed_spread, tuple(different), blocks, seconds / blocks)


def _log_ratio(rows: Sequence[Mapping[str, Any]]) -> tuple[float, float, int]:
    """Return mean and SD of the paired log-ratio of `METRIC`, and its blocks, from its row."""
    row = next(row for row in rows if row["metric"] == METRIC)
    n = int(row["n_blocks"])
    half = math.log(row["ci_high"] / row["ci_low"]) / 2 / row["widening"]
    spread = half * math.sqrt(n) / t_quantile(1 - ALPHA / 2, n - 1)
    return math.log(row["estimate"]), spread, n


def _together(pairing: str, several: Sequence[Campaign]) -> PairingResult:
    spread, delayed = (
        math.sqrt(float(np.mean(np.square(sds))))
        for sds in (
            [campaign.spread for campaign in several],
            [campaign.delayed_spread for campaign in several],
        )
    )
    return PairingResult(
        pairing,
        float(np.mean([campaign.shift for campaign in several])),
        spread / math.sqrt(sum(campaign.blocks for campaign in several)),
        spread,
        delayed,
        tuple(METRIC in campaign.different for campaign in several),
        float(np.median([campaign.block_seconds for campaign in several])),
        blocks_to_show(DELAY, delayed),
    )


def blocks_to_show(effect: float, spread: float) -> int:
    """Return the fewest blocks whose paired t test shows this effect with a power of 80 %.

    effect: Of a ratio, less 1. The result is at most 100,000.
    """
    few, many = 1, 2
    while power_of_t(math.log1p(effect), spread, many) < POWER and many < MAXIMUM_BLOCKS:
        few, many = many, 2 * many
    while many - few > 1:
        middle = (few + many) // 2
        few, many = (
            (few, middle)
            if power_of_t(math.log1p(effect), spread, middle) >= POWER
            else (middle, many)
        )
    return many


def meets(results: Sequence[PairingResult], *, neighbour: bool) -> list[Claim]:
    """Return the promises, and whether they hold: with a neighbour also of spreads and time."""
    one_by_one, in_turns = results
    wrong = share(in_turns.different)
    claims = [
        Claim(
            "in turns: campaigns that call a framework different from itself",
            f"≤ {100 * ALPHA:g} %",
            wrong,
            wrong.low <= ALPHA,
        )
    ]
    if neighbour:
        spreads, times = in_turns.spread / one_by_one.spread, in_turns.seconds / one_by_one.seconds
        promised = [
            ("SD of the paired log-ratio", MAX_SPREAD, spreads),
            (f"time to show {100 * DELAY:g} %", MAX_TIME, times),
        ]
        claims += [
            Claim(
                f"{what}, over that of one by one",
                f"≤ {100 * most:g} %",
                Proportion(value, value, value),
                value <= most,
            )
            for what, most, value in promised
        ]
    return claims


def as_markdown(results: Sequence[PairingResult], *, neighbour: bool) -> str:
    """Return a line for each pairing, then the promises and whether they hold."""
    lines = [
        f"| pairing | campaigns | A/A | different | SD | SD, +{100 * DELAY:g} % "
        "| a block | blocks to find it | time |",
        "|---|--:|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for result in results:
        ratio = f"{math.exp(result.shift):.3f} ± {result.error:.3f} | {sum(result.different)}"
        spreads = f"{100 * result.spread:.1f} % | {100 * result.delayed_spread:.1f} %"
        times = f"{result.block_seconds:.1f} s | {result.blocks} | {result.seconds / 60:.1f} min"
        lines.append(
            f"| `{result.pairing}` | {len(result.different)} | {ratio} | {spreads} | {times} |"
        )
    lines += ["", "| promise | limit | measured | |", "|---|--:|--:|---|"]
    for claim in meets(results, neighbour=neighbour):
        holds = "holds" if claim.holds else "**does not hold**"
        lines.append(f"| {claim.claim} | {claim.limit} | {claim.measured} | {holds} |")
    return "\n".join(lines) + "\n"
