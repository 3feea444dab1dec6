"""Environment, sensors, warnings and values of the compared runs."""

from __future__ import annotations

import datetime
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd

from experiments.comparison.runs import pairing
from experiments.comparison.runs.expected_differences import SOFTWARE
from experiments.comparison.runs.pairing import natural
from experiments.comparison.runs.warning import ComparisonWarning, WarningCode
from experiments.comparison.statistics.estimates import Floats
from experiments.metrics import TO_ACCURACY
from tracking.records import BETWEEN_WARNINGS

HUGE = 1.7e308  # MLflow stores infinities as the greatest float
SEPARATE_CAMPAIGNS = (
    "the levels were measured in separate campaigns: changes between them may explain a difference"
)
# Column -> code and words of the warning that it differs between runs.
MIXED = {
    "tags.environment": (
        WarningCode.MIXED_ENVIRONMENTS,
        "environments (machine, packages and inherited variables)",
    ),
    "tags.commit": (WarningCode.MIXED_COMMITS, "commits of this code"),
}
# Columns of the environment, and prefixes of tags that are not part of it.
ENVIRONMENT_COLUMNS = (
    "machine",
    "model",
    "dataset",
    "team",
    "campaign",
    "settings_hash",
    "params.device",
    "params.threads",
    "params.precision",
    "params.others_limit_percent",
)
# Setting -> its name in the head of a report.
CONDITIONS = {
    "threads": "threads",
    "batch_size": "batch size",
    "image_size": "image size",
    "pairing": "pairing",
    "malloc": "memory allocator",
    "device": "device",
}
OMITTED_TAGS = (
    "mlflow.",
    "not_available.",
    "origin",
    "heartbeat",
    "pid",
    "cell",
    "outcome",
    "warnings",
    "verdict",
    "block",
    "kind",
    "framework",
    "order_in_block",
    "status",
    "disturbed",
    "repeats",
    "turns",
    "weights.digest",
    "workers.",
    "warmup.",
)


class Value(NamedTuple):
    """Value of a metric of one run; a tuple, since there are many.

    Attributes:
        sequence: Place of the run in the order in which the runs began.
        group: Requested stratum, in which `stratum` may be one of several campaigns.
    """

    level: str
    stratum: str
    block: str
    sequence: int
    value: float
    group: str = ""
    run: str = ""


def numbers(frame: pd.DataFrame, metric: str) -> Floats:
    """Return a metric of all runs: NaN if it is missing, infinite if MLflow was given infinity."""
    column = frame[metric]
    if column.dtype != np.float64:
        column = pd.to_numeric(column, errors="coerce")
    values = np.array(column, dtype=np.float64)
    return np.where(np.abs(values) >= HUGE, np.copysign(np.inf, values), values)


def values(frame: pd.DataFrame, metrics: Iterable[str]) -> dict[str, tuple[Value, ...]]:
    """Return the finite values of each metric in the order in which the runs began."""
    order = np.argsort(frame["sequence"].to_numpy(), kind="stable")
    names = ("level", "stratum", "block_label", "sequence", "group", "run_id")
    columns = [frame[name].to_numpy()[order] for name in names]
    values = {}
    for metric in metrics:
        series = numbers(frame, metric)[order]
        finite = np.flatnonzero(np.isfinite(series))
        fields = [column[finite].tolist() for column in columns]
        fields.insert(4, series[finite].tolist())
        values[metric] = tuple(map(Value, *fields))
    return values


def block_seconds(first: pd.DataFrame, second: pd.DataFrame) -> float | None:
    """Return the median over blocks of the time of both runs, in which shared time counts once."""
    starts, ends = (
        np.array([pd.to_numeric(side[name]) for side in (first, second)], float)
        for name in ("start_ms", "end_ms")
    )
    shared = np.maximum(0.0, ends.min(axis=0) - starts.max(axis=0))
    took = (ends - starts).sum(axis=0) - shared
    seconds = took[np.isfinite(took)] / 1_000
    return float(np.median(seconds)) if len(seconds) else None


