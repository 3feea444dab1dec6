"""The sensors while one cell runs: samples become its system metrics, timed windows its energy, temperature and utilisation."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from types import TracebackType

from tracking.records import Metrics, Point, Record, Tags
from tracking.sensors import Sample, Sampler, Sensors, Window, summarise

SAMPLES_A_RECORD = 8


class Sensing:
    """Samples from entering to leaving, in a thread of this process; `write` takes the records of the run."""

    def __init__(self, run: str, pid: int, device: str, period_seconds: float, write: Callable[[Record], None]) -> None:
        self._run, self._write = run, write
        self._began = time.time()
        self._waiting: list[Point] = []
        self._sampler = Sampler(Sensors(pid, device), period_seconds, self._keep)

    def __enter__(self) -> Sensing:
        self._sampler.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._sampler.stop()
        self._flush()

    def log_windows(self, windows: Sequence[Window]) -> dict[str, float]:
        """What was measured in each window; what could not be, and why; what slowed the clocks of a GPU. Returns the metrics."""
        told: dict[str, float] = {}
        missing = dict(self._sampler.missing)
        throttled: dict[str, float] = {}
        sensors = self._sampler.sensors
        for window in windows:
            found = summarise(self._sampler.samples, window, gpu=sensors.gpu, ranges_joules=sensors.ranges_joules)
            if found.metrics:
                now = int(time.time() * 1_000)
                self._write(Metrics(self._run, tuple(Point(key, value, 0, now) for key, value in found.metrics.items())))
            told |= found.metrics
            missing |= found.missing
            throttled |= {f"{window.prefix}{name}": share for name, share in found.throttled.items()}
        tags = {f"not_available.{name}": reason[:200] for name, reason in missing.items()}
        if throttled:
            tags["throttled"] = ", ".join(f"{name} in {100 * share:.0f} % of samples" for name, share in throttled.items())
        if counted := sorted({name for one in self._sampler.samples[:1] for name in one.counters_joules}):
            tags["energy_of"] = ", ".join(counted)
        if tags:
            self._write(Tags(self._run, tags))
        return told

    def _keep(self, sample: Sample) -> None:
        time_ms, second = int(sample.time_seconds * 1_000), int(sample.time_seconds - self._began)
        self._waiting.extend(Point(key, value, second, time_ms) for key, value in sample.values.items())
        if len(self._waiting) >= SAMPLES_A_RECORD * len(sample.values):
            self._flush()

    def _flush(self) -> None:
        if self._waiting:
            self._write(Metrics(self._run, tuple(self._waiting)))
            self._waiting.clear()
