"""A setting of which a campaign measures several values in the same blocks: `vary=threads=1,2`, or `vary=env.NAME=a,b`."""

from __future__ import annotations

import dataclasses
import re
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from experiments.config import settings as settings_
from experiments.config.settings import CampaignSettings
from tracking import plain
from tracking.errors import WrongCall

S = TypeVar("S", bound=CampaignSettings)
ENVIRONMENT = "env."
# The value of an environment variable that is not there.
UNSET = "none"
# Variables by which the parent tells a cell where code and server are.
OURS = re.compile(r"PYTHONPATH|(MLFLOW|EVENHAND)_(?!TOY_).*")
# The longest value that a folder of cells is named after.
MAX_CHARACTERS = 60
EXAMPLE = "write threads=1,2, inference_batch_sizes=1,8|1,32 or env.NAME=a,b"
# What the machine decides, so that its value differs from one machine to another.
DECIDED = {"device": ("auto", "cpu,cuda"), "threads": ("0", "1,2")}


@dataclass(frozen=True)
class Level:
    """One value. text: as runs log it. settings, environment: what the cells of its treatments have of their own."""

    label: str
    text: str
    settings: Mapping[str, Any]
    environment: Mapping[str, str | None]

    def applied(self, settings: S) -> S:
        """Return the settings with this value."""
        return dataclasses.replace(settings, **self.settings)


@dataclass(frozen=True)
class Variation:
    """A setting, or an environment variable, with its values. name: as runs log it."""

    name: str
    levels: tuple[Level, ...]

    def __str__(self) -> str:
        return f"{self.name}={_listed([level.text for level in self.levels])}"


def parse(settings: CampaignSettings) -> Variation | None:
    """Return what a campaign varies; None if nothing. Raises WrongCall for what is no setting of a cell."""
    if not settings.vary:
        return None
    name, equals, listed = (part.strip() for part in settings.vary.partition("="))
    texts = [text.strip() for text in listed.split("|" if "|" in listed else ",")]
    if not (name and equals and listed):
        raise WrongCall(
            f"vary={plain.short(settings.vary)} is no setting with its values; {EXAMPLE}"
        )
    if not all(texts):
        raise WrongCall(f"vary={plain.short(settings.vary)} has an empty value; {EXAMPLE}")
    _check_single(name, texts, settings)
    values = (
        _variables(name, texts) if name.startswith(ENVIRONMENT) else _values(name, texts, settings)
    )
    if len(values) < 2:
        raise WrongCall(f"vary={name}={plain.short(texts[0])} is a single value; {EXAMPLE}")
    logged = [value.text for value in values]
    if twice := [text for text in logged if logged.count(text) > 1]:
        raise WrongCall(f"vary={name}: {plain.short(twice[0])} is named twice")
    return Variation(name, tuple(values))


def each(settings: S) -> list[S]:
    """Return the settings of every value that a campaign varies; as they are if it varies none. Raises WrongCall."""
    found = parse(settings)
    return [level.applied(settings) for level in found.levels] if found else [settings]


def based(settings: S, given: Mapping[str, str]) -> S:
    """Return the settings with the first value of what is varied, the baseline.

    Args:
        given: what the user has set, as text.

    Raises:
        WrongCall: if the setting is given another value beside.
    """
    found = parse(settings)
    if not found:
        return settings
    first = found.levels[0]
    if found.name in given and getattr(settings, found.name) != first.settings[found.name]:
        raise WrongCall(
            f"{found.name}={plain.short(given[found.name])} is given beside vary={found}; leave one of them out"
        )
    return first.applied(settings)


def arguments(name: str, values: typing.Iterable[str]) -> str:
    """Return the option that measures these values of a setting in one campaign."""
    return f"vary={name}={_listed(list(values))}"


def can_vary(kind: Any) -> list[str]:
    """Return the settings that belong to a cell and can change what it measures."""
    return sorted(settings_.searchable(kind) - settings_.immaterial(kind))


def _listed(texts: list[str]) -> str:
    separator = "|" if any("," in text for text in texts) else ","
    return separator.join(texts)


def _check_single(name: str, texts: list[str], settings: CampaignSettings) -> None:
    """Raises WrongCall for several settings at once."""
    names = {field.name for field in dataclasses.fields(settings)}
    for text in texts[1:]:
        other, equals, _ = text.partition("=")
        if equals and (other.strip() in names or other.strip().startswith(ENVIRONMENT)):
            raise WrongCall(
                f"vary takes one setting, not {name} and {other.strip()}; ask for each in a campaign of its own"
            )


def _values(name: str, texts: list[str], settings: CampaignSettings) -> list[Level]:
    hints = typing.get_type_hints(type(settings))
    _check_name(name, settings)
    found: list[Any] = []
    for text in texts:
        decided, instead = DECIDED.get(name, ("", ""))
        if text == decided:
            raise WrongCall(
                f"vary={name}: {text} is what each machine has; name the values, as in {name}={instead}"
            )
        value = settings_.convert(name, text, hints[name])
        settings_.check(dataclasses.replace(settings, **{name: value}))
        found.append(value)
    logged = [settings_.to_text(value) for value in found]
    named = zip(_labels(name, logged), logged, found, strict=True)
    return [Level(label, text, {name: value}, {}) for label, text, value in named]


def _check_name(name: str, settings: CampaignSettings) -> None:
    """Raises WrongCall for a setting that is no cell's."""
    fields = {field.name: field for field in dataclasses.fields(settings)}
    can = can_vary(settings)
    settings_.refuse_parameter(type(settings), name, "vary: ")
    if name not in fields:
        lists = [one for one in (f"{name}s",) if one in fields]
        right = (
            f"; name several in {lists[0]}=a,b"
            if lists
            else settings_.suggestion(name, dict.fromkeys(can))
        )
        raise WrongCall(f"vary: there is no setting '{plain.short(name)}'{right}")
    if name in can:
        return
    if isinstance(getattr(settings, name), tuple) and fields[name].metadata["group"] not in (
        "machine",
        "verdict",
    ):
        raise WrongCall(f"vary: {name} lists what is compared already; name several in {name}=a,b")
    raise WrongCall(
        f"vary: {name} belongs to the campaign, not to a cell; take threads, precision or another of a cell's settings"
    )


def _variables(name: str, texts: list[str]) -> list[Level]:
    variable = name.removeprefix(ENVIRONMENT)
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", variable):
        raise WrongCall(
            f"vary: '{plain.short(variable)}' is no name of an environment variable; {EXAMPLE}"
        )
    if OURS.fullmatch(variable):
        raise WrongCall(
            f"vary: {variable} tells a cell where its campaign is, and cannot be varied"
        )
    values = [None if text == UNSET else text for text in texts]
    named = zip(_labels(name, texts), texts, values, strict=True)
    return [Level(label, text, {}, {variable: value}) for label, text, value in named]


def _labels(name: str, texts: list[str]) -> list[str]:
    """Name levels by their values, or by numbers where folders of cells could not be told apart by those."""
    keys = {re.sub(r"[^A-Za-z0-9+.-]+", "-", text) for text in texts}
    are_short = all(
        len(text) <= MAX_CHARACTERS and re.fullmatch(r"[\w+.-]+", text, flags=re.ASCII)
        for text in texts
    )
    if are_short and len(keys) == len(texts):
        return [f"{name}={text}" for text in texts]
    return [f"{name} {number}" for number in range(1, len(texts) + 1)]


__all__ = [
    "ENVIRONMENT",
    "UNSET",
    "Level",
    "Variation",
    "arguments",
    "based",
    "can_vary",
    "each",
    "parse",
]