class Span(NamedTuple):
    """Time of runs: UTC days, and the seconds from first start to last end of all campaigns."""

    days: str
    seconds: float


def span(table: pd.DataFrame) -> Span | None:
    """Return the span of the finished cells; None if their times are not known."""
    frame = _finished(table)
    frame = frame[pairing.are_cells(frame)]  # the time of a campaign's run would count again
    columns = frame.reindex(columns=["start_ms", "end_ms"])
    times = columns.apply(pd.to_numeric, errors="coerce").dropna()
    if times.empty:
        return None
    groups = times.groupby(pairing.texts_of(frame.loc[times.index], "campaign").to_numpy())
    seconds = float((groups["end_ms"].max() - groups["start_ms"].min()).sum()) / 1_000
    first, last = (
        datetime.datetime.fromtimestamp(float(ms) / 1_000, datetime.UTC).date()
        for ms in (times["start_ms"].min(), times["end_ms"].max())
    )
    return Span(f"{first}" + (f" to {last}" if last > first else ""), seconds)


def _finished(table: pd.DataFrame) -> pd.DataFrame:
    return table[table["status"] == "FINISHED"] if "status" in table.columns else table


def times_to_accuracy(frame: pd.DataFrame) -> dict[str, tuple[Value, ...]]:
    """Return, for each requested accuracy in percent, the seconds of the runs that reached it."""
    texts = frame["params.thresholds"].dropna().unique() if "params.thresholds" in frame else ()
    shares = sorted({float(share) for text in texts for share in str(text).split(",") if share})
    percents = [f"{100 * share:g}" for share in shares]
    metrics = {percent: f"{TO_ACCURACY}{percent}_percent_seconds" for percent in percents}
    times = values(frame, [metric for metric in metrics.values() if metric in frame.columns])
    return {percent: times.get(metric, ()) for percent, metric in metrics.items()}


def medians(table: pd.DataFrame, *, factor: str, metric: str) -> dict[str, float]:
    """Return the median of a metric by level, over all finished runs of any kind."""
    if metric not in table.columns:
        return {}
    frame = _finished(table)
    series = pd.Series(numbers(frame, metric), index=frame.index)
    finite = series.replace([np.inf, -np.inf], np.nan)
    levels = frame[pairing.column_of(table, factor)].astype(str)
    by_level = finite.groupby(levels).median().dropna()
    return {str(level): float(value) for level, value in by_level.items()}


def describe_environment(frame: pd.DataFrame, levels: Sequence[str]) -> dict[str, dict[str, str]]:
    """Return the environment of each level's runs, with all values of each part."""
    tags = [column for column in frame.columns if column.startswith("tags.")]
    shown = sorted(column for column in tags if not column[5:].startswith(OMITTED_TAGS))
    environments: dict[str, dict[str, str]] = {}
    for level in levels:
        inside = frame[frame["level"] == level]
        environments[level] = {"runs": str(len(inside))}
        for column in (*ENVIRONMENT_COLUMNS, *shown):
            if texts := _distinct(inside, column):
                environments[level][column.split(".", 1)[-1]] = ", ".join(texts)
        for phase in ("inference", "train"):
            if text := _warm_up(inside, phase):
                environments[level][f"warm-up of the GPU, {phase}"] = text
    return environments


def _warm_up(frame: pd.DataFrame, phase: str) -> str:
    """Return how long a phase was warmed up on a GPU, and the runs by the reason of its end."""
    tag, metric = f"tags.warmup.{phase}", f"check/{phase}_warmup_seconds"
    if not {tag, metric} <= {*frame.columns} or not frame[tag].notna().any():
        return ""
    seconds, reasons = numbers(frame, metric), frame[tag].value_counts()
    counted = ", ".join(f"{reason} ({count})" for reason, count in reasons.items())
    return f"{np.nanmin(seconds):.1f} to {np.nanmax(seconds):.1f} s: {counted}"


