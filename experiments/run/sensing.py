"""The sensors while one cell runs: samples become its system metrics, timed windows its energy, temperature and utilisation."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any

from experiments.config.settings import NO_OTHERS_LIMIT
from tracking import clock, tables
from tracking.records import OTHERS_GPU, Artifact, Metrics, Point, Record, Tags
from tracking.sensors import (
    OTHERS,
    UNSTEADY,
    Sample,
    Sampler,
    Sensors,
    Summary,
    Window,
    load,
    seconds_until_steady,
    summarise,
)
from tracking.sensors.load import Load, Moment

SAMPLES_A_RECORD = 8
NAMED = 3  # of the processes that disturb a cell
RANKS = "rank_sensors.parquet"
OF_RANK = re.compile(r"system/rank_(\d+)_(.+)")
DECIMALS = 3  # of percent, megabytes, °C, W, MHz
SHARED = "cells took turns: what the machine's sensors saw is of all of them"


class Sensing:
    """Samples from entering to leaving, in a thread of this process; `write` takes the records of the run.

    alone: whether no other cell works in between; else only what is known of the process itself is summarised.
    """

    def __init__(
        self,
        run: str,
        sensors: Sensors,
        period_seconds: float,
        write: Callable[[Record], None],
        *,
        alone: bool = True,
    ) -> None:
        self._run, self._write, self._alone = run, write, alone
        self._began = clock.now()
        self._waiting: list[Point] = []
        self._sampler = Sampler(sensors, period_seconds, self._keep)

    def __enter__(self) -> Sensing:
        self._sampler.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._sampler.stop()
        self._flush()

    def log_windows(self, windows: Sequence[Window]) -> dict[str, float]:
        """What was measured in each window; what could not be, and why; what slowed the clocks of a GPU. Returns the metrics."""
        told: dict[str, float] = {}
        missing = dict(self._sampler.missing)
        throttled: dict[str, float] = {}
        sensors = self._sampler.sensors
        for window in windows:
            samples, ranges = self._sampler.samples, sensors.ranges_joules
            found = summarise(samples, window, gpus=sensors.gpus, ranges_joules=ranges)
            found = self._with_warm_up(found, window)
            found = found if self._alone else _of_the_process(found)
            if found.metrics:
                now = clock.now_ms()
                self._write(
                    Metrics(
                        self._run,
                        tuple(Point(key, value, 0, now) for key, value in found.metrics.items()),
                    )
                )
            told |= found.metrics
            missing |= found.missing
            throttled |= {
                f"{window.prefix}{name}": share for name, share in found.throttled.items()
            }
        tags = {f"not_available.{name}": reason[:200] for name, reason in missing.items()}
        if throttled:
            tags["throttled"] = ", ".join(
                f"{name} in {100 * share:.0f} % of samples" for name, share in throttled.items()
            )
        if self._alone and (
            counted := sorted(
                {name for one in self._sampler.samples[:1] for name in one.counters_joules}
            )
        ):
            tags["energy_of"] = ", ".join(counted)
        if tags:
            self._write(Tags(self._run, tags))
        return told

    def _with_warm_up(self, found: Summary, window: Window) -> Summary:
        """Return a summary with the seconds until the GPUs in use were steady: warm-up by steps may be shorter."""
        sensors = self._sampler.sensors
        if sensors.device != "cuda" or not sensors.gpus:
            return found
        seconds = seconds_until_steady(self._sampler.samples, window, sensors.gpus)
        if seconds is None:
            return replace(
                found, missing={**found.missing, f"{window.prefix}gpu_warm_up": UNSTEADY}
            )
        return replace(
            found, metrics={**found.metrics, f"{window.prefix}gpu/warm_up_seconds": seconds}
        )

    def others_on_gpu(self, windows: Sequence[Window]) -> tuple[float | None, str]:
        """Return how often others computed on the cell's GPUs while something was timed, and who.

        Returns:
            Percent of samples, None if the driver does not report it; a text, empty if nobody did.
        """
        sensors = self._sampler.sensors
        timed = [
            one.values
            for one in self._sampler.samples
            if any(window.holds(one.time_seconds) for window in windows)
        ]
        keys = [f"system/{gpu}_{OTHERS}" for gpu in sensors.gpus]
        by_sample = [[values[key] for key in keys if key in values] for values in timed]
        known = [counts for counts in by_sample if counts]
        if not known:
            return None, ""
        percent = 100 * sum(any(counts) for counts in known) / len(known)
        if not percent:
            return 0.0, ""
        names = ", ".join(f"{name} ({pid})" for pid, name in list(sensors.others.items())[:NAMED])
        return percent, f"others computed on the GPU in {percent:.0f} % of samples: {names}"

    def follow(self, ranks: Mapping[int, int]) -> None:
        """Samples of these processes, too. ranks: rank -> process id."""
        self._sampler.sensors.follow(ranks)

    def keep_ranks(self, path: Path, folder: str) -> None:
        """What the sensors said of each rank, and every counter of energy, as a file of the run; nothing without ranks.

        path: of the run's files; folder: the same as records name it.
        """
        columns = _of_ranks(self._sampler.samples)
        if not any(rank is not None for rank in columns["rank"]):
            return
        try:
            tables.write(path / RANKS, columns)
        except OSError as error:
            self._write(Tags(self._run, {f"not_available.{RANKS}": str(error)[:200]}))
        else:
            self._write(Artifact(self._run, f"{folder}/{RANKS}"))

    def _keep(self, sample: Sample) -> None:
        time_ms, second = int(sample.time_seconds * 1_000), int(sample.time_seconds - self._began)
        # for the eye: what is judged is summarised from the samples themselves
        self._waiting.extend(
            Point(key, round(value, DECIMALS), second, time_ms)
            for key, value in sample.values.items()
        )
        if len(self._waiting) >= SAMPLES_A_RECORD * len(sample.values):
            self._flush()

    def _flush(self) -> None:
        if self._waiting:
            self._write(Metrics(self._run, tuple(self._waiting)))
            self._waiting.clear()


def _of_ranks(samples: Sequence[Sample]) -> dict[str, list[Any]]:
    """A row a reading: rank, time_ms, sensor, value. Energy has no rank: its counters are of the whole machine."""
    columns: dict[str, list[Any]] = {"rank": [], "time_ms": [], "sensor": [], "value": []}
    for sample in samples:
        of_ranks = [
            (int(found[1]), found[2], value)
            for key, value in sample.values.items()
            if (found := OF_RANK.match(key))
        ]
        of_machine = [
            (None, f"{name}_joules", value) for name, value in sample.counters_joules.items()
        ]
        for rank, sensor, value in (*of_ranks, *of_machine):
            for name, one in zip(
                columns, (rank, int(1_000 * sample.time_seconds), sensor, value), strict=True
            ):
                columns[name].append(one)
    return columns


def _of_the_process(found: Summary) -> Summary:
    """Its memory; everything else is of the machine."""
    own = {key: value for key, value in found.metrics.items() if "memory/" in key}
    return Summary(own, dict.fromkeys((*found.missing, *(found.metrics.keys() - own)), SHARED))


class BackgroundLoad:
    """The load by others in a cell's timed windows: counters are read where a window begins and where it ends.

    on_gpu: percent of samples in which others computed on its GPUs, or None; and who did.
    """

    def __init__(self) -> None:
        self.on_gpu: tuple[float | None, str] = (None, "")
        self._began: Moment | None = None
        self._loads: list[Load] = []

    def begin(self) -> None:
        self._began = load.look()

    def end(self) -> None:
        """Of a window; nothing where none began."""
        if self._began:
            self._loads.append(load.between(self._began, load.look()))
            self._began = None

    @property
    def metrics(self) -> dict[str, float]:
        """Percent of all CPUs, and of the samples of GPUs; empty if nothing was counted."""
        percent, _ = self.on_gpu
        of_gpus = {} if percent is None else {OTHERS_GPU: percent}
        return {**load.together(self._loads).metrics, **of_gpus}

    def log(self, run: str, limit_percent: float, write: Callable[[Record], None]) -> str:
        """Writes to the run what there is to say. Returns what is said of a cell beyond the limit, which its tag is."""
        if not self._loads:
            return ""
        found = load.together(self._loads)
        if metrics := self.metrics:
            now = clock.now_ms()
            write(Metrics(run, tuple(Point(key, value, 0, now) for key, value in metrics.items())))
        on_gpu = self.on_gpu[1] if limit_percent < NO_OTHERS_LIMIT else ""
        disturbed = "; ".join(filter(None, (disturbance(found, limit_percent), on_gpu)))
        tags = {f"not_available.{name}": reason[:200] for name, reason in found.missing.items()}
        tags |= {"disturbed": disturbed} if disturbed else {}
        if tags:
            write(Tags(run, tags))
        return disturbed


def disturbance(found: Load, limit_percent: float) -> str:
    """What is said of a cell whose neighbours used more than the limit; empty where they did not, or nobody knows."""
    if found.trouble or found.others_percent <= limit_percent:
        return ""
    culprit = found.culprit()
    return f"others used {found.others_percent:.0f} % of all CPUs" + (
        f", most of it by {culprit}" if culprit else ""
    )
