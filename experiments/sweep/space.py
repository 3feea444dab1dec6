"""Search space: settings of an experiment and the values they may take. Pure."""

from __future__ import annotations

import dataclasses
import math
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)

from experiments.config.settings import CampaignSettings, convert, searchable
from experiments.planning.length import Length
from tracking import plain
from tracking.errors import ErrorCode, UsageError, suggestion

MAX_GRID = 1_000
MAX_RANGE = 10**9
EXAMPLE = "write batch_size=8..256:log, dropout=0..0.5:0.1 or framework=pytorch|tensorflow"
Value = int | float | str | bool


@dataclass(frozen=True)
class Dimension:
    """A setting that is searched.

    name: as the user wrote it.
    field: the setting that it fills; if `several`, as a tuple of one (framework: frameworks).
    distribution: Optuna's; its bounds are those of the kinds that `parse` makes.
    length: of a batch size, the length of its training.
    """

    name: str
    field: str
    several: bool
    distribution: Any
    length: Length | None = None

    @property
    def choices(self) -> tuple[Value, ...]:
        """Choices of a categorical setting; an empty tuple for a range."""
        return getattr(self.distribution, "choices", ())

    @property
    def extremes(self) -> tuple[Value, ...]:
        """Choices of a categorical setting, or both ends of a range."""
        return self.choices or (self.distribution.low, self.distribution.high)

    def settled(self, value: Value) -> dict[str, Any]:
        settings = self.length.settings(int(value)) if self.length else {}
        return {**settings, self.field: (value,) if self.several else value}

    def sizes(self) -> list[int]:
        kind = self.distribution
        return sorted(map(int, self.choices or range(kind.low, kind.high + 1, kind.step)))

    def grid(self) -> tuple[Value, ...]:
        """Return every value; of a logarithmic range of whole numbers its doublings.

        Raises:
            UsageError: The range is continuous, or has too many values.
        """
        if self.choices:
            return self.choices
        kind = self.distribution
        if isinstance(kind, IntDistribution) and kind.log:
            doublings = range(int(math.log2(kind.high / kind.low)) + 1)
            sizes = [kind.low * 2**power for power in doublings]
            return tuple(dict.fromkeys([*sizes, kind.high]))
        count = round((kind.high - kind.low) / kind.step + 1e-9) + 1 if kind.step else math.inf
        if count > MAX_GRID:
            raise UsageError(
                ErrorCode.TOO_LARGE,
                f"search: {self.name} has more than {MAX_GRID:,} values; give it steps (:0.1)",
            )
        return tuple(kind.low + number * kind.step for number in range(int(count)))


def parse(text: str, kind: type[CampaignSettings]) -> tuple[Dimension, ...]:
    """Parse `name=low..high[:log][:step]` and `name=a|b`, with commas. Raises UsageError."""
    dimensions: dict[str, Dimension] = {}
    for part in filter(None, map(str.strip, text.split(","))):
        name, _, values = map(str.strip, part.partition("="))
        if name in dimensions:
            raise UsageError(ErrorCode.DUPLICATE, f"search: {name} is named twice")
        dimensions[name] = _dimension(name, values, kind)
    if not dimensions:
        raise UsageError(
            ErrorCode.MISSING_VALUE,
            f"search is empty: it names the settings to try; {EXAMPLE}",
        )
    return tuple(dimensions.values())


def _dimension(name: str, values: str, kind: type[CampaignSettings]) -> Dimension:
    hints = typing.get_type_hints(kind)
    fields = {
        field.removesuffix("s") if _is_tuple(hints[field]) else field: field
        for field in sorted(searchable(kind))
    }
    if name not in fields:
        right = suggestion(name, fields)
        raise UsageError(
            ErrorCode.UNKNOWN_NAME,
            f"search: '{name}' is no setting of a trial, which is one cell{right}",
        )
    hint = hints[fields[name]]
    several = _is_tuple(hint)
    value_type = typing.get_args(hint)[0] if several else hint
    try:
        parse_values = _range if ".." in values else _choices
        distribution = parse_values(name, values, value_type)
    except (ValueError, OverflowError) as error:  # Optuna's own checks too
        raise UsageError(
            ErrorCode.INVALID_VALUE,
            f"search: {name}={plain.short(values)}: {error}; {EXAMPLE}",
        ) from None
    return Dimension(name, fields[name], several, distribution)


def _choices(name: str, values: str, value_type: Any) -> CategoricalDistribution:
    texts = [text.strip() for text in values.split("|")]
    choices = tuple(convert(name, text, value_type) for text in texts if text)
    if len(set(choices)) < max(2, len(choices)):
        raise ValueError("not two or more different values")
    return CategoricalDistribution(choices)


def _range(name: str, values: str, value_type: Any) -> BaseDistribution:
    if value_type not in (int, float):
        raise ValueError("not a number; write its values with | between them")
    ends, *options = values.split(":")
    low, high = (convert(name, end, value_type) for end in ends.split("..", 1))
    steps = [convert(name, text, value_type) for text in options if text != "log"]
    if not (math.isfinite(low) and math.isfinite(high) and low < high):
        raise ValueError("a range has finite ends, the lower first")
    if len(steps) > 1 or (steps and not steps[0] <= high - low <= steps[0] * MAX_RANGE):
        raise ValueError("give one step, which fits into the range")
    if value_type is int:
        return IntDistribution(low, high, log="log" in options, step=steps[0] if steps else 1)
    return FloatDistribution(low, high, log="log" in options, step=steps[0] if steps else None)


def settled(
    settings: CampaignSettings, dimensions: Sequence[Dimension], values: Mapping[str, Value]
) -> CampaignSettings:
    return dataclasses.replace(settings, **point_settings(dimensions, values))


def point_settings(dimensions: Sequence[Dimension], values: Mapping[str, Value]) -> dict[str, Any]:
    """Return the settings that a point fills: the searched ones, and those that follow."""
    return {
        name: value
        for dimension in dimensions
        if dimension.name in values
        for name, value in dimension.settled(values[dimension.name]).items()
    }


def widest(settings: CampaignSettings, dimensions: Sequence[Dimension]) -> CampaignSettings:
    """Return the settings with every choice of a list: all the frameworks, all the models."""
    lists: dict[str, Any] = {
        dimension.field: dimension.choices
        for dimension in dimensions
        if dimension.several and dimension.choices
    }
    return dataclasses.replace(settings, **lists)


def _is_tuple(hint: Any) -> bool:
    return typing.get_origin(hint) is tuple
