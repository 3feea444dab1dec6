"""Catalogue of metrics: label, unit, kind of comparison and conditions of each.

A metric is added by one entry in `KNOWN`; all other lists of metrics are derived from it.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Literal

from tracking import plain
from tracking.errors import ErrorCode, UsageError, suggestion

Scale = Literal["ratio", "difference"]
Better = Literal["lower", "higher", "neither"]
Headline = tuple[str, int] | None
# How MLflow shows a metric: as it is, in milliseconds, or not at all.
Shown = Literal["plain", "milliseconds", "no"]
# Values that a metric summarises: steps, windows of steps (if steps ran freely), or requests.
Within = Literal["", "steps", "windows", "requests"]
# Times to an accuracy, which some runs never reach: counted, never judged.
TO_ACCURACY = "train/to_accuracy_"
TOTAL = "train/total_seconds"
# Metric of steps that ran freely, which have no single times.
FREELY = "train/examples_per_second"
PRIMARY_AT_MOST = 3
TIMES = ("s", "ms", "µs", "ns")
# Rounding makes shares of slightly more than 1.
MOST_AS_SHARE = 1.5
# Part of the keys of times of a step, which depend on the batch size.
PER_STEP = "step_seconds"
PROFILED = "profile/"
CHECKS = "check/"
COMPILED = ("train/compilations", "train/recompilations", "train/graph_breaks")
QUALITY = "quality"
UNJUDGED = (CHECKS, "model/", "idle/", "machine/", PROFILED, "graph/", *COMPILED)
# Shares of the machine's peak. Of frameworks that compute the same their ratio is that of the
# throughputs, so they are not judged a second time.
SHARES_OF_PEAK = ("train/mfu", "inference/mfu")
FLOPS, TRAINING_FLOPS = "model/flops_per_example", "model/training_flops_per_example"
TOKENS = "train/tokens_per_second"
PEAK, BANDWIDTH = "machine/peak_flops", "machine/bandwidth"
VENDOR_PEAK = "machine/vendor_peak_flops"
INTENSITIES = ("model/training_flops_per_byte", "model/inference_flops_per_byte")
PADDING = "model/padding_percent"
OF_MACHINE = (*SHARES_OF_PEAK, TOKENS, PEAK, VENDOR_PEAK, BANDWIDTH, *INTENSITIES, PADDING)
HIDDEN = ("live/", "system/", TO_ACCURACY, *SHARES_OF_PEAK, *UNJUDGED)
# Unknown to the catalogue, and read by programs only.
_DETAILS = (*UNJUDGED, "cpu/clock_", "gpu/clock_", "memory/peak_device_process_")
_BATCH = re.compile(r"(?:^|/)batch_(\d+)(?=/)")


@dataclass(frozen=True)
class Metric:
    """Metric and the rules of its comparison.

    Attributes:
        metric: its key in MLflow, or a pattern of keys.
        better: the better direction.
        margin: the smallest difference that matters, in `unit`; None takes the comparison's ratio.
        headline: the reader's question that it answers (`training`), and its rank among the
            metrics that answer it: the first that a report has is its headline.
        verb: action of a framework in a sentence: `trains` 1.4× faster.
        short: names that users may type.
        within: the values that it summarises.
        by_epoch: whether it is a series with a value after every epoch.
        total: whether it depends on how much is trained: sums, and what was learned.
        learned: whether it says how good a trained network is though it is compared as a ratio.
        share: whether it is between 0 and 1, or between 0 and 100 in runs of others.
        timed: whether it is a time of an unknown unit.
        exclusive: whether it is valid only in a process that has the machine for itself from its
            start: times of what happens once, and sums over the whole process.
        shown: how MLflow shows it. What it does not show is in the run's hidden tag, from which
            comparisons read it, and in `metrics.json`.
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
    exclusive: bool = False
    total: bool = False
    learned: bool = False
    share: bool = False
    timed: bool = False
    shown: Shown = "plain"

    @property
    def question(self) -> str:
        """Reader's question that it answers, or its label if it answers no common one."""
        return self.headline[0] if self.headline else self.label

    @property
    def words(self) -> tuple[str, str]:
        """Names of b if its value is below and above that of a."""
        if self.timed or self.unit in TIMES:
            return "faster", "slower"
        return ("slower", "faster") if self.unit.endswith("/s") else ("lower", "higher")

    @property
    def better_word(self) -> str:
        """Name of b if it is better; empty if neither direction is."""
        return {"lower": self.words[0], "higher": self.words[1], "neither": ""}[self.better]

    @property
    def is_speed(self) -> bool:
        """True for times and rates, whose ratios read 1.42× faster."""
        return "faster" in self.words

    @property
    def is_learned(self) -> bool:
        """True for accuracies, losses, errors and scores, which no busy machine changes."""
        return (
            self.learned
            or self.unit in ("nats", "points")
            or (self.kind == "difference" and not self.unit)
        )


