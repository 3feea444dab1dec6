"""Cells that take turns against cells one after the other: real campaigns on this machine, in the same minutes."""

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

from experiments.calibration.simulation import Claim, Share, limit, share
from experiments.comparison.statistics.estimates import t_quantile
from experiments.comparison.statistics.power import MAXIMUM_BLOCKS, POWER, power_of_t
from experiments.comparison.statistics.significance import ALPHA
from experiments.config import devices
from tracking import journal
from tracking.errors import EvenhandError
from tracking.records import RunClosed, RunOpened

PAIRINGS = ("sequential", "interleaved")
# Total over total: a median of steps of which a neighbour slows about half is now this, now that.
METRIC = "train/examples_per_second"
DELAY = 0.05
MAX_SPREAD, MAX_TIME = 0.5, 0.5
# Each cell has one CPU, the neighbour's; what is measured is training and some requests, and nothing is written beside.
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
    """What one campaign found of a framework against itself and, `delayed`, against itself slowed.

    shift, spread: mean and SD of the paired log-ratio. different: outcomes of itself that were called different.
    blocks, block_seconds: how many, and how long one took.
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
        return f"A/A {math.exp(self.shift):.3f}, {spreads}, different: {wrong}, a block {self.block_seconds:.1f} s"


@dataclass(frozen=True)
class Found:
    """What campaigns of one pairing found together.

    shift, error: of the log-ratio of a framework to itself, over all blocks, the mean and its standard error.
    different: whether each campaign called it different. blocks: that show the delay with a power of 80 %.
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
        """Machine time until the delay is found."""
        return self.blocks * self.block_seconds


def calibrate(
    *,
    campaigns: int,
    seed: int,
    neighbour: bool,
    given: Sequence[str] = (),
    progress: Callable[[str], None] = lambda _: None,
) -> list[Found]:
    """So many campaigns of each pairing, a random one first each time. given: settings of the study `calibrate`, `--name=value`.

    neighbour: whether another program burns the CPU of the cells at random seconds. Raises EvenhandError where one fails.
    """
    rng, cpu = np.random.default_rng(seed), devices.own_cpus()[-1]
    found: dict[str, list[Campaign]] = {name: [] for name in PAIRINGS}
    with tempfile.TemporaryDirectory() as folder:
        for number in range(campaigns):
            for at in rng.permutation(len(PAIRINGS)).tolist():
                name = PAIRINGS[at]
                with _busy(seed * 1_000 + number, cpu) if neighbour else nullcontext():
                    one = _campaign(Path(folder), name, seed + number, given)
                progress(f"campaign {number + 1} of {campaigns}, {name}: {one}")
                found[name].append(one)
    return [_together(name, several) for name, several in found.items()]


