"""Sensors while one cell runs: system metrics, and energy, temperature and use of timed windows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from tracking import clock
from tracking.records import LOADS, OTHERS_CPU, OTHERS_GPU, Metrics, Point, Record, Tags
from tracking.sensors import (
    OTHERS,
    Sample,
    Sampler,
    Sensors,
    Summary,
    Window,
    load,
    summarise,
)
from tracking.sensors.load import CpuSnapshot, Load

SAMPLES_PER_RECORD = 8
MAX_NAMES = 3  # of the processes that disturb a cell
DECIMALS = 3  # of percent, megabytes, °C, W, MHz
SHARED = "the cells took turns, so the machine's sensors measured all of them together"


class Sensing:
    """Sampling in a thread of this process, from entering the context to leaving it.

    Args:
        write: Takes the records of the run.
        is_alone: False if other cells work in between; then only its memory is summarised.
    """

    def __init__(
        self,
        run: str,
        sensors: Sensors,
        period_seconds: float,
        write: Callable[[Record], None],
        *,
        is_alone: bool = True,
    ) -> None:
        self._run, self._write, self._is_alone = run, write, is_alone
        self._began = clock.now()
        self._waiting: list[Point] = []
        self._sampler = Sampler(sensors, period_seconds, self._keep)

    def __enter__(self) -> Sensing:
        self._sampler.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._sampler.stop()
        self._flush()

    def follow(self, ranks: Mapping[int, int]) -> None:
        """Sample these processes, too. ranks: rank -> process id."""
        self._sampler.sensors.follow(ranks)

    def log_windows(self, windows: Sequence[Window]) -> dict[str, float]:
        """Record metrics of each window, reasons for missing ones, and what slowed the GPU clocks.

        Returns:
            The metrics.
        """
        metrics: dict[str, float] = {}
        missing, throttled = dict(self._sampler.missing), dict[str, float]()
        for window in windows:
            summary = self._summary(window)
            metrics |= summary.metrics
            missing |= summary.missing
            for name, share in summary.throttled.items():
                throttled[f"{window.prefix}{name}"] = share
        write_metrics(self._run, metrics, self._write)
        tags = {f"not_available.{name}": reason[:200] for name, reason in missing.items()}
        if throttled:
            shares = (
                f"{name} in {100 * share:.0f} % of samples" for name, share in throttled.items()
            )
            tags["throttled"] = ", ".join(shares)
        first = self._sampler.samples[:1] if self._is_alone else []
        if counters := sorted({name for sample in first for name in sample.counters_joules}):
            tags["energy_of"] = ", ".join(counters)
        if tags:
            self._write(Tags(self._run, tags))
        return metrics

    def _summary(self, window: Window) -> Summary:
        sensors, samples = self._sampler.sensors, self._sampler.samples
        summary = summarise(samples, window, gpus=sensors.gpus, ranges_joules=sensors.ranges_joules)
        if self._is_alone:
            return summary
        of_process = {key: value for key, value in summary.metrics.items() if "memory/" in key}
        others = (*summary.missing, *(summary.metrics.keys() - of_process))
        return Summary(of_process, dict.fromkeys(others, SHARED))

    def others_on_gpu(self, windows: Sequence[Window]) -> tuple[float | None, str]:
        """Return how often others computed on the cell's GPUs while something was timed, and who.

        Returns:
            Percent of samples, None if the driver does not report it; a text, empty if never.
        """
        sensors = self._sampler.sensors
        keys = [f"system/{gpu}_{OTHERS}" for gpu in sensors.gpus]
        counts = []
        for sample in self._sampler.samples:
            values = [sample.values[key] for key in keys if key in sample.values]
            if values and any(window.holds(sample.time_seconds) for window in windows):
                counts.append(any(values))
        if not any(counts):
            return (0.0 if counts else None), ""
        percent = 100 * sum(counts) / len(counts)
        processes = list(sensors.others.items())[:MAX_NAMES]
        names = ", ".join(f"{name} ({pid})" for pid, name in processes)
        return percent, f"others computed on the GPU in {percent:.0f} % of samples: {names}"

    def _keep(self, sample: Sample) -> None:
        time_ms, second = int(sample.time_seconds * 1_000), int(sample.time_seconds - self._began)
        # rounded for charts: judged summaries use the samples themselves
        self._waiting.extend(
            Point(key, round(value, DECIMALS), second, time_ms)
            for key, value in sample.values.items()
        )
        if len(self._waiting) >= SAMPLES_PER_RECORD * len(sample.values):
            self._flush()

    def _flush(self) -> None:
        if self._waiting:
            self._write(Metrics(self._run, tuple(self._waiting)))
            self._waiting.clear()


class BackgroundLoad:
    """Load by others in a cell's timed windows, from counters at their beginnings and ends.

    Args:
        threads: Of the cell; 0: not known.

    Attributes:
        on_gpu: Percent of samples in which others computed on its GPUs, or None; and who did.
    """

    def __init__(self, threads: int = 0) -> None:
        self.on_gpu: tuple[float | None, str] = (None, "")
        self._threads = threads
        self._began: CpuSnapshot | None = None
        self._loads: list[Load] = []

    def begin(self) -> None:
        self._began = load.take_snapshot()

    def end(self) -> None:
        if self._began:
            self._loads.append(load.load_between(self._began, load.take_snapshot()))
            self._began = None

    @property
    def metrics(self) -> dict[str, float]:
        """Percent of CPUs, and of the samples of GPUs; empty if nothing was counted."""
        percent, _ = self.on_gpu
        of_gpus = {} if percent is None else {OTHERS_GPU: percent}
        return {**load.combine_loads(self._loads).metrics(self._threads), **of_gpus}

    def log(
        self,
        run: str,
        usual: Mapping[str, float],
        limit_percent: float,
        write: Callable[[Record], None],
    ) -> str:
        """Record the load. Return the reason, which is a tag, if it is unlike that of other cells.

        Args:
            run: Of the cell.
            usual: Load of the other cells by metric, as far as it is known.
            limit_percent: Percent points above it that are still like it.
            write: Takes the records.
        """
        if not self._loads:
            return ""
        total, metrics = load.combine_loads(self._loads), self.metrics
        write_metrics(run, metrics, write)
        unusual = unusual_loads(metrics, usual, limit_percent)
        reasons = []
        if OTHERS_CPU in unusual:
            process = total.culprit()
            reason = f"others used {metrics[OTHERS_CPU]:.0f} % of the CPU"
            reasons.append(f"{reason}, most of it by {process}" if process else reason)
        if OTHERS_GPU in unusual:
            reasons.append(self.on_gpu[1])
        disturbed = "; ".join(reasons)
        tags = {f"not_available.{name}": reason[:200] for name, reason in total.missing.items()}
        if disturbed:
            tags["disturbed"] = disturbed
        if tags:
            write(Tags(run, tags))
        return disturbed


def unusual_loads(
    loads: Mapping[str, float], usual: Mapping[str, float], limit_percent: float
) -> list[str]:
    """Return the metrics of load that lie more than the limit above their usual values."""
    common = [metric for metric in LOADS if metric in loads and metric in usual]
    return [metric for metric in common if loads[metric] > usual[metric] + limit_percent]


def write_metrics(run: str, values: Mapping[str, float], write: Callable[[Record], None]) -> None:
    if values:
        now = clock.now_ms()
        write(Metrics(run, tuple(Point(key, value, 0, now) for key, value in values.items())))