# Name of a judged metric in comparisons.
Outcome = Metric


@dataclass(frozen=True)
class Hypothesis:
    """Null hypothesis that a metric is the same on both sides.

    published_p: p-value in the publication.
    """

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


# The order is that of the report.
KNOWN = (
    _ratio("wall_seconds", "wall time", "s", headline=("time", 1), verb="runs", exclusive=True),
    _ratio("cpu/user_seconds", "user CPU time", "s", exclusive=True),
    _ratio("cpu/system_seconds", "system CPU time", "s", exclusive=True),
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
        shown="no",
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
        shown="milliseconds",
    ),
    _ratio("train/step_seconds_p95", "p95 training step", "s", shown="no"),
    _ratio("train/alone_step_seconds", "median training step of one worker", "s", shown="no"),
    _ratio(
        "train/first_step_seconds", "first training step", "s", exclusive=True, shown="milliseconds"
    ),
    _ratio(TOTAL, "total training time", "s", short=("time",), exclusive=True, total=True),
    _ratio("train/first_epoch_seconds", "first epoch", "s", exclusive=True, total=True, shown="no"),
    _ratio("train/epoch_seconds", "median later epoch", "s", total=True, shown="no"),
    _ratio(
        "train/epoch_examples_per_second",
        "throughput of whole epochs",
        "examples/s",
        "higher",
        shown="no",
    ),
    _ratio("val/total_seconds", "total validation time", "s", total=True, shown="no"),
    _ratio("input/seconds_mean", "mean wait for a batch", "s", shown="no"),
    _ratio("features/images_per_second", "feature extraction throughput", "images/s", "higher"),
    _ratio("features/total_seconds", "total feature extraction time", "s", total=True),
    _ratio(
        *("inference/latency_seconds_p50", "median inference latency", "s"),
        shown="milliseconds",
        headline=("inference", 1),
        verb="answers",
        short=("latency",),
        within="requests",
    ),
    _ratio("inference/latency_seconds_p95", "p95 inference latency", "s", shown="milliseconds"),
    _ratio("inference/latency_seconds_p99", "p99 inference latency", "s", shown="no"),
    _ratio(
        *("inference/seconds_per_token", "time per output token", "s"),
        headline=("generation", 1),
        verb="generates",
        shown="milliseconds",
    ),
    _ratio(
        *("inference/first_token_seconds", "time to first token", "s"),
        shown="milliseconds",
    ),
    _ratio("inference/load_seconds", "loading of a file", "s", exclusive=True, shown="no"),
    _ratio("inference/file_bytes", "size of the file", "bytes"),
    _difference(
        "inference/same_class_share",
        "answers of the same class as the exported network's",
        "",
        "higher",
        0.01,
        share=True,
    ),
    _ratio("inference/first_call_seconds", "first inference call", "s", exclusive=True, shown="no"),
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
        shown="no",
    ),
    _ratio(
        "memory/peak_tree_bytes",
        "peak memory of all processes",
        "bytes",
        headline=("memory", 3),
    ),
    _ratio("memory/peak_device_process_bytes", "peak device memory of all processes", "bytes"),
    _ratio(
        "energy/joules_per_example",
        "energy per example",
        "J",
        headline=("energy", 1),
        short=("energy",),
    ),
    _ratio("energy/joules", "energy", "J", headline=("energy", 2), total=True, shown="no"),
    _ratio("power/watts_mean", "mean power", "W", "neither", shown="no"),
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
        share=True,
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
    _difference(
        "val/bleu1_beam", "BLEU-1 with beam search", "points", "higher", 1.0, total=True, shown="no"
    ),
    _difference(
        "val/bleu2_beam", "BLEU-2 with beam search", "points", "higher", 1.0, total=True, shown="no"
    ),
    _difference(
        "val/bleu3_beam", "BLEU-3 with beam search", "points", "higher", 1.0, total=True, shown="no"
    ),
    _difference(
        "val/bleu4_beam", "BLEU-4 with beam search", "points", "higher", 1.0, total=True, shown="no"
    ),
    _difference(
        "cpu/temperature_celsius_mean", "mean CPU temperature", "°C", "lower", 1.0, shown="no"
    ),
    _difference(
        "cpu/temperature_celsius_max", "maximum CPU temperature", "°C", "lower", 1.0, shown="no"
    ),
    _difference(
        "gpu/temperature_celsius_mean", "mean GPU temperature", "°C", "lower", 1.0, shown="no"
    ),
    _difference(
        "gpu/temperature_celsius_max", "maximum GPU temperature", "°C", "lower", 1.0, shown="no"
    ),
    _difference(
        "cpu/utilization_percent_mean", "mean CPU utilisation", "%", "neither", 3.0, shown="no"
    ),
    _difference(
        "gpu/utilization_percent_mean", "mean GPU utilisation", "%", "neither", 3.0, shown="no"
    ),
    _difference(
        "input/share_percent",
        "share of training time spent waiting for batches",
        "%",
        "neither",
        3.0,
        shown="no",
    ),
)


