"""What a search is after: metrics to raise or lower, and bounds that must hold. Pure."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from experiments.config import memory
from experiments.config.settings import suggestion
from experiments.metrics import SHORT, Outcome, outcome
from tracking.errors import WrongCall

_CONSTRAINT = re.compile(r"\s*([^<>=]+?)\s*(<=|>=|<|>)\s*([^<>=]+?)\s*")
_SECONDS = {"ms": 1e-3, "us": 1e-6, "s": 1.0}


@dataclass(frozen=True)
class Objective:
    """A metric as the experiment judges it, and whether it is to rise (`max`) or to fall (`min`)."""

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
    """A bound on a metric. text: as it was asked for."""

    metric: str
    sign: Literal[1, -1]
    bound: float
    text: str

    def violation(self, value: float) -> float:
        """Above 0 where the value breaks the bound, as a share of it."""
        return self.sign * (value - self.bound) / (abs(self.bound) or 1.0)


def objectives(text: str, known: Iterable[Outcome]) -> tuple[Objective, ...]:
    """`throughput:max,val/loss`, with commas between. known: what the experiment judges. Raises WrongCall."""
    judged = {one.metric: one for one in known}
    found: dict[str, Objective] = {}
    for part in filter(None, (one.strip() for one in text.split(","))):
        name, _, way = part.partition(":")
        metric = _metric("objectives", name, tuple(judged))
        if metric in found:
            raise WrongCall(f"objectives: {name} is named twice")
        found[metric] = Objective(
            judged.get(metric) or outcome(metric), _direction(name, metric, way)
        )
    if not found:
        raise WrongCall(
            f"objectives is empty: it says what is searched for; write throughput:max (have {', '.join(SHORT)})"
        )
    return tuple(found.values())


def _direction(name: str, metric: str, way: str) -> Literal["max", "min"]:
    better = outcome(metric).better
    if way == "max" or (not way and better == "higher"):
        return "max"
    if way == "min" or (not way and better == "lower"):
        return "min"
    if way:
        raise WrongCall(f"objectives: {name}:{way} is neither {name}:max nor {name}:min")
    raise WrongCall(
        f"objectives: whether {name} should rise or fall is not known; write {name}:max or {name}:min"
    )


def constraints(text: str, known: Iterable[Outcome]) -> tuple[Constraint, ...]:
    """`memory<4GB,val/loss<2.5`, with commas between. Raises WrongCall."""
    names = tuple(one.metric for one in known)
    found = []
    for part in filter(None, (one.strip() for one in text.split(","))):
        matched = _CONSTRAINT.fullmatch(part)
        if not matched:
            raise WrongCall(
                f"constraints: '{part}' is no bound; write memory<4GB or val/accuracy>0.9"
            )
        metric = _metric("constraints", matched[1], names)
        sign: Literal[1, -1] = 1 if matched[2].startswith("<") else -1
        found.append(Constraint(metric, sign, _bound(part, metric, matched[3]), part))
    return tuple(found)


def _bound(part: str, metric: str, text: str) -> float:
    unit = outcome(metric).unit
    try:
        if unit == "bytes":
            return float(memory.size(text))
        suffix = next((one for one in _SECONDS if unit == "s" and text.endswith(one)), "")
        value = float(text.removesuffix(suffix)) * _SECONDS.get(suffix, 1.0)
    except (ValueError, WrongCall):
        raise WrongCall(
            f"constraints: '{part}': {text} is not {'a size (4GB)' if unit == 'bytes' else 'a number'}"
        ) from None
    if not math.isfinite(value):
        raise WrongCall(f"constraints: '{part}': {text} is no bound")
    return value


def _metric(setting: str, name: str, known: tuple[str, ...]) -> str:
    """The metric behind a name. One with a `/` may be anything that a cell logs: the first trial shows whether it is."""
    metric = SHORT.get(name, name)
    if name in SHORT or "/" in name:
        return metric
    short = [one for one, whole in SHORT.items() if whole in known]
    raise WrongCall(f"{setting}: no run has a metric '{name}'{suggestion(name, [*short, *known])}")


def require(metrics: Mapping[str, float], wanted: Iterable[str]) -> None:
    """Raises WrongCall for the first metric that a finished trial does not have."""
    for metric in wanted:
        if metric in metrics:
            continue
        have = sorted(
            name
            for name in metrics
            if not name.startswith(("live/", "system/", "check/", "model/"))
        )
        raise WrongCall(
            f"objectives, constraints: the first trial has no {metric}{suggestion(metric, have)}"
        )
