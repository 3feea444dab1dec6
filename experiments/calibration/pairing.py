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

from experiments.calibration.simulation import Claim, Share, limit
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
MOST_SPREAD, MOST_TIME = 0.5, 0.5
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
    """What one campaign found: SDs of paired log-ratios, of a framework against itself and against itself slowed.

    different: outcomes of itself that were called different. block_seconds: how long a block took.
    """

    spread: float
    delayed_spread: float
    different: tuple[str, ...]
    block_seconds: float


@dataclass(frozen=True)
class Found:
    """What campaigns of one pairing found together. blocks: that show the delay with a power of 80 %."""

    pairing: str
    campaigns: int
    spread: float
    delayed_spread: float
    called_different: int
    block_seconds: float
    blocks: int

    @property
    def seconds(self) -> float:
        """Machine time until the delay is found."""
        return self.blocks * self.block_seconds


def calibrate(
    *, campaigns: int, seed: int, neighbour: bool, given: Sequence[str] = (), progress: Callable[[str], None] = lambda _: None
) -> list[Found]:
    """So many campaigns of each pairing, a random one first each time. given: settings of the study `calibrate`, `--name=value`.

    neighbour: whether another program burns the CPU of the cells at random seconds. Raises EvenhandError where one fails.
    """
    rng = np.random.default_rng(seed)
    found: dict[str, list[Campaign]] = {name: [] for name in PAIRINGS}
    with tempfile.TemporaryDirectory() as folder:
        for number in range(campaigns):
            for at in rng.permutation(len(PAIRINGS)).tolist():
                name = PAIRINGS[at]
                progress(f"campaign {number + 1} of {campaigns}, {name}")
                with _busy(seed * 1_000 + number) if neighbour else nullcontext():
                    found[name].append(_campaign(Path(folder), name, seed + number, given))
    return [_together(name, several) for name, several in found.items()]


@contextmanager
def _busy(seed: int) -> Iterator[None]:
    command = [sys.executable, "-m", "experiments.calibration.neighbour", str(seed), str(devices.cpus_of_cells(_reserved())[0])]
    process = subprocess.Popen(command, start_new_session=True)
    try:
        yield
    finally:
        process.kill()
        process.wait()


def _reserved() -> int:
    """All CPUs but one."""
    return len(devices.cpus_of_cells(0)) - 1


def _campaign(folder: Path, pairing: str, seed: int, given: Sequence[str]) -> Campaign:
    kept = folder / "journal"
    before = set(journal.campaigns(kept)) if kept.exists() else set()
    own = {**SETTINGS, "pairing": pairing, "seed": str(seed), "journal": str(kept), "reserve_cores": str(_reserved())}
    command = [sys.executable, "-m", "experiments", "calibrate", *(f"--{name}={text}" for name, text in own.items()), *given]
    environment = {**os.environ, "MLFLOW_TRACKING_URI": f"sqlite:///{folder}/mlflow.db"}
    done = subprocess.run(command, env=environment, cwd=Path.cwd(), capture_output=True, text=True)
    if done.returncode not in (0, 3):
        raise EvenhandError(f"a campaign ended with code {done.returncode}: {(done.stderr or done.stdout).strip()[-1_000:]}")
    return _read((set(journal.campaigns(kept)) - before).pop())


def _read(folder: Path) -> Campaign:
    rows = json.loads((folder / "report" / "comparison.json").read_text(encoding="utf-8"))["rows"]
    of_itself = [row for row in rows if row["b"].endswith("A/A")]
    delayed = [row for row in rows if not row["b"].endswith("A/A")]
    different = [row["metric"] for row in of_itself if row["p_holm"] is not None and row["p_holm"] <= ALPHA]
    cells = [one.run for one in journal.read_all(folder) if isinstance(one, RunOpened) and one.tags["kind"] == "cell"]
    began = min(one.time_ms for one in journal.read_all(folder) if isinstance(one, RunOpened) and one.run in cells)
    ended = max(one.time_ms for one in journal.read_all(folder) if isinstance(one, RunClosed) and one.run in cells)
    blocks = next(row["n_blocks"] for row in rows if row["metric"] == METRIC)
    return Campaign(_spread(of_itself), _spread(delayed), tuple(different), (ended - began) / 1_000 / blocks)


def _spread(rows: Sequence[Mapping[str, Any]]) -> float:
    """The SD of the paired log-ratio of `METRIC`, from its t interval."""
    row = next(one for one in rows if one["metric"] == METRIC)
    n = int(row["n_blocks"])
    return math.log(row["ci_high"] / row["ci_low"]) / 2 * math.sqrt(n) / t_quantile(1 - ALPHA / 2, n - 1)


def _together(pairing: str, several: Sequence[Campaign]) -> Found:
    delayed = math.sqrt(float(np.mean([one.delayed_spread**2 for one in several])))
    return Found(
        pairing,
        len(several),
        math.sqrt(float(np.mean([one.spread**2 for one in several]))),
        delayed,
        sum(METRIC in one.different for one in several),
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
        few, many = (few, middle) if power_of_t(math.log1p(effect), spread, middle) >= POWER else (middle, many)
    return many


def meets(found: Sequence[Found], *, neighbour: bool) -> list[Claim]:
    """What is promised, and whether it stands; of spreads and machine time where the machine has a neighbour."""
    one_by_one, in_turns = found
    promised = [
        ("in turns: campaigns that call a framework different from itself", 0.0, in_turns.called_different / in_turns.campaigns)
    ]
    if neighbour:
        promised += [
            ("SD of the paired log-ratio, over that of one by one", MOST_SPREAD, in_turns.spread / one_by_one.spread),
            (
                f"time to find {100 * DELAY:g} %, over that of one by one",
                MOST_TIME,
                in_turns.seconds / one_by_one.seconds,
            ),
        ]
    return [Claim(claim, limit(0.0, most), Share(value, value, value), value <= most) for claim, most, value in promised]


def as_markdown(found: Sequence[Found], *, neighbour: bool) -> str:
    """A line for each pairing, then every promise with whether it stands."""
    lines = [
        f"| pairing | campaigns | SD, A/A | SD, +{100 * DELAY:g} % | A/A different | a block | blocks to find it | time |",
        "|---|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for one in found:
        spreads = f"{100 * one.spread:.1f} % | {100 * one.delayed_spread:.1f} %"
        times = f"{one.block_seconds:.1f} s | {one.blocks} | {one.seconds / 60:.1f} min"
        lines.append(f"| `{one.pairing}` | {one.campaigns} | {spreads} | {one.called_different} | {times} |")
    lines += ["", "| promise | limit | measured | |", "|---|--:|--:|---|"]
    for claim in meets(found, neighbour=neighbour):
        measured = f"{100 * claim.measured.value:.0f} %"
        lines.append(f"| {claim.claim} | {claim.limit} | {measured} | {'holds' if claim.holds else '**does not hold**'} |")
    return "\n".join(lines) + "\n"