def _rules(rule: Metric, *patterns: str) -> tuple[Metric, ...]:
    return tuple(replace(rule, metric=pattern) for pattern in patterns)


_LEARNED: dict[str, Any] = {"total": True, "learned": True}
# Patterns of `_words` of a name, for metrics that the catalogue does not have.
PATTERNS = (
    *_rules(
        _ratio("", "", "1/s", "higher"),
        *("*_per_second_*", "*_per_sec_*", "*_per_s_", "*throughput*", "*_fps_*", "*_qps_*"),
    ),
    *_rules(_ratio("", "", "s", total=True), "*_seconds_*", "*_secs_*", "*_sec_*", "*_s_"),
    *_rules(_ratio("", "", "ms", total=True), "*_ms_*", "*_milliseconds_*"),
    *_rules(_ratio("", "", "µs", total=True), "*_us_*", "*_microseconds_*"),
    *_rules(_ratio("", "", "ns", total=True), "*_ns_*", "*_nanoseconds_*"),
    _ratio("*latency*", "", "", timed=True),
    *_rules(
        _ratio("", "", "s", total=True), "*_time_*", "*runtime*", "*_duration_*", "*_elapsed_*"
    ),
    *_rules(
        _ratio("", "", "", **_LEARNED),
        *("*error*", "*_err_*", "*mse_*", "*mae_*", "*_mape_*", "*perplexity*", "*_ppl_*"),
        *("*_wer_*", "*_cer_*"),
    ),
    *_rules(
        _difference("", "", "", "higher", 0.01, share=True, **_LEARNED),
        *("*accuracy*", "*_acc_*", "*_acc[0-9]*_*", "*_top[0-9]*_*", "*_iou_*", "*_miou_*"),
        *("*_map_*", "*_map[0-9]*_*", "*_auc_*", "*auroc*", "*_f1_*", "*_dice_*", "*_precision_*"),
        *("*_recall_*", "*bleu*", "*rouge*"),
    ),
    *_rules(_difference("", "", "", "higher", 0.01, **_LEARNED), "*_score_*", "*_r2_*"),
    _difference("*loss*", "", "", "lower", 0.05, **_LEARNED),
    *_rules(_difference("", "", "%", "neither", 3.0), "*_percent_*", "*_utilization_*"),
    _difference("*_celsius_*", "", "°C", "lower", 1.0),
    _ratio("*_joules_*", "", "J", total=True),
    _ratio("*_watts_*", "", "W", "neither"),
    _ratio("*_bytes_*", "", "bytes"),
    _ratio("*_mb_*", "", "MB"),
    _ratio("*_mib_*", "", "MiB"),
    _ratio("*_gb_*", "", "GB"),
    _ratio("*_gib_*", "", "GiB"),
    _ratio("*memory*", "", ""),
)
_PLACE = {metric.metric: place for place, metric in enumerate(KNOWN)}
SHORT = {short: metric.metric for metric in KNOWN for short in metric.short}
BY_EPOCH = tuple(metric.metric for metric in KNOWN if metric.by_epoch)
# Times of which an injected delay is a share: medians of steps and requests, and whole commands.
DELAYED = (
    *(metric.metric for metric in KNOWN if metric.within and metric.unit == "s"),
    "wall_seconds",
)


