"""The catalogue of metrics: what each is called, in which unit, compared how, and where it may be compared at all.

A metric is added by one entry in `KNOWN`; every other list of metrics is derived from it.
"""

from __future__ import annotations

import difflib
import fnmatch
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from tracking import plain
from tracking.errors import WrongCall

Scale = Literal["ratio", "difference"]
Better = Literal["lower", "higher", "neither"]
Headline = tuple[str, int] | None
# Of what inside a run it is a summary: single steps, steps that ran freely in windows where there are any, or requests.
Within = Literal["", "steps", "windows", "requests"]
# Runs that never get there have no such value: it is told with them as censored, not judged without them.
TO_ACCURACY = "train/to_accuracy_"
TOTAL = "train/total_seconds"
# What steps that ran freely are judged by: they have no times of their own.
FREELY = "train/examples_per_second"
PRIMARY_AT_MOST = 3
PROFILED = "profile/"
CHECKS = "check/"
COMPILED = ("train/compilations", "train/recompilations", "train/graph_breaks")
HIDDEN = (
    "live/",
    "system/",
    CHECKS,
    "model/",
    "idle/",
    "machine/",
    PROFILED,
    "graph/",
    TO_ACCURACY,
    *COMPILED,
)
_BATCH = re.compile(r"(?:^|/)batch_(\d+)(?=/)")


@dataclass(frozen=True)
class Metric:
    """A metric as it is judged.

    Attributes:
        metric: its key in MLflow, or a pattern of keys.
        better: which way is better.
        margin: the smallest difference that matters, in `unit`; None takes the comparison's ratio.
        headline: what a reader asks first that it answers (`training`), and its rank among what
            answers the same: the first that a report has is its headline.
        verb: what a framework does, in a sentence: `trains` 1.4× faster.
        short: what it is called where somebody types it.
        within: what it summarises.
        by_epoch: whether it is a series with a value after every epoch.
        total: whether it depends on how much is trained: sums, and what was learned.
        alone: whether only a process that has the machine for itself from its start on can say it:
            what it does once, and sums over all that it does.
    """

    metric: str
    kind: Scale
    better: Better
    margin: float | None
    label: str
    unit: str
    headline: Headline = None
    verb: str = ""
    short: tuple[str, ...] = ()
    within: Within = ""
    by_epoch: bool = False
    alone: bool = False
    total: bool = False

    @property
    def words(self) -> tuple[str, str]:
        """What b is called if its value lies below and above a's."""
        if self.unit == "s":
            return "faster", "slower"
        return ("slower", "faster") if self.unit.endswith("/s") else ("lower", "higher")


# The name that `compare` and its reasons have for a metric that is judged.
Outcome = Metric


@dataclass(frozen=True)
class Hypothesis:
    """H0: the metric is the same on both sides; H1: it differs. published_p: what the study reported."""

    name: str
    question: str
    phase: str
    metric: str
    published_p: str


def _ratio(key: str, label: str, unit: str, better: Better = "lower", **more: Any) -> Metric:
    return Metric(key, "ratio", better, None, label, unit, **more)


def _difference(
    key: str, label: str, unit: str, better: Better, margin: float, **more: Any
) -> Metric:
    return Metric(key, "difference", better, margin, label, unit, **more)


