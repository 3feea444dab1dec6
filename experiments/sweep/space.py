"""What is searched: settings of an experiment and the values they may take. Pure."""

from __future__ import annotations

import dataclasses
import itertools
import math
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from experiments.config import settings as settings_
from experiments.config.settings import CampaignSettings
from experiments.planning.length import Length
from tracking import plain
from tracking.errors import WrongCall

MAX_GRID = 1_000
MAX_RANGE = 10**9
EXAMPLE = "write batch_size=8..256:log, dropout=0..0.5:0.1 or framework=pytorch|tensorflow"
Value = int | float | str | bool


@dataclass(frozen=True)
class Dimension:
    """A setting that is searched: `choices`, or a range from low to high, both included.

    name: as it was asked for; field: the setting that it fills, as a tuple of one where it takes several (framework: frameworks).
    length: of a batch size, how long it trains.
    """

    name: str
    field: str
    several: bool
    choices: tuple[Value, ...] = ()
    low: float = 0
    high: float = 0
    step: float | None = None
    log: bool = False
    whole: bool = False
    length: Length | None = None

    @property
    def extremes(self) -> tuple[Value, ...]:
        """Every choice of a categorical setting, or both ends of a range."""
        return self.choices or (self._as_value(self.low), self._as_value(self.high))

    def settled(self, value: Value) -> dict[str, Any]:
        """The value as a setting, and those that follow from it."""
        own = {self.field: (value,) if self.several else value}
        return {**self.length.settings(int(value)), **own} if self.length else own

    def sizes(self) -> list[int]:
        """Every whole number of the choices or the range, ascending."""
        return sorted(
            map(int, self.choices or range(int(self.low), int(self.high) + 1, int(self.step or 1)))
        )

    def grid(self) -> tuple[Value, ...]:
        """Every value; of a logarithmic range of whole numbers its doublings. Raises WrongCall for a continuous range."""
        if self.choices:
            return self.choices
        if self.log and self.whole:
            doubled = [
                self.low * 2**power for power in range(int(math.log2(self.high / self.low)) + 1)
            ]
            return tuple(
                int(value)
                for value in (doubled if doubled[-1] == self.high else [*doubled, self.high])
            )
        if self.step is None and not self.whole:
            raise WrongCall(
                f"search: {self.name} has no end of values between {self.low:g} and {self.high:g}; give it steps (:0.1)"
            )
        count = round((self.high - self.low) / (self.step or 1) + 1e-9) + 1
        if count > MAX_GRID:
            raise WrongCall(
                f"search: {self.name} has {count} values, too many to try all; give it steps or :log"
            )
        return tuple(self._as_value(self.low + at * (self.step or 1)) for at in range(count))

    def _as_value(self, number: float) -> Value:
        return int(number) if self.whole else float(number)


def parse(text: str, kind: type[CampaignSettings]) -> tuple[Dimension, ...]:
    """`name=low..high[:log][:step]` and `name=a|b`, with commas between, as settings of an experiment. Raises WrongCall."""
    found: dict[str, Dimension] = {}
    for part in filter(None, (one.strip() for one in text.split(","))):
        name, equals, values = part.partition("=")
        name = name.strip()
        if not equals or not values.strip():
            raise WrongCall(f"search: '{part}' is not a setting and its values; {EXAMPLE}")
        if name in found:
            raise WrongCall(f"search: {name} is named twice")
        found[name] = _dimension(name, values.strip(), kind)
    if not found:
        raise WrongCall(f"search is empty: it says which settings are tried; {EXAMPLE}")
    return tuple(found.values())


def _dimension(name: str, values: str, kind: type[CampaignSettings]) -> Dimension:
    hints = typing.get_type_hints(kind)
    field = f"{name}s" if _several(hints.get(f"{name}s")) else name
    have = {
        one.removesuffix("s") if _several(hints[one]) else one: one
        for one in sorted(settings_.searchable(kind))
    }
    if field in hints and field not in settings_.searchable(kind):
        raise WrongCall(
            f"search: {name} is no setting of a single cell, which a trial is; have {', '.join(have)}"
        )
    if field not in hints:
        raise WrongCall(f"search: there is no setting '{name}'{settings_.suggestion(name, have)}")
    several = _several(hints[field])
    inner = typing.get_args(hints[field])[0] if several else hints[field]
    dimension = Dimension(name, field, several)
    if ".." in values:
        return _range(dimension, values, inner)
    choices = tuple(settings_.convert(name, one.strip(), inner) for one in values.split("|"))
    if len(choices) < 2:
        raise WrongCall(
            f"search: {name}={values} is a single value; give it as a setting ({field}={values}), or several with |"
        )
    if len(set(choices)) < len(choices):
        raise WrongCall(f"search: {name}={values} names one twice")
    return dataclasses.replace(dimension, choices=choices)


