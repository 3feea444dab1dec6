"""What can be compared, as data: is it a ratio or a difference, which way is better, how much of it matters."""

from __future__ import annotations

import difflib
import fnmatch
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from tracking import plain
from tracking.errors import WrongCall

Scale = Literal["ratio", "difference"]
Better = Literal["lower", "higher", "neither"]
Headline = tuple[str, int] | None
# Runs that never get there have no such value: it is told with them as censored, not judged without them.
TO_ACCURACY = "train/to_accuracy_"
TOTAL = "train/total_seconds"
# What steps that ran freely are judged by: they have no times of their own.
FREELY = "train/examples_per_second"
PRIMARY_AT_MOST = 3
PROFILED = "profile/"
CHECKS = "check/"
COMPILED = ("train/compilations", "train/recompilations", "train/graph_breaks")
HIDDEN = ("live/", "system/", CHECKS, "model/", "idle/", "machine/", PROFILED, "graph/", TO_ACCURACY, *COMPILED)
# What metrics are called where somebody types them.
SHORT = {
    "throughput": "train/examples_per_second",
    "step": "train/step_seconds",
    "time": "train/total_seconds",
    "latency": "inference/latency_seconds_p50",
    "memory": "memory/peak_rss_bytes",
    "peak_memory": "memory/peak_rss_bytes",
    "device_memory": "memory/peak_device_bytes",
    "energy": "energy/joules_per_example",
    "loss": "val/loss",
    "accuracy": "val/accuracy",
}
_BATCH = re.compile(r"(?:^|/)batch_(\d+)(?=/)")


@dataclass(frozen=True)
class Outcome:
    """A metric as it is judged. `margin`: the smallest difference that matters, in `unit`; None takes the comparison's ratio.

    headline: what a reader asks first that it answers (`training`), and its rank among what answers the same: the first that a
    report has is its headline.
    """

    metric: str
    kind: Scale
    better: Better
    margin: float | None
    label: str
    unit: str
    headline: Headline = None

    @property
    def words(self) -> tuple[str, str]:
        """What b is called if its value lies below and above a's."""
        if self.unit == "s":
            return "faster", "slower"
        return ("slower", "faster") if self.unit.endswith("/s") else ("lower", "higher")


@dataclass(frozen=True)
class Hypothesis:
    """H0: the metric is the same on both sides; H1: it differs. published_p: what the study reported."""

    name: str
    question: str
    phase: str
    metric: str
    published_p: str


def _ratio(pattern: str, label: str, unit: str, better: Better = "lower", headline: Headline = None) -> Outcome:
    return Outcome(pattern, "ratio", better, None, label, unit, headline)


def _difference(pattern: str, label: str, unit: str, better: Better, margin: float, headline: Headline = None) -> Outcome:
    return Outcome(pattern, "difference", better, margin, label, unit, headline)