# The first pattern that matches says what a metric is; its place here is its place in the report.
KNOWN = (
    _ratio(
        *(FREELY, "training throughput", "examples/s", "higher"),
        headline=("training", 1),
        verb="trains",
        short=("throughput",),
        within="windows",
    ),
    _ratio(
        "train/stepped_examples_per_second",
        "training throughput, steps timed one by one",
        "examples/s",
        "higher",
    ),
    _ratio(
        "train/images_per_second",
        "training throughput (images)",
        "images/s",
        "higher",
        headline=("training", 2),
        within="windows",
    ),
    _ratio(
        "train/step_seconds",
        "median training step",
        "s",
        headline=("training", 3),
        short=("step",),
        within="steps",
    ),
    _ratio("train/step_seconds_p95", "p95 training step", "s"),
    _ratio("train/on_device_step_seconds", "median training step by the device's clock", "s"),
    _ratio("train/on_device_step_seconds_p95", "p95 training step by the device's clock", "s"),
    _ratio("train/first_step_seconds", "first training step", "s", alone=True),
    _ratio(TOTAL, "total training time", "s", short=("time",), alone=True, total=True),
    _ratio("train/first_epoch_seconds", "first epoch", "s", alone=True, total=True),
    _ratio("train/epoch_seconds", "median later epoch", "s", total=True),
    _ratio("train/epoch_examples_per_second", "throughput of whole epochs", "examples/s", "higher"),
    _ratio("val/total_seconds", "total validation time", "s", total=True),
    _ratio("input/seconds_mean", "mean wait for a batch", "s"),
    _ratio("features/images_per_second", "feature extraction throughput", "images/s", "higher"),
    _ratio("features/total_seconds", "total feature extraction time", "s", total=True),
    _ratio(
        *("inference/latency_seconds_p50", "median inference latency", "s"),
        headline=("inference", 1),
        verb="answers",
        short=("latency",),
        within="requests",
    ),
    _ratio("inference/latency_seconds_p95", "p95 inference latency", "s"),
    _ratio("inference/latency_seconds_p99", "p99 inference latency", "s"),
    _ratio("inference/first_call_seconds", "first inference call", "s", alone=True),
    _ratio(
        *("inference/examples_per_second", "inference throughput", "examples/s", "higher"),
        headline=("inference", 2),
        within="requests",
    ),
    _ratio(
        "memory/peak_rss_bytes",
        "peak process memory",
        "bytes",
        headline=("memory", 2),
        short=("memory", "peak_memory"),
    ),
    _ratio(
        "memory/peak_device_bytes",
        "peak device memory",
        "bytes",
        headline=("memory", 1),
        short=("device_memory",),
    ),
    _ratio(
        "memory/peak_device_with_warmup_bytes",
        "peak device memory with warm-up and autotuning",
        "bytes",
    ),
    _ratio(
        "energy/joules_per_example",
        "energy per example",
        "J",
        headline=("energy", 1),
        short=("energy",),
    ),
    _ratio("energy/joules", "energy", "J", headline=("energy", 2), total=True),
    _ratio("power/watts_mean", "mean power", "W", "neither"),
    _difference(
        "val/loss",
        "validation loss",
        "nats",
        "lower",
        0.05,
        headline=("quality", 4),
        short=("loss",),
        by_epoch=True,
        total=True,
    ),
    _difference("train/loss", "training loss", "nats", "lower", 0.05, by_epoch=True, total=True),
    _difference(
        *("val/accuracy", "validation accuracy", "", "higher", 0.01),
        headline=("quality", 1),
        short=("accuracy",),
        by_epoch=True,
        total=True,
    ),
    _difference(
        "val/bleu1", "BLEU-1", "points", "higher", 1.0, total=True, headline=("quality", 3)
    ),
    _difference("val/bleu2", "BLEU-2", "points", "higher", 1.0, total=True),
    _difference("val/bleu3", "BLEU-3", "points", "higher", 1.0, total=True),
    _difference(
        "val/bleu4", "BLEU-4", "points", "higher", 1.0, total=True, headline=("quality", 2)
    ),
    _difference("val/bleu1_beam", "BLEU-1 with beam search", "points", "higher", 1.0, total=True),
    _difference("val/bleu2_beam", "BLEU-2 with beam search", "points", "higher", 1.0, total=True),
    _difference("val/bleu3_beam", "BLEU-3 with beam search", "points", "higher", 1.0, total=True),
    _difference("val/bleu4_beam", "BLEU-4 with beam search", "points", "higher", 1.0, total=True),
    _difference("cpu/temperature_celsius_mean", "mean CPU temperature", "°C", "lower", 1.0),
    _difference("cpu/temperature_celsius_max", "maximum CPU temperature", "°C", "lower", 1.0),
    _difference("gpu/temperature_celsius_mean", "mean GPU temperature", "°C", "lower", 1.0),
    _difference("gpu/temperature_celsius_max", "maximum GPU temperature", "°C", "lower", 1.0),
    _difference("cpu/utilization_percent_mean", "mean CPU utilisation", "%", "neither", 3.0),
    _difference("gpu/utilization_percent_mean", "mean GPU utilisation", "%", "neither", 3.0),
    _difference(
        "input/share_percent",
        "share of training time spent waiting for batches",
        "%",
        "neither",
        3.0,
    ),
)
BY_SUFFIX = (
    _ratio("*_per_second", "", "1/s", "higher"),
    _ratio("*_seconds", "", "s", total=True),
    _ratio("*_seconds_*", "", "s", total=True),
    _ratio("*_bytes", "", "bytes"),
    _ratio("*joules*", "", "J", total=True),
    _ratio("*watts*", "", "W", "neither"),
    _difference("*temperature_celsius*", "", "°C", "lower", 1.0),
    _difference("*_percent*", "", "%", "neither", 3.0),
    _difference("*accuracy*", "", "", "higher", 0.01, total=True),
    _difference("*bleu*", "", "points", "higher", 1.0, total=True),
    _difference("*loss", "", "nats", "lower", 0.05, total=True),
)
_PLACE = {one.metric: place for place, one in enumerate(KNOWN)}
# What metrics are called where somebody types them.
SHORT = {short: one.metric for one in KNOWN for short in one.short}
BY_EPOCH = tuple(one.metric for one in KNOWN if one.by_epoch)
# Times of which an injected delay is a share: medians of steps and requests.
DELAYED = tuple(one.metric for one in KNOWN if one.within and one.unit == "s")


