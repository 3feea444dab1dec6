"""Raw values of runs: the seconds of each step, and the metrics after each epoch."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol, TypeVar

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from experiments import metrics
from experiments.comparison.runs import pairing
from experiments.comparison.statistics.estimates import Floats
from tracking import tables
from tracking.errors import ErrorCode, EvenhandError
from tracking.records import Point

T = TypeVar("T")
VALUES = "values.parquet"
COLUMNS = ("phase", "seconds", "examples", "warmup")
# Validation after each epoch, accuracy before loss.
BY_EPOCH = sorted(
    (key for key in metrics.BY_EPOCH if key.startswith("val/")),
    key=lambda key: metrics.outcome(key).headline or (),
)
MAXIMUM_RUNS = 48
# Of very many runs fewer are fetched: each costs a server several answers.
VERY_MANY, FEWER_RUNS = 200, 24
AT_ONCE = 8


class Source(Protocol):
    """Files and series of runs: those of a tracking server (`Reader`), or of a journal."""

    def file(self, run_id: str, path: str, folder: Path) -> Path | None:
        """Return an artifact of a run, downloaded if it is not on this machine.

        Args:
            run_id: Id of the run.
            path: Path of the artifact in the run.
            folder: Folder that gets the file.

        Returns:
            The path of the file; None if the run has no such artifact.
        """

    def points(self, run_id: str, key: str) -> list[Point]:
        """Return the whole history of a run's metric; empty if it has no such metric.

        Args:
            run_id: Id of the run.
            key: Name of the metric.
        """


@dataclass(frozen=True)
class Phase:
    """Steps, or requests, of one part of a run, in order; `warmup` steps are in no summary.

    `train` has steps that were timed one by one; a step of `train_windows` is a window of several.
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
    """Run that figures show, with its raw values; before they are fetched it has none.

    Attributes:
        epochs: Values of a metric after each epoch, by its key.
        trouble: Reason for which its steps could not be read.
    """

    run_id: str
    level: str
    stratum: str
    block: str
    phases: Mapping[str, Phase] = field(default_factory=dict)
    trouble: str = ""
    epochs: Mapping[str, Floats] = field(default_factory=dict)


def shown(
    table: pd.DataFrame,
    *,
    factor: str = "framework",
    strata: Sequence[str] = (),
    maximum: int | None = None,
    pair_by: str = "",
) -> list[RawRun]:
    """Select at most `maximum` of the usable runs.

    Whole blocks come first, evenly over time, and equally many in each stratum.

    Args:
        table, factor, strata, pair_by: Of the comparison.
    """
    runs = pairing.select_usable(
        pairing.without_controls(table), factor=factor, strata=strata, pair_by=pair_by
    )
    if runs.frame.empty:
        return []
    frame = runs.frame.sort_values("sequence")
    maximum = maximum or (FEWER_RUNS if len(frame) > VERY_MANY else MAXIMUM_RUNS)
    names = sorted(set(frame["stratum"]), key=pairing.natural)
    blocks_at_most = max(1, maximum // len(runs.levels))
    per_stratum = max(1, blocks_at_most // len(names))
    selected = []
    for stratum in evenly(names, blocks_at_most):
        inside = frame[frame["stratum"] == stratum]
        sizes = inside.groupby("pair", sort=False)["level"].nunique()
        whole = list(sizes.index[sizes == sizes.max()])
        blocks = evenly(whole if len(whole) >= per_stratum else list(sizes.index), per_stratum)
        selected += [_shown(run) for _, run in inside[inside["pair"].isin(blocks)].iterrows()]
    return evenly(selected, maximum)


def evenly(entries: Sequence[T], maximum: int) -> list[T]:
    """Return at most so many of the entries, from the first to the last."""
    if len(entries) <= maximum:
        return list(entries)
    return [entries[round(at)] for at in np.linspace(0, len(entries) - 1, maximum)]


def _shown(run: pd.Series) -> RawRun:
    epochs = str(run.get("params.epochs"))
    has_curves = epochs.isdecimal() and int(epochs) > 1
    keys = [key for key in BY_EPOCH if has_curves and key in run and run[key] == run[key]]
    places = (run["run_id"], run["level"], run["stratum"], run["block_label"])
    return RawRun(*places, epochs=dict.fromkeys(keys, np.empty(0)))


def fetch(
    source: Source, runs: Sequence[RawRun], progress: Callable[[int, int], None] | None = None
) -> list[RawRun]:
    """Fetch steps and curves of runs, several at a time.

    A run without step values has no phases. Errors of the source are raised.

    Args:
        progress: Called after each run with the numbers of runs so far and of all.
    """
    fetched = []
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(AT_ONCE) as pool:
        for run in pool.map(lambda run: _fetch_run(source, run, Path(folder)), runs):
            fetched.append(run)
            if progress:
                progress(len(fetched), len(runs))
    return fetched


def _fetch_run(source: Source, run: RawRun, folder: Path) -> RawRun:
    path = source.file(run.run_id, VALUES, folder)
    epochs = {}
    for key in run.epochs:
        points = sorted((point.time_ms, point.value) for point in source.points(run.run_id, key))
        epochs[key] = np.array([value for _, value in points])
    try:
        return replace(run, phases=read_values(path) if path else {}, epochs=epochs)
    except EvenhandError as error:  # costs this run's lines in a figure, not the report
        return replace(run, trouble=str(error), epochs=epochs)


def read_values(path: Path) -> dict[str, Phase]:
    """Return the phases of a values.parquet. Raises EvenhandError if it cannot be read."""
    try:
        table = tables.read(path, COLUMNS)
        seconds = np.array(table["seconds"], dtype=np.float64)
        examples = np.array(table["examples"], dtype=np.float64)
        names = np.array(table["phase"], dtype=object)
        warmup = np.array(table["warmup"], dtype=np.bool_)
    except (OSError, ValueError, KeyError) as error:
        reason = str(error).splitlines()[0][:200]
        raise EvenhandError(
            ErrorCode.UNREADABLE, f"{path.name} cannot be read: {reason}"
        ) from error
    of_phase = {name: names == name for name in dict.fromkeys(table["phase"])}
    return {
        name: Phase(name, seconds[at], examples[at], warmup[at]) for name, at in of_phase.items()
    }


def of_inference(run: RawRun) -> dict[int, Phase]:
    """Return the phases of inference by batch size, in the order in which they ran."""
    names = {name: re.fullmatch(r"inference_batch_(\d+)", name) for name in run.phases}
    return {int(match[1]): run.phases[name] for name, match in names.items() if match}
