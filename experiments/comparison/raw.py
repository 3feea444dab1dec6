"""What lies behind a run's metrics: the seconds of every step and what its sensors said, for the figures."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from experiments.comparison import estimates
from tracking.errors import EvenhandError

if TYPE_CHECKING:
    import pandas as pd

T = TypeVar("T")
Floats = NDArray[np.float64]
VALUES = "values.parquet"
LIVE_RATE = "live/examples_per_second"
BY_EPOCH = ("val/accuracy", "val/loss")
MOST_RUNS = 48
# Of very many runs fewer are fetched: each costs a server several answers, and half as many lines show as much.
VERY_MANY, FEWER_RUNS = 200, 24
AT_ONCE = 8
_SENSOR = re.compile(r"system/(?:cpu|gpu_\d+)_(?:power_usage_watts|temperature_celsius)")


class Source(Protocol):
    """Where runs keep files and series: `tracking.store.Store`."""

    def file(self, run_id: str, path: str, folder: Path) -> Path | None: ...

    def history(self, run_id: str, key: str) -> list[tuple[int, float]]: ...


@dataclass(frozen=True)
class Phase:
    """The steps (or requests) of one part of a run, in order: shape (steps,) each; `warmup` steps are in no summary."""

    name: str
    seconds: Floats
    examples: Floats
    warmup: NDArray[np.bool_]

    @property
    def measured(self) -> Floats:
        """Seconds of the steps that count."""
        return self.seconds[~self.warmup]


@dataclass(frozen=True)
class Series:
    """What one sensor said: `seconds` since the run's start, ascending."""

    key: str
    seconds: Floats
    values: Floats


@dataclass(frozen=True)
class RawRun:
    """One run. `warm_seconds`: from its start to the end of its training's warm-up, None where that is not known.

    `epochs`: metric -> its value after every epoch. `trouble`: why its steps could not be read.
    """

    run_id: str
    level: str
    stratum: str
    block: str
    phases: Mapping[str, Phase]
    sensors: Mapping[str, Series] = field(default_factory=dict)
    warm_seconds: float | None = None
    trouble: str = ""
    epochs: Mapping[str, Floats] = field(default_factory=dict)


@dataclass(frozen=True)
class ShownRun:
    """A run chosen to be shown, before anything of it is read. `sensors`, `epochs`: the keys it has."""

    run_id: str
    level: str
    stratum: str
    block: str
    start_ms: int
    sensors: tuple[str, ...] = ()
    epochs: tuple[str, ...] = ()