def outcome(metric: str) -> Metric:
    """How a metric is judged. A `batch_8/` in the key is told in the label; an unknown metric is a ratio, neither way better."""
    plain = without_batch(metric)
    batch = _BATCH.search(metric)
    suffix = f", batch {batch[1]}" if batch else ""
    # sensors are read while requests are answered, too
    for key, during in ((plain, ""), (plain.removeprefix("inference/"), " in inference")):
        if key in _PLACE:
            known = KNOWN[_PLACE[key]]
            if during or batch:
                known = replace(known, headline=None, verb="", within="")
            return replace(known, metric=metric, label=f"{known.label}{during}{suffix}")
    for rule in BY_SUFFIX:
        if fnmatch.fnmatchcase(plain, rule.metric):
            return replace(rule, metric=metric, label=metric)
    return Metric(metric, "ratio", "neither", None, metric, "", total=True)


def declared(
    primary: Sequence[str], outcomes: Iterable[str], unmeasured: Sequence[str] = ()
) -> tuple[str, ...]:
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
        raise WrongCall(
            f"primary names {len(set(primary))} outcomes; at most {PRIMARY_AT_MOST}, or the power is lost again"
        )
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
        close = (
            [SHORT[name]] if SHORT.get(name) in have else difflib.get_close_matches(name, have, n=1)
        )
        right = f"did you mean {close[0]}?" if close else f"have {', '.join(have) or 'none'}"
        raise WrongCall(f"outcomes: no run has a metric '{plain.short(name)}'; {right}")


def place(metric: str) -> tuple[int, int, str]:
    """A sort key: known metrics in their order, batch sizes ascending, then everything else by name."""
    batch, plain = _BATCH.search(metric), without_batch(metric)
    return (
        _PLACE.get(plain, _PLACE.get(plain.removeprefix("inference/"), len(KNOWN))),
        int(batch[1]) if batch else 0,
        metric,
    )


def without_batch(metric: str) -> str:
    """The key without a batch size in it."""
    return _BATCH.sub("", metric).lstrip("/")
