"""Setting with several values in one campaign: `vary=threads=1,2` or `vary=env.NAME=a,b`.

`levels=torch==2.14,torch==2.15` varies the version of a package: every value has an environment.
"""

from __future__ import annotations

import dataclasses
import re
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from experiments.config.settings import (
    CampaignSettings,
    check,
    convert,
    names_not_affecting_measurement,
    refuse_parameter,
    searchable,
    to_text,
)
from tracking import plain
from tracking.errors import ErrorCode, UsageError, suggestion

S = TypeVar("S", bound=CampaignSettings)
ENVIRONMENT = "env."
# Factor of `levels`, and the param that cells log.
VERSION = "version"
# Value of an environment variable that is removed.
UNSET = "none"
# Variables with which the parent leads a cell to code and server.
RESERVED = re.compile(r"PYTHONPATH|(MLFLOW|EVENHAND)_(?!TOY_).*")
# Longest value that a folder of cells is named after.
MAX_CHARACTERS = 60
EXAMPLE = "write threads=1,2, inference_batch_sizes=1,8|1,32 or env.NAME=a,b"
# Values that every machine resolves for itself.
AUTOMATIC = {("device", "auto"), ("threads", "0")}


@dataclass(frozen=True)
class Level:
    """Value of a variation, with the settings and environment variables of its cells.

    text: as runs log it.
    """

    label: str
    text: str
    settings: Mapping[str, Any]
    environment: Mapping[str, str | None]

    def applied(self, settings: S) -> S:
        return dataclasses.replace(settings, **self.settings)


@dataclass(frozen=True)
class Variation:
    """Setting or environment variable, with its values. name: as runs log it."""

    name: str
    levels: tuple[Level, ...]

    @property
    def setting(self) -> str:
        """Setting of the call that names it."""
        return "levels" if self.name == VERSION else f"vary={self.name}"

    def __str__(self) -> str:
        return f"{self.name}={_joined([level.text for level in self.levels])}"


def parse(settings: CampaignSettings) -> Variation | None:
    """Return the variation of a campaign, or None.

    Raises:
        UsageError: for a name that is not a setting of a cell, and for values that it cannot have.
    """
    if settings.levels:
        return _versions(settings)
    if not settings.vary:
        return None
    name, _, values = map(str.strip, settings.vary.partition("="))
    texts = [text.strip() for text in values.split("|" if "|" in values else ",")]
    is_variable = name.startswith(ENVIRONMENT)
    if not (name and all(texts) and len(set(texts)) == len(texts) > 1):
        raise UsageError(
            ErrorCode.INVALID_VALUE,
            f"vary={plain.short(settings.vary)} does not name one setting and two or more "
            f"different values; {EXAMPLE}",
        )
    levels = _environment_levels(name, texts) if is_variable else _levels(name, texts, settings)
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
        options: The settings of the call, as text.

    Raises:
        UsageError: if the call sets the same setting to another value.
    """
    variation = parse(settings)
    if not variation:
        return settings
    if settings.levels and settings.pythons:
        raise UsageError(
            ErrorCode.CONFLICT,
            f"pythons={plain.short(','.join(settings.pythons))} and levels exclude each other: "
            "every level gets environments of its own; leave one of them out",
        )
    name, first = variation.name, variation.levels[0]
    if name in options and getattr(settings, name) != first.settings[name]:
        raise UsageError(
            ErrorCode.CONFLICT,
            f"{name}={plain.short(options[name])} and vary={variation} exclude each other; "
            f"leave one of them out",
        )
    return first.applied(settings)


def check_pins(text: str) -> dict[str, str]:
    """Return the packages and versions of a level, such as `torch==2.14 torchvision==0.28`.

    Raises:
        UsageError: for anything but packages with exact versions.
    """
    form = r"([A-Za-z0-9][\w.-]*)(?:\[[\w.-]+\])?==([\w.+!]+)"
    pins = [re.fullmatch(form, part) for part in text.split()]
    if not all(pins) or not pins:
        raise UsageError(
            ErrorCode.INVALID_VALUE,
            f"levels: {plain.short(text)} is not a package with its version; write torch==2.14",
        )
    return {canonical(pin[1]): pin[2] for pin in pins if pin}


def canonical(name: str) -> str:
    """Return the name of a package as indexes compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def _versions(settings: CampaignSettings) -> Variation:
    if settings.vary:
        raise UsageError(
            ErrorCode.CONFLICT,
            f"vary={plain.short(settings.vary)} and levels exclude each other: a campaign has one "
            "factor; leave one of them out",
        )
    texts = [" ".join(pins.split()) for pins in settings.levels]
    if len({tuple(sorted(check_pins(text).items())) for text in texts}) < max(2, len(texts)):
        raise UsageError(
            ErrorCode.TOO_FEW,
            f"levels={plain.short(','.join(texts))} does not name two or more different versions; "
            "write torch==2.14,torch==2.15",
        )
    is_short = all(len(text) <= MAX_CHARACTERS for text in texts)
    labels = texts if is_short else _labels(VERSION, texts)
    rows = zip(labels, texts, strict=True)
    return Variation(VERSION, tuple(Level(label, text, {}, {}) for label, text in rows))


def _joined(texts: list[str]) -> str:
    return ("|" if any("," in text for text in texts) else ",").join(texts)


def _levels(name: str, texts: list[str], settings: CampaignSettings) -> list[Level]:
    refuse_parameter(type(settings), name, "vary: ")
    of_cells = sorted(searchable(settings) - names_not_affecting_measurement(settings))
    if name not in of_cells:
        several = getattr(settings, f"{name}s", None)
        right = suggestion(name, of_cells)
        if isinstance(several, tuple):
            right = f"; name several in {name}s=a,b"
        raise UsageError(
            ErrorCode.UNKNOWN_NAME,
            f"vary: '{plain.short(name)}' is not a setting of a single cell{right}",
        )
    hint = typing.get_type_hints(type(settings))[name]
    values: list[Any] = []
    for text in texts:
        if (name, text) in AUTOMATIC:
            raise UsageError(
                ErrorCode.INVALID_VALUE,
                f"vary={name}: {text} differs between machines; name the values",
            )
        values.append(convert(name, text, hint))
        check(dataclasses.replace(settings, **{name: values[-1]}))
    logged = [to_text(value) for value in values]
    rows = zip(_labels(name, logged), logged, values, strict=True)
    return [Level(label, text, {name: value}, {}) for label, text, value in rows]


def _environment_levels(name: str, texts: list[str]) -> list[Level]:
    variable = name.removeprefix(ENVIRONMENT)
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", variable) or RESERVED.fullmatch(variable):
        raise UsageError(
            ErrorCode.INVALID_VALUE,
            f"vary: '{plain.short(variable)}' is no environment variable that can be varied; "
            f"{EXAMPLE}",
        )
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
