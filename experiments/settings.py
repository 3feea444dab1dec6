"""Settings are frozen dataclasses: one definition gives the options, the checks, the help and the logged params."""

from __future__ import annotations

import dataclasses
import difflib
import json
import math
import types
import typing
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass
from pathlib import Path
from typing import Any, TypeVar

from tracking.errors import WrongCall

T = TypeVar("T")
MOST_BYTES = 65_536


def setting(
    default: Any, help: str, *, least: float | None = None, most: float | None = None, choices: Sequence[str] = ()
) -> Any:
    """A dataclass field with its one-line help and what it accepts."""
    metadata = {"help": help, "least": least, "most": most, "choices": tuple(choices)}
    return dataclasses.field(default=default, metadata=metadata)


@dataclass(frozen=True)
class CampaignSettings:
    """What every experiment can be told."""

    preset: str = setting("demo", "a named set of settings; anything given beside it wins")
    settings: str = setting("", "a JSON file of settings, as a sweep leaves one; anything given beside it wins")
    frameworks: tuple[str, ...] = setting(("pytorch", "tensorflow"), "what is compared, the baseline first")
    blocks: int = setting(6, "times that everything is repeated in fresh processes, in random order; a verdict needs 6", least=1)
    seed: int = setting(0, "of the data, the initial weights, the order of steps and cells", least=0)
    device: str = setting("auto", "auto takes the GPU if there is one", choices=("auto", "cpu", "cuda"))
    threads: int = setting(0, "CPU threads of every framework alike; 0: one for each core", least=0)
    strict: bool = setting(False, "refuse a machine on which others work, instead of warning")
    cool_down_seconds: float = setting(
        120.0, "longest wait before a cell for the temperature of the start, where a sensor tells it; 0: none", least=0
    )
    sensor_seconds: float = setting(0.5, "period of the sensors", least=0.05)
    memory_limit: str = setting("none", "what a cell may allocate on the host, such as 2GiB; none: all there is")
    aa: bool = setting(False, "the baseline once more in every block: it must come out as equal (A/A)")
    inject_delay: float = setting(
        0.0, "the baseline once more in every block, each step slowed by this share (5%): it must be found", least=0, most=10
    )
    allow_unequal: bool = setting(False, "measure networks that the parity gate does not call equal, and mark the report")
    protocol: str = setting("sound", "paper: the published procedure is shown beside the verdicts", choices=("sound", "paper"))
    margin: float = setting(0.03, "the smallest ratio that matters, fixed before measuring", least=0.001, most=0.5)
    team: str = setting("", "whose runs these are (tag team)")
    journal: str = setting(".evenhand/journal", "folder that keeps every record before the server does")
    cache: str = setting(".evenhand/cache", "folder for data and features that need not be made twice")
    resume: str = setting("", "a campaign's run id, or last: run only what is missing")


def parse(kind: type[T], presets: Mapping[str, Mapping[str, Any]], given: Mapping[str, str]) -> T:
    """Settings from text: defaults, the preset's (where there are any), then what was given. Raises WrongCall, one line."""
    fields = {field.name: field for field in _fields(kind)}
    if "settings" in fields and given.get("settings"):
        given = {**read(Path(given["settings"])), **given}
    for name in given:
        if name not in fields:
            raise WrongCall(f"there is no setting '{name}'{suggestion(name, fields)}")
    chosen: dict[str, Any] = {}
    if presets:
        preset = given.get("preset", "demo")
        if preset not in presets:
            raise WrongCall(f"there is no preset '{preset}'; have {', '.join(presets)}")
        chosen = {**presets[preset], "preset": preset}
    types_ = typing.get_type_hints(kind)
    values = {name: convert(name, text, types_[name]) for name, text in given.items()}
    settings = kind(**{**chosen, **values})
    check(settings)
    return settings