def shown(
    table: pd.DataFrame, *, factor: str = "framework", strata: Sequence[str] = (), most: int | None = None
) -> tuple[ShownRun, ...]:
    """At most `most` of the usable runs: whole blocks first, evenly over time, equally many in every stratum.

    table, factor, strata: what `compare` was called with.
    """
    from experiments.comparison import controls, gates

    runs = gates.usable(controls.without(table), factor=factor, block="block", strata=strata)
    frame = runs.frame.sort_values("sequence")
    most = most or (FEWER_RUNS if len(frame) > VERY_MANY else MOST_RUNS)
    names = sorted(set(frame["stratum"]), key=gates.natural)
    blocks_at_most = max(1, most // len(runs.levels))
    chosen = []
    for stratum in evenly(names, blocks_at_most):
        inside = frame[frame["stratum"] == stratum]
        blocks = _blocks(inside, max(1, blocks_at_most // len(names)))
        chosen += [_shown(run) for _, run in inside[inside["pair"].isin(blocks)].iterrows()]
    return tuple(evenly(chosen, most))


def _blocks(frame: pd.DataFrame, most: int) -> list[str]:
    """Blocks that hold every level, as far as there are any."""
    sizes = frame.groupby("pair", sort=False)["level"].nunique()
    whole = list(sizes.index[sizes == sizes.max()])
    return evenly(whole if len(whole) >= most else list(sizes.index), most)


def evenly(entries: Sequence[T], most: int) -> list[T]:
    """At most so many of the entries, from the first to the last."""
    if len(entries) <= most:
        return list(entries)
    return [entries[round(at)] for at in np.linspace(0, len(entries) - 1, most)]


def _shown(run: pd.Series) -> ShownRun:
    keys = tuple(str(key) for key, value in run.items() if _SENSOR.fullmatch(str(key)) and value == value)
    start, epochs = run.get("start_ms", 0), str(run.get("params.epochs"))
    several = epochs.isdigit() and int(epochs) > 1
    curves = tuple(key for key in BY_EPOCH if several and key in run and run[key] == run[key])
    begun = int(start) if start == start else 0
    return ShownRun(run["run_id"], run["level"], run["stratum"], run["block_label"], begun, keys, curves)


def fetch(source: Source, runs: Sequence[ShownRun], progress: Callable[[int, int], None] | None = None) -> list[RawRun]:
    """Steps and sensors of every run from a store, several at a time; `progress(done, of)` after each.

    Raises what the source raises where it cannot be asked. A run without step values has no phases.
    """
    found = []
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(AT_ONCE) as pool:
        for run in pool.map(lambda one: _fetched(source, one, Path(folder)), runs):
            found.append(run)
            if progress:
                progress(len(found), len(runs))
    return found


def _fetched(source: Source, run: ShownRun, folder: Path) -> RawRun:
    path = source.file(run.run_id, VALUES, folder)
    phases, trouble = _read(path) if path else ({}, "")
    sensors = {key: _series(key, source.history(run.run_id, key), run.start_ms) for key in run.sensors}
    live = source.history(run.run_id, LIVE_RATE) if sensors and "train" in phases else []
    warm = _warm_seconds(phases["train"], live, run.start_ms) if live else None
    epochs = {key: np.array([value for _, value in sorted(source.history(run.run_id, key))]) for key in run.epochs}
    return RawRun(run.run_id, run.level, run.stratum, run.block, phases, sensors, warm, trouble, epochs)


def from_files(runs: Sequence[ShownRun], paths: Mapping[str, Path]) -> list[RawRun]:
    """Steps alone, from files on this machine (run id → values.parquet), for when the server is away."""
    found = []
    for run in runs:
        if run.run_id in paths:
            phases, trouble = _read(paths[run.run_id])
            found.append(RawRun(run.run_id, run.level, run.stratum, run.block, phases, trouble=trouble))
    return found


def _read(path: Path) -> tuple[dict[str, Phase], str]:
    try:
        return read_values(path), ""
    except EvenhandError as error:  # one broken file costs its run's lines in a figure, not the report
        return {}, str(error)


def read_values(path: Path) -> dict[str, Phase]:
    """The phases of a values.parquet, in the order in which they ran. Raises EvenhandError if it is not one."""
    import pyarrow.parquet as pq

    try:
        table = pq.read_table(path, columns=["phase", "seconds", "examples", "warmup"]).to_pydict()
    except (OSError, ValueError, KeyError) as error:
        raise EvenhandError(f"{path.name} cannot be read: {str(error).splitlines()[0][:200]}") from error
    names = np.array(table["phase"], dtype=object)
    seconds, examples = (np.array(table[name], dtype=np.float64) for name in ("seconds", "examples"))
    warmup = np.array(table["warmup"], dtype=np.bool_)
    of_phase = {name: names == name for name in dict.fromkeys(table["phase"])}
    return {name: Phase(name, seconds[at], examples[at], warmup[at]) for name, at in of_phase.items()}


def _series(key: str, history: Sequence[tuple[int, float]], start_ms: int) -> Series:
    points = np.array(sorted(history), dtype=np.float64).reshape(-1, 2)
    points = points[np.isfinite(points).all(axis=1)]
    return Series(key, (points[:, 0] - start_ms) / 1_000, points[:, 1])


def _warm_seconds(train: Phase, live: Sequence[tuple[int, float]], start_ms: int) -> float | None:
    """Steps have lengths but no clock time: a live rate, which is told with its time, shows by its value which step it was."""
    time_ms, rate = min(live)
    steps = np.flatnonzero(np.isclose(train.examples / train.seconds, rate, rtol=1e-9, atol=0))
    warm = np.flatnonzero(~train.warmup)
    if not len(steps) or not len(warm):
        return None
    since = float(train.seconds[: steps[0] + 1].sum() - train.seconds[: warm[0]].sum())
    return (time_ms - start_ms) / 1_000 - since


def median_percentiles(phases: Sequence[Phase], quantiles: Sequence[float]) -> dict[float, float]:
    """The median over runs of each percentile, from the runs with requests enough to have earned it."""
    found = {}
    for q in quantiles:
        of_runs = [estimates.percentile(one.measured, q) for one in phases if estimates.earned(q, len(one.measured))]
        if of_runs:
            found[q] = float(np.median(of_runs))
    return found


def of_inference(run: RawRun) -> dict[int, Phase]:
    """Inference by batch size, in the order in which it ran: the first has the metrics without a batch size in their key."""
    found = {}
    for name, phase in run.phases.items():
        if matched := re.fullmatch(r"inference_batch_(\d+)", name):
            found[int(matched[1])] = phase
    return found
