"""What the compared runs say about themselves: environment, sensors, warnings, and every single value for the figures."""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pandas as pd

from experiments.comparison.runs import pairing
from experiments.comparison.runs.pairing import natural
from experiments.comparison.statistics.estimates import Floats
from experiments.metrics import TO_ACCURACY
from tracking.records import BETWEEN_WARNINGS

HUGE = 1.7e308  # MLflow keeps infinities as the greatest float
APART = (
    "the compared levels come from campaigns of their own: nothing ran side by side, so that whatever changed between them "
    "is in the difference"
)
TOLD = (
    *("machine", "model", "dataset", "team", "campaign", "settings_hash"),
    *("params.device", "params.threads", "params.precision", "params.others_limit_percent"),
)
UNTOLD_TAGS = (
    *(
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
    ),
    *(
        "framework",
        "order_in_block",
        "status",
        "disturbed",
        "repeats",
        "turns",
        "weights.digest",
        "workers.",
        "warmup.",
    ),
)


class Value(NamedTuple):
    """One run's value of a metric; `sequence`: its place in the order in which the runs began. A tuple, as there are many.

    group: the stratum that was asked for, in which `stratum` may be one of several campaigns. run: its id.
    """

    level: str
    stratum: str
    block: str
    sequence: int
    value: float
    group: str = ""
    run: str = ""


def numbers(frame: pd.DataFrame, metric: str) -> Floats:
    """A metric of every run as floats: NaN where it is missing, infinite where MLflow was given infinity."""
    column = frame[metric]
    values = np.array(
        column if column.dtype == np.float64 else pd.to_numeric(column, errors="coerce"),
        dtype=np.float64,
    )
    return np.where(np.abs(values) >= HUGE, np.copysign(np.inf, values), values)


def values(frame: pd.DataFrame, metrics: Iterable[str]) -> dict[str, tuple[Value, ...]]:
    """Metric → every finite value in the order in which the runs began."""
    order = np.argsort(frame["sequence"].to_numpy(), kind="stable")
    names = ("level", "stratum", "block_label", "sequence", "group", "run_id")
    *columns, groups, runs = [frame[name].to_numpy()[order] for name in names]
    told = {}
    for metric in metrics:
        found = numbers(frame, metric)[order]
        finite = np.flatnonzero(np.isfinite(found))
        first, last = (
            [column[finite].tolist() for column in some] for some in (columns, (groups, runs))
        )
        told[metric] = tuple(map(Value, *first, found[finite].tolist(), *last))
    return told


def seconds_of_a_block(first: pd.DataFrame, second: pd.DataFrame) -> float | None:
    """How long the two runs of a block took together, the median over blocks; None where the runs do not say.

    Time in which both were there, as when they take turns, counts once.
    """
    if not {"start_ms", "end_ms"} <= set(first.columns):
        return None
    starts, ends = (
        np.array([pd.to_numeric(one[name]) for one in (first, second)], float)
        for name in ("start_ms", "end_ms")
    )
    took = (ends - starts).sum(axis=0) - np.maximum(0.0, ends.min(axis=0) - starts.max(axis=0))
    known = took[np.isfinite(took)] / 1_000
    return float(np.median(known)) if len(known) else None


@dataclass(frozen=True)
class Span:
    """When runs ran: UTC days, and the seconds from a campaign's first start to its last end, over all campaigns."""

    first: datetime.date
    last: datetime.date
    seconds: float

    @property
    def days(self) -> str:
        return f"{self.first}" + (f" to {self.last}" if self.last > self.first else "")


def span(table: pd.DataFrame) -> Span | None:
    """Of the finished cells; None where they do not say when they ran."""
    if not {"start_ms", "end_ms"} <= set(table.columns):
        return None
    frame = table[table["status"] == "FINISHED"] if "status" in table.columns else table
    frame = frame[
        pairing.are_cells(frame)
    ]  # a campaign's own run has no campaign above it: its time would count again
    times = frame[["start_ms", "end_ms"]].apply(pd.to_numeric, errors="coerce").dropna()
    if times.empty:
        return None
    campaigns = (
        frame.loc[times.index, "campaign"].fillna("")
        if "campaign" in frame.columns
        else pd.Series("", times.index)
    )
    groups = times.groupby(campaigns.to_numpy())
    seconds = float((groups["end_ms"].max() - groups["start_ms"].min()).sum()) / 1_000
    first, last = (
        datetime.datetime.fromtimestamp(ms / 1_000, datetime.UTC).date() for ms in _ends(times)
    )
    return Span(first, last, seconds)