def read(path: Path) -> dict[str, str]:
    """Settings of a JSON file: an object of texts, numbers, truth values and flat lists. Raises WrongCall."""
    try:
        with path.open("rb") as file:
            text = file.read(MOST_BYTES + 1)
        if len(text) > MOST_BYTES:
            raise WrongCall(f"settings={path} has more than {MOST_BYTES:,} bytes: no file of settings has")
        found = json.loads(text)
    except OSError as error:
        raise WrongCall(f"settings={path} cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        reason = str(error) if isinstance(error, ValueError) else "nested too deeply"
        raise WrongCall(f"settings={path} is not JSON: {reason}") from None
    if not isinstance(found, dict):
        raise WrongCall(f'settings={path} holds no object; write {{"batch_size": 64}}')
    for name, value in found.items():
        parts = value if isinstance(value, list) else [value]
        if not all(isinstance(part, str | int | float | bool) for part in parts):
            raise WrongCall(f"settings={path}: {name} is neither a text, a number, true, false, nor a list of them")
    return {name: to_text(tuple(value) if isinstance(value, list) else value) for name, value in found.items()}


def _fields(settings: Any) -> tuple[dataclasses.Field[Any], ...]:
    return dataclasses.fields(settings)


def check(settings: Any) -> None:
    """Raises WrongCall for the first value out of range."""
    for field in _fields(settings):
        value, rules = getattr(settings, field.name), field.metadata
        for one in value if isinstance(value, tuple) else (value,):
            if isinstance(one, float) and not math.isfinite(one):
                raise WrongCall(f"{field.name}={one} is not a finite number")
            if rules.get("choices") and one not in rules["choices"]:
                raise WrongCall(f"{field.name}={one} is not known; choose {', '.join(rules['choices'])}")
            if rules.get("least") is not None and one < rules["least"]:
                raise WrongCall(f"{field.name}={one} is too small; at least {rules['least']}")
            if rules.get("most") is not None and one > rules["most"]:
                raise WrongCall(f"{field.name}={one} is too large; at most {rules['most']}")
        if isinstance(value, tuple) and not value and field.default:
            raise WrongCall(f"{field.name} is empty; name at least one")
        if isinstance(value, tuple) and len(set(value)) < len(value):
            raise WrongCall(f"{field.name}={','.join(map(str, value))} names one twice")


def convert(name: str, text: str, kind: Any) -> Any:
    """Text from the command line as a value of a field's type. Raises WrongCall."""
    if typing.get_origin(kind) is tuple:
        return tuple(convert(name, part.strip(), typing.get_args(kind)[0]) for part in text.split(",") if part.strip())
    if isinstance(kind, types.UnionType):
        return (
            None if text in ("", "none") else convert(name, text, next(k for k in typing.get_args(kind) if k is not type(None)))
        )
    if kind is bool:
        if text.lower() in ("true", "yes", "1", "false", "no", "0"):
            return text.lower() in ("true", "yes", "1")
        raise WrongCall(f"{name}={text} is neither true nor false")
    try:
        return float(text[:-1]) / 100 if kind is float and text.endswith("%") else kind(text)
    except ValueError:
        raise WrongCall(f"{name}={text} is not {'a whole number' if kind is int else 'a number'}") from None


def as_text(settings: Any) -> dict[str, str]:
    """Every setting as MLflow logs it."""
    return {field.name: to_text(getattr(settings, field.name)) for field in _fields(settings)}


def to_text(value: Any) -> str:
    if isinstance(value, tuple):
        return ",".join(map(to_text, value))
    if isinstance(value, bool):
        return str(value).lower()
    return "" if value is None else str(value)


def from_values(kind: type[T], values: Mapping[str, Any]) -> T:
    """Settings from JSON values, as the journal keeps them."""
    known = {field.name for field in _fields(kind)}
    kept: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in values.items() if k in known}
    return kind(**kept)


def help_text(kind: type[Any], presets: Mapping[str, Mapping[str, Any]]) -> str:
    """One line a setting, with its default, and one a preset."""
    lines = []
    for field in _fields(kind):
        default = "" if field.default is MISSING else to_text(field.default)
        choices = f" ({', '.join(field.metadata['choices'])})" if field.metadata.get("choices") else ""
        lines.append(f"  --{field.name + ' ' + (default or '…'):34} {field.metadata['help']}{choices}")
    lines += ["\npresets:"] if presets else []
    for name, values in presets.items():
        lines.append(f"  {name:20} " + (" ".join(f"{key}={to_text(value)}" for key, value in values.items()) or "the defaults"))
    return "\n".join(lines)


def suggestion(name: str, names: Mapping[str, Any]) -> str:
    """What may have been meant, as the end of a sentence."""
    close = difflib.get_close_matches(name, names, n=1)
    return f"; did you mean {close[0]}?" if close else f"; have {', '.join(names)}"
