"""Goals of a search: metrics to raise or lower, and bounds. Pure."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from experiments.config import memory
from experiments.metrics import SHORT, Outcome, outcome
from tracking.errors import ErrorCode, UsageError, suggestion

_CONSTRAINT = re.compile(r"\s*([^<>=]+?)\s*(<=|>=|<|>)\s*([^<>=]+?)\s*")
_SECONDS = {"ms": 1e-3, "us": 1e-6, "s": 1.0}
# Metrics that no search is about.
_INTERNAL = ("live/", "system/", "check/", "model/")


@dataclass(frozen=True)
class Objective:
    """A metric as the experiment judges it, to raise (`max`) or to lower (`min`)."""

    outcome: Outcome
    direction: Literal["max", "min"]

    @property
    def metric(self) -> str:
        return self.outcome.metric

    @property
    def worst(self) -> float:
        return -math.inf if self.direction == "max" else math.inf


@dataclass(frozen=True)
class Constraint:
    """A bound on a metric; `text` is what the user wrote."""

    metric: str
    sign: Literal[1, -1]
    bound: float
    text: str

    def violation(self, value: float) -> float:
        """Return how far a value breaks the bound.

        Args:
            value: Value of the metric, in its unit.

        Returns:
            A share of the bound, above 0 if the value breaks it; the difference for a bound of 0.
        """
        return self.sign * (value - self.bound) / (abs(self.bound) or 1.0)


def objectives(text: str, outcomes: Iterable[Outcome]) -> tuple[Objective, ...]:
    """Parse `throughput:max,val/loss`. Raises UsageError. outcomes: of the experiment."""
    judged = {entry.metric: entry for entry in outcomes}
    parsed: dict[str, Objective] = {}
    for part in filter(None, map(str.strip, text.split(","))):
        name, _, way = part.partition(":")
        metric = _metric("objectives", name, judged)
        if metric in parsed:
            raise UsageError(ErrorCode.DUPLICATE, f"objectives: {name} is named twice")
        entry = judged.get(metric) or outcome(metric)
        way = way or {"higher": "max", "lower": "min"}.get(entry.better or "", "")
        if way not in ("max", "min"):
            raise UsageError(
                ErrorCode.INVALID_VALUE,
                f"objectives={part}: no direction; write {name}:max or {name}:min",
            )
        parsed[metric] = Objective(entry, "max" if way == "max" else "min")
    if not parsed:
        have = ", ".join(SHORT)
        raise UsageError(
            ErrorCode.MISSING_VALUE,
            f"objectives is empty: a search needs a metric; write throughput:max (have {have})",
        )
    return tuple(parsed.values())


def constraints(text: str, outcomes: Iterable[Outcome]) -> tuple[Constraint, ...]:
    judged = {entry.metric: entry for entry in outcomes}
    parsed = []
    for part in filter(None, map(str.strip, text.split(","))):
        matched = _CONSTRAINT.fullmatch(part)
        if not matched:
            raise UsageError(
                ErrorCode.INVALID_VALUE,
                f"constraints: '{part}' is no bound; write memory<4GB or val/accuracy>0.9",
            )
        metric = _metric("constraints", matched[1], judged)
        sign: Literal[1, -1] = 1 if matched[2].startswith("<") else -1
        parsed.append(Constraint(metric, sign, _bound(part, metric, matched[3]), part))
    return tuple(parsed)


def _bound(part: str, metric: str, text: str) -> float:
    unit = outcome(metric).unit
    try:
        if unit == "bytes":
            return float(memory.size(text))
        suffix = next((name for name in _SECONDS if unit == "s" and text.endswith(name)), "")
        value = float(text.removesuffix(suffix)) * _SECONDS.get(suffix, 1.0)
    except (ValueError, UsageError):
        value = math.nan
    if not math.isfinite(value):
        right = "a size (4GB)" if unit == "bytes" else "a number"
        raise UsageError(ErrorCode.INVALID_VALUE, f"constraints: '{part}': {text} is not {right}")
    return value


def _metric(setting: str, name: str, judged: Mapping[str, Outcome]) -> str:
    """Return the metric of a name; one with a `/` may be any that a cell logs."""
    if name in SHORT or "/" in name:
        return SHORT.get(name, name)
    names = [short for short, metric in SHORT.items() if metric in judged]
    right = suggestion(name, [*names, *judged])
    raise UsageError(ErrorCode.UNKNOWN_NAME, f"{setting}: no run has a metric '{name}'{right}")


def require(metrics: Mapping[str, float], requested: Iterable[str]) -> None:
    for metric in requested:
        if metric not in metrics:
            have = sorted(name for name in metrics if not name.startswith(_INTERNAL))
            raise UsageError(
                ErrorCode.UNKNOWN_NAME,
                f"objectives, constraints: the first trial has no {metric}"
                f"{suggestion(metric, have)}",
            )