def outcome(metric: str) -> Metric:
    """Return the rules for a key, with its batch size in the label.

    An unknown metric is compared as a ratio, and neither direction is better.
    """
    key = without_batch(metric)
    batch = _BATCH.search(metric)
    suffix = f", batch {batch[1]}" if batch else ""
    # sensors are also read while requests are answered
    for name, phase in ((key, ""), (key.removeprefix("inference/"), " in inference")):
        if name in _PLACE:
            rules = KNOWN[_PLACE[name]]
            if phase or batch:
                shown = rules.shown if rules.verb else "no"
                rules = replace(rules, headline=None, verb="", within="", shown=shown)
            return replace(rules, metric=metric, label=f"{rules.label}{phase}{suffix}")
    words = _words(key)
    for rule in PATTERNS:
        if fnmatch.fnmatchcase(words, rule.metric):
            return replace(rule, metric=metric, label=metric)
    return Metric(metric, "ratio", "neither", None, metric, "", total=True)


def _words(key: str) -> str:
    """Return the words of a name, such as `_val_acc_` for `valAcc` and `val-acc`."""
    apart = re.sub(r"(?<=[a-z]{2})(?=[A-Z])", "_", re.sub(r"/s(ec|econd)?$", "_per_second", key))
    return f"_{re.sub(r'[^a-z0-9]+', '_', apart.lower()).strip('_')}_"


def in_percent(metric: Metric, values: Iterable[float]) -> Metric:
    """Return the rules of a share with a margin in points, if some value is no share."""
    is_percent = metric.share and any(value > MOST_AS_SHARE for value in values)
    return replace(metric, unit="points", margin=1.0) if is_percent else metric


def is_known(metric: str) -> bool:
    """Return whether a key, with or without a batch size, is in the catalogue."""
    key = without_batch(metric)
    return key in _PLACE or key.removeprefix("inference/") in _PLACE


def is_quality(metric: Metric) -> bool:
    """Return whether a metric says how good the trained network is."""
    return metric.unit in ("nats", "points") or metric.question == QUALITY


@lru_cache(4_096)
def shown_name(metric: str) -> str:
    """Return the name under which MLflow shows a metric; empty if it does not."""
    shown = outcome(metric).shown
    if shown == "no" or without_batch(metric).removeprefix("inference/").startswith(_DETAILS):
        return ""
    return metric.replace("_seconds", "_milliseconds") if shown == "milliseconds" else metric


def without_copies(metrics: Mapping[str, float]) -> dict[str, float]:
    """Return the metrics of a run without those in milliseconds that it has in seconds, too."""
    return {
        key: value
        for key, value in metrics.items()
        if "_milliseconds" not in key or key.replace("_milliseconds", "_seconds") not in metrics
    }


def check_primary(
    primary: Sequence[str], outcomes: Iterable[str], unmeasured: Sequence[str] = ()
) -> tuple[str, ...]:
    """Return the outcomes that were declared as primary.

    Args:
        primary: Their names.
        outcomes: The measured outcomes.
        unmeasured: Requested outcomes that no run has.

    Raises:
        UsageError: for a name in neither of the two, or for too many names.
    """
    names = list(dict.fromkeys(outcomes))
    for name in primary:
        if name not in names and name not in unmeasured:
            right = suggestion(name, names)
            raise UsageError(
                ErrorCode.UNKNOWN_NAME, f"primary={plain.short(name)} is no outcome here{right}"
            )
    if len(set(primary)) > PRIMARY_AT_MOST:
        raise UsageError(
            ErrorCode.TOO_LARGE,
            f"primary names {len(set(primary))} outcomes; "
            f"at most {PRIMARY_AT_MOST}, or the power is lost again",
        )
    return tuple(dict.fromkeys(primary))


def check_outcomes(names: Iterable[str], measured: Iterable[str]) -> None:
    """Check that metrics were measured, or could have been.

    Raises:
        UsageError: with the nearest of the measured metrics, or with all of them.
    """
    available = sorted(measured, key=place)
    for name in names:
        if name in available or is_known(name):
            continue
        right = suggestion(name, available)
        if SHORT.get(name) in available:
            right = f"; did you mean {SHORT[name]}?"
        raise UsageError(
            ErrorCode.UNKNOWN_NAME, f"outcomes: no run has a metric '{plain.short(name)}'{right}"
        )


def place(metric: str) -> tuple[int, int, str]:
    """Return a sort key: catalogue order, then batch size; other metrics last, by name."""
    batch, key = _BATCH.search(metric), without_batch(metric)
    return (
        _PLACE.get(key, _PLACE.get(key.removeprefix("inference/"), len(KNOWN))),
        int(batch[1]) if batch else 0,
        metric,
    )


def without_batch(metric: str) -> str:
    """Return a key without the batch size."""
    return _BATCH.sub("", metric).lstrip("/")
