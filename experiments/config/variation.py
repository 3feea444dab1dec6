"""Setting with several values in one campaign: `vary=threads=1,2` or `vary=env.NAME=a,b`."""

from __future__ import annotations

import dataclasses
import re
import typing
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from experiments.config import settings as settings_
from experiments.config.settings import CampaignSettings
from tracking import plain
from tracking.errors import UsageError

S = TypeVar("S", bound=CampaignSettings)
ENVIRONMENT = "env."
# Value of an environment variable that is removed.
UNSET = "none"
# Variables with which the parent leads a cell to code and server.
RESERVED = re.compile(r"PYTHONPATH|(MLFLOW|EVENHAND)_(?!TOY_).*")
# Longest value that a folder of cells is named after.
MAX_CHARACTERS = 60
EXAMPLE = "write threads=1,2, inference_batch_sizes=1,8|1,32 or env.NAME=a,b"
# Values that every machine resolves for itself, and values to write instead.
AUTOMATIC = {"device": ("auto", "cpu,cuda"), "threads": ("0", "1,2")}


@dataclass(frozen=True)
class Level:
    """One value, with the settings and environment variables of its cells.

    text: as runs log it.
    """

    label: str
    text: str
    settings: Mapping[str, Any]
    environment: Mapping[str, str | None]

    def applied(self, settings: S) -> S:
        """Return the settings with this value."""
        return dataclasses.replace(settings, **self.settings)


@dataclass(frozen=True)
class Variation:
    """Setting or environment variable, with its values. name: as runs log it."""

    name: str
    levels: tuple[Level, ...]

    def __str__(self) -> str:
        return f"{self.name}={_joined([level.text for level in self.levels])}"


def parse(settings: CampaignSettings) -> Variation | None:
    """Return the variation of a campaign, or None.

    Raises:
        UsageError: for a name that is not a setting of a cell, and for values that it cannot have.
    """
    if not settings.vary:
        return None
    name, equals, values = (part.strip() for part in settings.vary.partition("="))
    texts = [text.strip() for text in values.split("|" if "|" in values else ",")]
    if not (name and equals and all(texts)):
        text = plain.short(settings.vary)
        raise UsageError(f"vary={text} is not a setting with its values; {EXAMPLE}")
    is_variable = name.startswith(ENVIRONMENT)
    _refuse_second_setting(name, texts, settings)
    levels = _environment_levels(name, texts) if is_variable else _levels(name, texts, settings)
    if len(levels) < 2:
        raise UsageError(f"vary={name}={plain.short(texts[0])} is a single value; {EXAMPLE}")
    logged = [level.text for level in levels]
    for text in logged:
        if logged.count(text) > 1:
            raise UsageError(f"vary={name}: {plain.short(text)} is named twice")
    return Variation(name, tuple(levels))


def each(settings: S) -> list[S]:
    """Return the settings with every value that a campaign varies, or as they are."""
    variation = parse(settings)
    if not variation:
        return [settings]
    return [level.applied(settings) for level in variation.levels]


def based(settings: S, options: Mapping[str, str]) -> S:
    """Return the settings with the first value of the variation, the baseline.

    Args:
        settings: The settings of the campaign.
        given: The settings of the call, as text.

    Raises:
        UsageError: if the call sets the same setting to another value.
    """
    variation = parse(settings)
    if not variation:
        return settings
    name, first = variation.name, variation.levels[0]
    if name in options and getattr(settings, name) != first.settings[name]:
        raise UsageError(
            f"{name}={plain.short(options[name])} and vary={variation} exclude each other; "
            f"leave one of them out"
        )
    return first.applied(settings)


def arguments(name: str, values: Iterable[str]) -> str:
    """Return the option that measures these values of a setting in one campaign."""
    return f"vary={name}={_joined(list(values))}"


def _joined(texts: list[str]) -> str:
    return ("|" if any("," in text for text in texts) else ",").join(texts)


def _refuse_second_setting(name: str, texts: list[str], settings: CampaignSettings) -> None:
    names = {field.name for field in dataclasses.fields(settings)}
    for text in texts[1:]:
        other, equals, _ = text.partition("=")
        if equals and (other.strip() in names or other.strip().startswith(ENVIRONMENT)):
            raise UsageError(
                f"vary takes one setting, not {name} and {other.strip()}; "
                f"start a campaign for each of them"
            )


def _levels(name: str, texts: list[str], settings: CampaignSettings) -> list[Level]:
    _check_name(name, settings)
    hint = typing.get_type_hints(type(settings))[name]
    automatic, example = AUTOMATIC.get(name, ("", ""))
    values: list[Any] = []
    for text in texts:
        if text == automatic:
            raise UsageError(
                f"vary={name}: {text} differs between machines; name the values, "
                f"as in {name}={example}"
            )
        values.append(settings_.convert(name, text, hint))
        settings_.check(dataclasses.replace(settings, **{name: values[-1]}))
    logged = [settings_.to_text(value) for value in values]
    rows = zip(_labels(name, logged), logged, values, strict=True)
    return [Level(label, text, {name: value}, {}) for label, text, value in rows]


def _check_name(name: str, settings: CampaignSettings) -> None:
    """Raise UsageError for a setting that does not belong to a cell."""
    settings_.refuse_parameter(type(settings), name, "vary: ")
    fields = {field.name for field in dataclasses.fields(settings)}
    of_cells = sorted(settings_.searchable(settings) - settings_.immaterial(settings))
    if name not in fields:
        several = f"{name}s"
        right = settings_.suggestion(name, of_cells)
        if several in fields:
            right = f"; name several in {several}=a,b"
        raise UsageError(f"vary: there is no setting '{plain.short(name)}'{right}")
    if name not in of_cells:
        raise UsageError(
            f"vary: {name} is a setting of the campaign or a list, which a cell does not have; "
            f"take threads, precision or another setting of a cell"
        )


def _environment_levels(name: str, texts: list[str]) -> list[Level]:
    variable = name.removeprefix(ENVIRONMENT)
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", variable):
        raise UsageError(
            f"vary: '{plain.short(variable)}' is not a name of an environment variable; {EXAMPLE}"
        )
    if RESERVED.fullmatch(variable):
        raise UsageError(f"vary: {variable} leads a cell to its campaign, and cannot be varied")
    return [
        Level(label, text, {}, {variable: None if text == UNSET else text})
        for label, text in zip(_labels(name, texts), texts, strict=True)
    ]


def _labels(name: str, texts: list[str]) -> list[str]:
    """Return labels with the values, or with numbers if folders need distinct short names."""
    keys = {re.sub(r"[^A-Za-z0-9+.-]+", "-", text) for text in texts}
    is_short = all(
        len(text) <= MAX_CHARACTERS and re.fullmatch(r"[\w+.-]+", text, flags=re.ASCII)
        for text in texts
    )
    if is_short and len(keys) == len(texts):
        return [f"{name}={text}" for text in texts]
    return [f"{name} {number}" for number in range(1, len(texts) + 1)]
