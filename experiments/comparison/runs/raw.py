"""What lies behind a run's metrics: the seconds of every step, and what it had learned after every epoch."""

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

from experiments import metrics
from experiments.comparison.statistics import estimates
from experiments.comparison.statistics.estimates import Floats
from tracking import tables
from tracking.errors import EvenhandError

if TYPE_CHECKING:
    import pandas as pd

T = TypeVar("T")
VALUES = "values.parquet"
WINDOWS = "train_windows"
COLUMNS = ("phase", "seconds", "examples", "warmup")
# Validation after every epoch, accuracy before loss.
BY_EPOCH = sorted(
    (key for key in metrics.BY_EPOCH if key.startswith("val/")),
    key=lambda key: metrics.outcome(key).headline or (),
)
MAXIMUM_RUNS = 48
# Of very many runs fewer are fetched: each costs a server several answers, and half as many lines show as much.
VERY_MANY, FEWER_RUNS = 200, 24
AT_ONCE = 8


class Source(Protocol):
    """Where runs keep files and series: `tracking.store.Store`."""

    def file(self, run_id: str, path: str, folder: Path) -> Path | None: ...

    def history(self, run_id: str, key: str) -> list[tuple[int, float]]: ...


@dataclass(frozen=True)
class Phase:
    """The steps (or requests) of one part of a run, in order: shape (steps,) each; `warmup` steps are in no summary.

    `train` has the steps that were timed one by one; a step of `train_windows` is a window of several, which ran freely.
    """

    name: str
    seconds: Floats
    examples: Floats
    warmup: NDArray[np.bool_]

    @property
    def measured(self) -> Floats:
        """Seconds of the steps that count."""
        return self.seconds[~self.warmup]


@dataclass(frozen=True)
class RawRun:
    """One run. epochs: metric -> its value after every epoch. trouble: why its steps could not be read."""

    run_id: str
    level: str
    stratum: str
    block: str
    phases: Mapping[str, Phase]
    trouble: str = ""
    epochs: Mapping[str, Floats] = field(default_factory=dict)


@dataclass(frozen=True)
class ShownRun:
    """A run chosen to be shown, before anything of it is read. epochs: the keys of its series."""

    run_id: str
    level: str
    stratum: str
    block: str
    epochs: tuple[str, ...] = ()


def shown(
    table: pd.DataFrame,
    *,
    factor: str = "framework",
    strata: Sequence[str] = (),
    maximum: int | None = None,
) -> tuple[ShownRun, ...]:
    """At most `maximum` of the usable runs: whole blocks first, evenly over time, equally many in every stratum.

    table, factor, strata: what `compare` was called with.
    """
    from experiments.comparison.runs import pairing

    runs = pairing.usable(pairing.without_controls(table), factor=factor, strata=strata)
    frame = runs.frame.sort_values("sequence")
    maximum = maximum or (FEWER_RUNS if len(frame) > VERY_MANY else MAXIMUM_RUNS)
    names = sorted(set(frame["stratum"]), key=pairing.natural)
    blocks_at_most = max(1, maximum // len(runs.levels))
    chosen = []
    for stratum in evenly(names, blocks_at_most):
        inside = frame[frame["stratum"] == stratum]
        blocks = _blocks(inside, max(1, blocks_at_most // len(names)))
        chosen += [_shown(run) for _, run in inside[inside["pair"].isin(blocks)].iterrows()]
    return tuple(evenly(chosen, maximum))


def _blocks(frame: pd.DataFrame, maximum: int) -> list[str]:
    """Blocks that hold every level, as far as there are any."""
    sizes = frame.groupby("pair", sort=False)["level"].nunique()
    whole = list(sizes.index[sizes == sizes.max()])
    return evenly(whole if len(whole) >= maximum else list(sizes.index), maximum)


def evenly(entries: Sequence[T], maximum: int) -> list[T]:
    """At most so many of the entries, from the first to the last."""
    if len(entries) <= maximum:
        return list(entries)
    return [entries[round(at)] for at in np.linspace(0, len(entries) - 1, maximum)]


def _shown(run: pd.Series) -> ShownRun:
    epochs = str(run.get("params.epochs"))
    several = epochs.isdecimal() and int(epochs) > 1
    curves = tuple(key for key in BY_EPOCH if several and key in run and run[key] == run[key])
    return ShownRun(run["run_id"], run["level"], run["stratum"], run["block_label"], curves)


def fetch(
    source: Source, runs: Sequence[ShownRun], progress: Callable[[int, int], None] | None = None
) -> list[RawRun]:
    """Steps and curves of every run from a store, several at a time; `progress(done, of)` after each.

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
    epochs = {
        key: np.array([value for _, value in sorted(source.history(run.run_id, key))])
        for key in run.epochs
    }
    return RawRun(run.run_id, run.level, run.stratum, run.block, phases, trouble, epochs)


def from_files(runs: Sequence[ShownRun], paths: Mapping[str, Path]) -> list[RawRun]:
    """Steps alone, from files on this machine (run id → values.parquet), for when the server is away."""
    found = []
    for run in runs:
        if run.run_id in paths:
            phases, trouble = _read(paths[run.run_id])
            found.append(
                RawRun(run.run_id, run.level, run.stratum, run.block, phases, trouble=trouble)
            )
    return found


def _read(path: Path) -> tuple[dict[str, Phase], str]:
    try:
        return read_values(path), ""
    except (
        EvenhandError
    ) as error:  # one broken file costs its run's lines in a figure, not the report
        return {}, str(error)


def read_values(path: Path) -> dict[str, Phase]:
    """The phases of a values.parquet, in the order in which they ran. Raises EvenhandError if it is not one."""
    try:
        table = tables.read(path, COLUMNS)
        seconds, examples = (
            np.array(table[name], dtype=np.float64) for name in ("seconds", "examples")
        )
        names, warmup = (
            np.array(table["phase"], dtype=object),
            np.array(table["warmup"], dtype=np.bool_),
        )
    except (OSError, ValueError, KeyError) as error:
        raise EvenhandError(
            f"{path.name} cannot be read: {str(error).splitlines()[0][:200]}"
        ) from error
    of_phase = {name: names == name for name in dict.fromkeys(table["phase"])}
    return {
        name: Phase(name, seconds[at], examples[at], warmup[at]) for name, at in of_phase.items()
    }


def median_percentiles(phases: Sequence[Phase], quantiles: Sequence[float]) -> dict[float, float]:
    """The median over runs of each percentile, from the runs with requests enough to have earned it."""
    found = {}
    for q in quantiles:
        of_runs = [
            estimates.percentile(one.measured, q)
            for one in phases
            if estimates.earned(q, len(one.measured))
        ]
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