@contextmanager
def _busy(seed: int, cpu: int) -> Iterator[int]:
    """A neighbour at work, by its number."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.benchmarks.neighbour", str(seed), str(cpu)],
        start_new_session=True,
    )
    try:
        yield process.pid
    finally:
        process.kill()
        process.wait()


def _reserved() -> int:
    """All CPUs but one."""
    return len(devices.own_cpus()) - 1


def _campaign(folder: Path, pairing: str, seed: int, given: Sequence[str]) -> Campaign:
    kept = folder / "journal"
    before = set(journal.campaigns(kept)) if kept.exists() else set()
    own = {
        **SETTINGS,
        "pairing": pairing,
        "seed": str(seed),
        "journal": str(kept),
        "reserve_cores": str(_reserved()),
    }
    command = [
        sys.executable,
        "-m",
        "experiments",
        "calibrate",
        *(f"--{name}={text}" for name, text in own.items()),
        *given,
    ]
    environment = {**os.environ, "MLFLOW_TRACKING_URI": f"sqlite:///{folder}/mlflow.db"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    if done.returncode not in (0, 3):
        raise EvenhandError(
            f"a campaign ended with code {done.returncode}: {(done.stderr or done.stdout).strip()[-1_000:]}"
        )
    return _read((set(journal.campaigns(kept)) - before).pop())


def _read(folder: Path) -> Campaign:
    rows = json.loads((folder / "report" / "comparison.json").read_text(encoding="utf-8"))["rows"]
    of_itself = [row for row in rows if row["b"].endswith("A/A")]
    delayed = [row for row in rows if not row["b"].endswith("A/A")]
    different = [
        row["metric"] for row in of_itself if row["p_holm"] is not None and row["p_holm"] <= ALPHA
    ]
    cells = [
        one.run
        for one in journal.read_all(folder)
        if isinstance(one, RunOpened) and one.tags["kind"] == "cell"
    ]
    began = min(
        one.time_ms
        for one in journal.read_all(folder)
        if isinstance(one, RunOpened) and one.run in cells
    )
    ended = max(
        one.time_ms
        for one in journal.read_all(folder)
        if isinstance(one, RunClosed) and one.run in cells
    )
    (shift, spread, blocks), (_, delayed_spread, _) = _log_ratio(of_itself), _log_ratio(delayed)
    return Campaign(
        shift, spread, delayed_spread, tuple(different), blocks, (ended - began) / 1_000 / blocks
    )


def _log_ratio(rows: Sequence[Mapping[str, Any]]) -> tuple[float, float, int]:
    """Return mean and SD of the paired log-ratio of `METRIC`, and its blocks, from its row."""
    row = next(one for one in rows if one["metric"] == METRIC)
    n = int(row["n_blocks"])
    half = math.log(row["ci_high"] / row["ci_low"]) / 2 / row["widening"]
    spread = half * math.sqrt(n) / t_quantile(1 - ALPHA / 2, n - 1)
    return math.log(row["estimate"]), spread, n


def _together(pairing: str, several: Sequence[Campaign]) -> Found:
    spread, delayed = (
        math.sqrt(float(np.mean(np.square(sds))))
        for sds in ([one.spread for one in several], [one.delayed_spread for one in several])
    )
    return Found(
        pairing,
        float(np.mean([one.shift for one in several])),
        spread / math.sqrt(sum(one.blocks for one in several)),
        spread,
        delayed,
        tuple(METRIC in one.different for one in several),
        float(np.median([one.block_seconds for one in several])),
        blocks_to_find(DELAY, delayed),
    )


def blocks_to_find(effect: float, spread: float) -> int:
    """The fewest blocks whose paired t test shows this ratio less 1 with a power of 80 %; at most 100,000."""
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


def meets(found: Sequence[Found], *, neighbour: bool) -> list[Claim]:
    """What is promised, and whether it stands; of spreads and machine time where the machine has a neighbour."""
    one_by_one, in_turns = found
    wrong = share(in_turns.different)
    claims = [
        Claim(
            "in turns: campaigns that call a framework different from itself",
            limit(0.0, ALPHA),
            wrong,
            wrong.low <= ALPHA,
        )
    ]
    if neighbour:
        spreads, times = in_turns.spread / one_by_one.spread, in_turns.seconds / one_by_one.seconds
        promised = [
            ("SD of the paired log-ratio", MAX_SPREAD, spreads),
            (f"time to find {100 * DELAY:g} %", MAX_TIME, times),
        ]
        claims += [
            Claim(
                f"{what}, over that of one by one",
                limit(0.0, most),
                Share(value, value, value),
                value <= most,
            )
            for what, most, value in promised
        ]
    return claims


def as_markdown(found: Sequence[Found], *, neighbour: bool) -> str:
    """A line for each pairing, then every promise with whether it stands."""
    lines = [
        f"| pairing | campaigns | A/A | different | SD | SD, +{100 * DELAY:g} % | a block | blocks to find it | time |",
        "|---|--:|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for one in found:
        ratio = f"{math.exp(one.shift):.3f} ± {one.error:.3f} | {sum(one.different)}"
        spreads = f"{100 * one.spread:.1f} % | {100 * one.delayed_spread:.1f} %"
        times = f"{one.block_seconds:.1f} s | {one.blocks} | {one.seconds / 60:.1f} min"
        lines.append(f"| `{one.pairing}` | {len(one.different)} | {ratio} | {spreads} | {times} |")
    lines += ["", "| promise | limit | measured | |", "|---|--:|--:|---|"]
    for claim in meets(found, neighbour=neighbour):
        lines.append(
            f"| {claim.claim} | {claim.limit} | {claim.measured} | {'holds' if claim.holds else '**does not hold**'} |"
        )
    return "\n".join(lines) + "\n"
