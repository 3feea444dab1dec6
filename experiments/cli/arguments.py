"""Parser of a call's words into settings as text."""

from __future__ import annotations

import json
import keyword
import os
from collections.abc import Sequence
from pathlib import Path

from experiments.cli.entries import Entry
from experiments.config.settings import CampaignSettings, convert, refuse_unknown
from tracking import plain
from tracking.errors import ErrorCode, UsageError


def options(words: Sequence[str], entry: Entry) -> dict[str, str]:
    """Parse `--name value` and `--name=value`; `--a-b` is `--a_b`, and a single flag is true.

    Args:
        words: The call after its name.
        entry: The called entry, with its flags and positional settings.

    Raises:
        UsageError: for words that are not settings, and for settings that are given twice.
    """
    texts: dict[str, str] = {}
    rest, bare = list(words), list(entry.bare)
    while rest:
        word = rest.pop(0)
        if bare and not word.startswith("-"):
            name, is_list = bare[0], isinstance(entry.fields[bare[0]].default, tuple)
            texts[name] = f"{texts[name]},{word}" if name in texts else word
            bare = bare if is_list else bare[1:]
            continue
        if not word.startswith("--") or word == "--":
            right = f"--{plain.short(word)}" if "=" in word else "--name value"
            raise UsageError(
                ErrorCode.INVALID_VALUE, f"'{plain.short(word)}' is not a setting; write {right}"
            )
        option, equals, value = word.partition("=")
        name, label = option[2:].replace("-", "_"), plain.short(option)
        if keyword.iskeyword(name):  # no field of a dataclass can have this name
            name += "_"
        refuse_unknown(name, entry.fields, entry.settings, *entry.others)
        field = entry.fields[name]
        if not equals and field.type in ("bool", bool) and (not rest or rest[0].startswith("--")):
            value = "true"
        elif not equals:
            if not rest:
                raise UsageError(
                    ErrorCode.MISSING_VALUE, f"{label} has no value; write {label} value"
                )
            value = rest.pop(0)
        if field.metadata["repeatable"] and not value.startswith("["):  # else a list in JSON
            earlier = convert(name, texts.pop(name, "[]"), tuple[str, ...])
            value = json.dumps([*earlier, value])
        if name in texts:
            raise UsageError(ErrorCode.DUPLICATE, f"{label} is given twice")
        texts[name] = value
    return texts


def with_named_models(texts: dict[str, str]) -> dict[str, str]:
    """Replace paths of model folders by the names under which they are added.

    Raises:
        ModelError: for a folder that is not a model.
    """
    from models import named, own

    replaced, cache = dict(texts), Path(texts.get("cache", CampaignSettings.cache))
    for setting in ("model", "models"):
        names = texts.get(setting, "").split(",")
        for at, name in enumerate(names):
            if named.is_named(name):
                names[at] = named.add(name, cache)
            elif os.sep in name:
                names[at] = own.add(Path(name))
        if setting in texts:
            replaced[setting] = ",".join(names)
    return replaced
