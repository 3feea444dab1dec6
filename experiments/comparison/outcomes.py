"""What can be compared: whether a metric's ratio or difference makes sense, which way is better, and how much of it matters."""

from __future__ import annotations

import fnmatch
import re
from dataclasses import dataclass, replace
from typing import Literal

Kind = Literal["ratio", "difference"]
Better = Literal["lower", "higher", "neither"]
# Runs that never get there have no such value: it is told with them as censored, not judged without them.
TO_ACCURACY = "train/to_accuracy_"
HIDDEN = ("live/", "system/", "check/", "model/", "idle/", "profile/", TO_ACCURACY)
_BATCH = re.compile(r"(?:^|/)batch_(\d+)(?=/)")


@dataclass(frozen=True)
class Outcome:
    """A metric as it is judged. `margin`: the smallest difference that matters, in `unit`; None takes the comparison's ratio."""

    metric: str
    kind: Kind
    better: Better
    margin: float | None
    label: str
    unit: str

    @property
    def words(self) -> tuple[str, str]:
        """What b is called if its value lies below and above a's."""
        if self.unit == "s":
            return "faster", "slower"
        return ("slower", "faster") if self.unit.endswith("/s") else ("lower", "higher")


def _ratio(pattern: str, label: str, unit: str, better: Better = "lower") -> Outcome:
    return Outcome(pattern, "ratio", better, None, label, unit)


def _difference(pattern: str, label: str, unit: str, better: Better, margin: float) -> Outcome:
    return Outcome(pattern, "difference", better, margin, label, unit)


# The first pattern that matches says what a metric is; its place here is its place in the report.
KNOWN = (
    _ratio("train/examples_per_second", "training throughput", "examples/s", "higher"),
    _ratio("train/captions_per_second", "training throughput", "captions/s", "higher"),
    _ratio("train/images_per_second", "training throughput (images)", "images/s", "higher"),
    _ratio("train/step_seconds", "median training step", "s"),
    _ratio("train/step_seconds_p95", "p95 training step", "s"),
    _ratio("train/first_step_seconds", "first training step", "s"),
    _ratio("train/total_seconds", "total training time", "s"),
    _ratio("train/first_epoch_seconds", "first epoch", "s"),
    _ratio("train/epoch_seconds", "median later epoch", "s"),
    _ratio("val/total_seconds", "total validation time", "s"),
    _ratio("input/seconds_mean", "mean wait for a batch", "s"),
    _ratio("features/images_per_second", "feature extraction throughput", "images/s", "higher"),
    _ratio("features/total_seconds", "total feature extraction time", "s"),
    _ratio("inference/latency_seconds_p50", "median inference latency", "s"),
    _ratio("inference/latency_seconds_p95", "p95 inference latency", "s"),
    _ratio("inference/latency_seconds_p99", "p99 inference latency", "s"),
    _ratio("inference/first_call_seconds", "first inference call", "s"),
    _ratio("inference/examples_per_second", "inference throughput", "examples/s", "higher"),
    _ratio("memory/peak_rss_bytes", "peak process memory", "bytes"),
    _ratio("memory/peak_device_bytes", "peak device memory", "bytes"),
    _ratio("energy/joules_per_example", "energy per example", "J"),
    _ratio("energy/joules", "energy", "J"),
    _ratio("power/watts_mean", "mean power", "W", "neither"),
    _difference("val/loss", "validation loss", "nats", "lower", 0.05),
    _difference("train/loss", "training loss", "nats", "lower", 0.05),
    _difference("val/accuracy", "validation accuracy", "", "higher", 0.01),
    _difference("val/bleu1", "BLEU-1", "points", "higher", 1.0),
    _difference("val/bleu2", "BLEU-2", "points", "higher", 1.0),
    _difference("val/bleu3", "BLEU-3", "points", "higher", 1.0),
    _difference("val/bleu4", "BLEU-4", "points", "higher", 1.0),
    _difference("val/bleu1_beam", "BLEU-1 with beam search", "points", "higher", 1.0),
    _difference("val/bleu2_beam", "BLEU-2 with beam search", "points", "higher", 1.0),
    _difference("val/bleu3_beam", "BLEU-3 with beam search", "points", "higher", 1.0),
    _difference("val/bleu4_beam", "BLEU-4 with beam search", "points", "higher", 1.0),
    _difference("cpu/temperature_celsius_mean", "mean CPU temperature", "°C", "lower", 1.0),
    _difference("cpu/temperature_celsius_max", "maximum CPU temperature", "°C", "lower", 1.0),
    _difference("gpu/temperature_celsius_mean", "mean GPU temperature", "°C", "lower", 1.0),
    _difference("gpu/temperature_celsius_max", "maximum GPU temperature", "°C", "lower", 1.0),
    _difference("cpu/utilization_percent_mean", "mean CPU utilisation", "%", "neither", 3.0),
    _difference("gpu/utilization_percent_mean", "mean GPU utilisation", "%", "neither", 3.0),
)
BY_SUFFIX = (
    _ratio("*_per_second", "", "1/s", "higher"),
    _ratio("*_seconds", "", "s"),
    _ratio("*_seconds_*", "", "s"),
    _ratio("*_bytes", "", "bytes"),
    _ratio("*joules*", "", "J"),
    _ratio("*watts*", "", "W", "neither"),
    _difference("*temperature_celsius*", "", "°C", "lower", 1.0),
    _difference("*_percent*", "", "%", "neither", 3.0),
    _difference("*accuracy*", "", "", "higher", 0.01),
    _difference("*bleu*", "", "points", "higher", 1.0),
    _difference("*loss", "", "nats", "lower", 0.05),
)
_PLACE = {outcome.metric: place for place, outcome in enumerate(KNOWN)}


def outcome(metric: str) -> Outcome:
    """How a metric is judged. A `batch_8/` in the key is told in the label; an unknown metric is a ratio, neither way better."""
    plain = _plain(metric)
    batch = _BATCH.search(metric)
    suffix = f", batch {batch[1]}" if batch else ""
    if plain in _PLACE:
        known = KNOWN[_PLACE[plain]]
        return replace(known, metric=metric, label=known.label + suffix)
    if (inner := plain.removeprefix("inference/")) in _PLACE:  # sensors, read while requests were answered
        known = KNOWN[_PLACE[inner]]
        return replace(known, metric=metric, label=f"{known.label} in inference{suffix}")
    for rule in BY_SUFFIX:
        if fnmatch.fnmatchcase(plain, rule.metric):
            return replace(rule, metric=metric, label=metric)
    return Outcome(metric, "ratio", "neither", None, metric, "")


def place(metric: str) -> tuple[int, int, str]:
    """A sort key: known metrics in their order, batch sizes ascending, then everything else by name."""
    batch, plain = _BATCH.search(metric), _plain(metric)
    return _PLACE.get(plain, _PLACE.get(plain.removeprefix("inference/"), len(KNOWN))), int(batch[1]) if batch else 0, metric


def _plain(metric: str) -> str:
    return _BATCH.sub("", metric).lstrip("/")
