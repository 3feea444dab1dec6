"""What others made of the machine while one cell was timed: the same for every cell, whatever it measured."""

from __future__ import annotations

from collections.abc import Callable

from experiments.config.settings import NO_OTHERS_LIMIT
from tracking import clock
from tracking.records import OTHERS_GPU, Metrics, Point, Record, Tags
from tracking.sensors import load
from tracking.sensors.load import Load, Moment


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
    return f"others used {found.others_percent:.0f} % of all CPUs" + (f", most of it by {culprit}" if culprit else "")