def _range(dimension: Dimension, values: str, kind: Any) -> Dimension:
    name = dimension.name
    if kind not in (int, float):
        raise WrongCall(
            f"search: {name}={values}: {name} is not a number; write its values with | between them"
        )
    ends, *ways = values.split(":")
    low, _, high = ends.partition("..")
    first, last = (settings_.convert(name, end, kind) for end in (low, high))
    if kind is float and not (math.isfinite(first) and math.isfinite(last)):
        raise WrongCall(f"search: {name}={values} has no finite ends")
    if first >= last:
        raise WrongCall(f"search: {name}={values} is empty: {low} is not below {high}")
    log = "log" in ways
    steps = [way for way in ways if way != "log"]
    if log and (first <= 0 or steps):
        why = "takes no steps" if steps else f"must begin above 0, not at {low}"
        raise WrongCall(f"search: {name}={values}: a logarithmic range {why}")
    if len(steps) > 1:
        raise WrongCall(f"search: {name}={values}: {':'.join(steps)} is more than one step")
    step = settings_.convert(name, steps[0], kind) if steps else None
    if step is not None and not step <= last - first <= step * MAX_RANGE:
        raise WrongCall(
            f"search: {name}={plain.short(values)}: a step of {plain.short(steps[0])} leads nowhere"
        )
    return dataclasses.replace(
        dimension, low=first, high=last, step=step, log=log, whole=kind is int
    )


def settled(
    settings: CampaignSettings, dimensions: Sequence[Dimension], values: Mapping[str, Value]
) -> CampaignSettings:
    """The settings with one value of every dimension."""
    own = {
        name: text
        for one in dimensions
        if one.name in values
        for name, text in one.settled(values[one.name]).items()
    }
    return dataclasses.replace(settings, **own)


def fields(dimensions: Sequence[Dimension], values: Mapping[str, Value]) -> list[str]:
    """The settings that a point of the search fills: those searched, and those that follow from them."""
    own = {
        name: None
        for one in dimensions
        if one.name in values
        for name in one.settled(values[one.name])
    }
    return list({**{one.field: None for one in dimensions}, **own})


def length(dimensions: Sequence[Dimension]) -> Length | None:
    """How long trials train where that depends on what is searched; else None."""
    return next((one.length for one in dimensions if one.length), None)


def widest(settings: CampaignSettings, dimensions: Sequence[Dimension]) -> CampaignSettings:
    """The settings with every choice of what takes several: all the frameworks, all the models."""
    several: dict[str, Any] = {
        one.field: one.choices for one in dimensions if one.several and one.choices
    }
    return dataclasses.replace(settings, **several)


def defaults(settings: CampaignSettings, dimensions: Sequence[Dimension]) -> CampaignSettings:
    """The settings as they were, with one value of what takes several: its first."""
    own = {one.field: getattr(settings, one.field)[:1] for one in dimensions if one.several}
    return dataclasses.replace(settings, **own)


def check(settings: CampaignSettings, dimensions: Sequence[Dimension]) -> None:
    """Raises WrongCall for the first value that the experiment does not accept."""
    for one in dimensions:
        for value in one.extremes:
            settings_.check(settled(settings, (one,), {one.name: value}))


def points(dimensions: Sequence[Dimension]) -> list[dict[str, Value]]:
    """Every combination of their values; a single empty one of no dimensions."""
    return [
        dict(zip((one.name for one in dimensions), values, strict=True))
        for values in itertools.product(*(one.grid() for one in dimensions))
    ]


def _several(kind: Any) -> bool:
    return typing.get_origin(kind) is tuple