# The first pattern that matches says what a metric is; its place here is its place in the report.
KNOWN = (
    _ratio(FREELY, "training throughput", "examples/s", "higher", headline=("training", 1)),
    _ratio("train/stepped_examples_per_second", "training throughput, steps timed one by one", "examples/s", "higher"),
    _ratio("train/images_per_second", "training throughput (images)", "images/s", "higher", headline=("training", 2)),
    _ratio("train/step_seconds", "median training step", "s", headline=("training", 3)),
    _ratio("train/step_seconds_p95", "p95 training step", "s"),
    _ratio("train/on_device_step_seconds", "median training step by the device's clock", "s"),
    _ratio("train/on_device_step_seconds_p95", "p95 training step by the device's clock", "s"),
    _ratio("train/first_step_seconds", "first training step", "s"),
    _ratio(TOTAL, "total training time", "s"),
    _ratio("train/first_epoch_seconds", "first epoch", "s"),
    _ratio("train/epoch_seconds", "median later epoch", "s"),
    _ratio("train/epoch_examples_per_second", "throughput of whole epochs", "examples/s", "higher"),
    _ratio("val/total_seconds", "total validation time", "s"),
    _ratio("input/seconds_mean", "mean wait for a batch", "s"),
    _ratio("features/images_per_second", "feature extraction throughput", "images/s", "higher"),
    _ratio("features/total_seconds", "total feature extraction time", "s"),
    _ratio("inference/latency_seconds_p50", "median inference latency", "s", headline=("inference", 1)),
    _ratio("inference/latency_seconds_p95", "p95 inference latency", "s"),
    _ratio("inference/latency_seconds_p99", "p99 inference latency", "s"),
    _ratio("inference/first_call_seconds", "first inference call", "s"),
    _ratio("inference/examples_per_second", "inference throughput", "examples/s", "higher", headline=("inference", 2)),
    _ratio("memory/peak_rss_bytes", "peak process memory", "bytes", headline=("memory", 2)),
    _ratio("memory/peak_device_bytes", "peak device memory", "bytes", headline=("memory", 1)),
    _ratio("memory/peak_device_with_warmup_bytes", "peak device memory with warm-up and autotuning", "bytes"),
    _ratio("energy/joules_per_example", "energy per example", "J", headline=("energy", 1)),
    _ratio("energy/joules", "energy", "J", headline=("energy", 2)),
    _ratio("power/watts_mean", "mean power", "W", "neither"),
    _difference("val/loss", "validation loss", "nats", "lower", 0.05, headline=("quality", 4)),
    _difference("train/loss", "training loss", "nats", "lower", 0.05),
    _difference("val/accuracy", "validation accuracy", "", "higher", 0.01, headline=("quality", 1)),
    _difference("val/bleu1", "BLEU-1", "points", "higher", 1.0, headline=("quality", 3)),
    _difference("val/bleu2", "BLEU-2", "points", "higher", 1.0),
    _difference("val/bleu3", "BLEU-3", "points", "higher", 1.0),
    _difference("val/bleu4", "BLEU-4", "points", "higher", 1.0, headline=("quality", 2)),
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
    _difference("input/share_percent", "share of training time spent waiting for batches", "%", "neither", 3.0),
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
    plain = without_batch(metric)
    batch = _BATCH.search(metric)
    suffix = f", batch {batch[1]}" if batch else ""
    if plain in _PLACE:
        known = KNOWN[_PLACE[plain]]
        return replace(known, metric=metric, label=known.label + suffix, headline=None if batch else known.headline)
    if (inner := plain.removeprefix("inference/")) in _PLACE:  # sensors, read while requests were answered
        known = KNOWN[_PLACE[inner]]
        return replace(known, metric=metric, label=f"{known.label} in inference{suffix}", headline=None)
    for rule in BY_SUFFIX:
        if fnmatch.fnmatchcase(plain, rule.metric):
            return replace(rule, metric=metric, label=metric)
    return Outcome(metric, "ratio", "neither", None, metric, "")


def declared(primary: Sequence[str], outcomes: Iterable[str], unmeasured: Sequence[str] = ()) -> tuple[str, ...]:
    """Return the outcomes that were declared as primary.

    Args:
        primary: their names.
        outcomes: what there is; suggestions come from these alone.
        unmeasured: outcomes that were asked for and that no run has.

    Raises:
        WrongCall: for a name among neither of the two, or for too many names.
    """
    known = list(dict.fromkeys(outcomes))
    for name in primary:
        if name not in known and name not in unmeasured:
            close = difflib.get_close_matches(name, known, n=1)
            right = f"did you mean {close[0]}?" if close else f"have {', '.join(known) or 'none'}"
            raise WrongCall(f"primary={plain.short(name)} is no outcome here; {right}")
    if len(set(primary)) > PRIMARY_AT_MOST:
        raise WrongCall(f"primary names {len(set(primary))} outcomes; at most {PRIMARY_AT_MOST}, or the power is lost again")
    return tuple(dict.fromkeys(primary))


def checked(names: Iterable[str], measured: Iterable[str]) -> None:
    """Refuse a name that is neither among the metrics that were measured nor one that could have been.

    Raises:
        WrongCall: with the nearest of the measured metrics, or with all of them.
    """
    have = sorted(measured, key=place)
    for name in names:
        if name in have or without_batch(name).removeprefix("inference/") in _PLACE:
            continue
        close = [SHORT[name]] if SHORT.get(name) in have else difflib.get_close_matches(name, have, n=1)
        right = f"did you mean {close[0]}?" if close else f"have {', '.join(have) or 'none'}"
        raise WrongCall(f"outcomes: no run has a metric '{plain.short(name)}'; {right}")


def place(metric: str) -> tuple[int, int, str]:
    """A sort key: known metrics in their order, batch sizes ascending, then everything else by name."""
    batch, plain = _BATCH.search(metric), without_batch(metric)
    return _PLACE.get(plain, _PLACE.get(plain.removeprefix("inference/"), len(KNOWN))), int(batch[1]) if batch else 0, metric


def without_batch(metric: str) -> str:
    """The key without a batch size in it."""
    return _BATCH.sub("", metric).lstrip("/")