def _ends(times: pd.DataFrame) -> tuple[float, float]:
    return float(times["start_ms"].min()), float(times["end_ms"].max())


def times_to_accuracy(frame: pd.DataFrame) -> dict[str, tuple[Value, ...]]:
    """For every accuracy that any run was asked for, in percent: the seconds of the runs that reached it."""
    asked = (
        frame["params.thresholds"].dropna().unique() if "params.thresholds" in frame.columns else ()
    )
    shares = sorted({float(text) for one in asked for text in str(one).split(",") if text})
    metrics = {
        percent: f"{TO_ACCURACY}{percent}_percent_seconds"
        for percent in (f"{100 * share:g}" for share in shares)
    }
    found = values(frame, [metric for metric in metrics.values() if metric in frame.columns])
    return {percent: found.get(metric, ()) for percent, metric in metrics.items()}


def medians(table: pd.DataFrame, *, factor: str, metric: str) -> dict[str, float]:
    """The median of a metric at every level, over all finished runs that have it, of whatever kind."""
    if metric not in table.columns:
        return {}
    frame = table[table["status"] == "FINISHED"] if "status" in table.columns else table
    found = pd.Series(numbers(frame, metric), index=frame.index).replace([np.inf, -np.inf], np.nan)
    by_level = found.groupby(frame[pairing.column_of(table, factor)].astype(str)).median().dropna()
    return {str(level): float(value) for level, value in by_level.items()}


def environment(frame: pd.DataFrame, levels: Sequence[str]) -> dict[str, dict[str, str]]:
    """What the runs of each level ran on and with; where one thing had several values, all are told."""
    columns = [column for column in TOLD if column in frame.columns]
    columns += sorted(
        c
        for c in frame.columns
        if c.startswith("tags.") and not c.removeprefix("tags.").startswith(UNTOLD_TAGS)
    )
    told: dict[str, dict[str, str]] = {}
    for level in levels:
        inside = frame[frame["level"] == level]
        told[level] = {"runs": str(len(inside))}
        for column in columns:
            if texts := sorted(
                {str(value) for value in inside[column].dropna().unique()} - {""}, key=natural
            ):
                told[level][column.split(".", 1)[-1]] = ", ".join(texts)
    return told


def rests_on(frame: pd.DataFrame) -> dict[str, tuple[str, ...]]:
    """The machines, teams and campaigns that the runs came from; empty where the runs do not say."""
    return {f"{column}s": _distinct(frame, column) for column in ("machine", "team", "campaign")}


def _distinct(frame: pd.DataFrame, column: str) -> tuple[str, ...]:
    values = frame[column].dropna().unique() if column in frame.columns else ()
    return tuple(sorted({str(value) for value in values} - {""}, key=natural))


def missing_sensors(frame: pd.DataFrame) -> dict[str, str]:
    """Sensors that were not there, with the reasons that the runs gave."""
    prefix = "tags.not_available."
    columns = sorted(c for c in frame.columns if c.startswith(prefix) and frame[c].notna().any())
    return {
        column.removeprefix(prefix): " / ".join(sorted(set(frame[column].dropna())))
        for column in columns
    }


def not_available(frames: Iterable[pd.DataFrame], metric: str) -> str:
    """Why runs have no such metric, where they say so."""
    column = f"tags.not_available.{metric}"
    told = [
        text
        for frame in frames
        if column in frame.columns
        for text in frame[column].dropna().astype(str)
    ]
    return " / ".join(sorted(set(told) - {""}))


def _in_blocks(frame: pd.DataFrame, column: str) -> str:
    """In how many blocks runs differ by what should be one."""
    inside = frame.groupby(["stratum", "pair"])[column].nunique()
    mixed = int((inside > 1).sum())
    return (
        f"inside {mixed} of {len(inside)} blocks there are several"
        if mixed
        else "inside every block there is one"
    )


def warnings(frame: pd.DataFrame) -> tuple[str, ...]:
    """Warnings that stand before any figure."""
    told: list[str] = (
        list(frame["tags.warnings"].dropna()) if "tags.warnings" in frame.columns else []
    )
    if frame["apart"].any():
        told.append(APART)
    found = [line for text in dict.fromkeys(told) for line in text.split(BETWEEN_WARNINGS) if line]
    what_differs = {
        "tags.environment": "environments (machine, packages and inherited variables)",
        "tags.commit": "commits of this code",
    }
    for column, what in what_differs.items():
        if column in frame.columns and (count := frame[column].nunique()) > 1:
            found.append(f"The runs come from {count} {what}; {_in_blocks(frame, column)}.")
    return tuple(dict.fromkeys(found))