def conditions(frame: pd.DataFrame, varied: Iterable[str]) -> dict[str, str]:
    """Return the recorded conditions of the runs; "several" if they are not the same in all.

    Args:
        varied: factor and strata, which tables name.
    """
    left_out = set(map(pairing.plain_name, varied))
    settings = [setting for setting in CONDITIONS if setting not in left_out]
    values = {CONDITIONS[setting]: _distinct(frame, f"params.{setting}") for setting in settings}
    return {
        name: texts[0] if len(texts) == 1 else "several" for name, texts in values.items() if texts
    }


def all_runs_have(frame: pd.DataFrame, column: str, value: str) -> bool:
    return column in frame.columns and bool((frame[column] == value).all())


def rests_on(frame: pd.DataFrame) -> dict[str, tuple[str, ...]]:
    """Return the machines, teams and campaigns of the runs."""
    return {f"{column}s": _distinct(frame, column) for column in ("machine", "team", "campaign")}


def _distinct(frame: pd.DataFrame, column: str) -> tuple[str, ...]:
    return tuple(sorted(set(pairing.texts_of(frame, column)) - {""}, key=natural))


def missing_sensors(frame: pd.DataFrame) -> dict[str, str]:
    """Return the sensors that were missing, with the reasons of the runs."""
    prefix = "tags.not_available."
    columns = sorted(column for column in frame.columns if column.startswith(prefix))
    return {
        column.removeprefix(prefix): " / ".join(sorted(set(frame[column].dropna())))
        for column in columns
        if frame[column].notna().any()
    }


def missing_reason(frames: Iterable[pd.DataFrame], metric: str) -> str:
    """Return the reason for which runs have no such metric, if they name it."""
    column = f"tags.not_available.{metric}"
    texts = {text for frame in frames for text in pairing.texts_of(frame, column)}
    return " / ".join(sorted(texts - {""}))


def warnings(frame: pd.DataFrame) -> Iterator[ComparisonWarning]:
    """Yield the warnings that the runs carry, and those on what differs between them."""
    tags = frame.get("tags.warnings", pd.Series(dtype=object)).dropna()
    for line in dict.fromkeys(BETWEEN_WARNINGS.join(tags).split(BETWEEN_WARNINGS)):
        if line:
            yield ComparisonWarning(WarningCode.RECORDED, line)
    if frame["apart"].any():
        yield ComparisonWarning(WarningCode.SEPARATE_CAMPAIGNS, SEPARATE_CAMPAIGNS)
    for column, (code, name) in MIXED.items():
        if column in frame.columns and (count := frame[column].nunique()) > 1:
            inside = frame.groupby(["stratum", "pair"])[column].nunique()
            mixed = int((inside > 1).sum())
            where = "inside every block there is one"
            if mixed:
                where = f"inside {mixed} of {len(inside)} blocks there are several"
            yield ComparisonWarning(code, f"The runs come from {count} {name}; {where}.")


def warnings_of_others(
    frame: pd.DataFrame, expected: Collection[str], *, timed: bool
) -> Iterator[ComparisonWarning]:
    """Yield warnings on the machines and environments of runs that are no cells of campaigns.

    Each run may have a virtual environment of its side, so that differences refuse nothing.

    Args:
        expected: Columns that differ by the nature of the factor.
        timed: Whether an outcome depends on the machine.
    """
    others = frame[frame["kind"].isna()]
    is_recorded = pairing.as_text(others["machine"]) != ""
    if timed and not is_recorded.all():
        yield ComparisonWarning(
            WarningCode.MACHINE_UNKNOWN,
            f"The machine of {(~is_recorded).sum()} of {len(frame)} runs was not recorded: whether "
            "all runs were measured on the same one is not known. Runs record it if evenhand is "
            "installed in their environment.",
        )
    columns = [name for name in frame.columns if str(name).startswith(SOFTWARE)]
    rest = [name for name in sorted(columns) if name not in expected]
    if differing := pairing.varying(others[is_recorded], rest):
        yield ComparisonWarning(
            WarningCode.MIXED_ENVIRONMENTS,
            f"Versions of packages, inherited variables or usable CPUs differ: {differing}.",
        )
