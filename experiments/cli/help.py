"""Text of `--help`, from the definitions of settings: no module that computes is imported."""

from __future__ import annotations

import textwrap
import typing
from collections.abc import Sequence
from dataclasses import Field
from typing import Any

from experiments import studies
from experiments.cli import arguments, commands, entries
from experiments.cli.entries import Entry
from experiments.config import settings
from tracking.errors import UsageError

USAGE = """evenhand: the same model in every framework, one honest verdict, all of it in MLflow.

usage: evenhand NAME --setting value …          the same: python -m experiments NAME …,
                                                mlflow run . -e NAME -P setting=value …
       evenhand NAME [--preset PRESET] --help   its settings, with the defaults of that preset
       evenhand NAME --help all                 all settings, with their bounds, and the presets
       evenhand --version
       evenhand --completion bash|zsh|fish      a script for the shell, which completes these
"""
TYPES = {int: "INTEGER", float: "NUMBER", bool: "true|false", str: "TEXT"}
INDENT, SHORT_INDENT = 26, 34
ALL = "all"


def overview() -> str:
    """Return the names of all experiments and commands, a line each."""
    lines = [USAGE]
    for title, names in {"experiments": studies.available(), "other": commands.available()}.items():
        lines += [f"{title}:", *(f"  {name:16} {entries.load(name).title}" for name in names)]
    return "\n".join(lines)


def page(entry: Entry, words: Sequence[str]) -> str:
    """Return the settings of an experiment or command, by subject.

    Args:
        entry: The experiment or command.
        words: The call; its preset gives the defaults, and `all` requests every setting.

    Raises:
        UsageError: for a preset that does not exist.
    """
    is_complete = ALL in words
    preset = settings.of_preset(entry.presets, _partial_options(entry, words))
    hints = typing.get_type_hints(entry.settings)
    fields = settings.for_users(entry.settings)
    shown = [field for field in fields if is_complete or not field.metadata["advanced"]]
    lines = [f"usage: evenhand {entry.name} [--setting value] …", "", *_wrapped(entry.title)]
    for group in dict.fromkeys(field.metadata["group"] for field in shown):
        lines += ["", f"{group}:"]
        for field in (field for field in shown if field.metadata["group"] == group):
            default = settings.to_text(preset.get(field.name, field.default))
            if is_complete:
                choices = tuple(entry.presets) if field.name == "preset" else ()
                lines += _description(field, hints[field.name], choices, default)
            else:
                lines.append(_summary(field, default))
    if is_complete and entry.presets:
        lines += ["", "presets:"]
        for name, values in entry.presets.items():
            texts = [f"{key}={settings.to_text(value)}" for key, value in values.items()]
            lines += _item(name, " ".join(texts) or "the defaults")
    if entry.others:
        lines += ["", *_wrapped("and every setting of the experiment: evenhand EXPERIMENT --help")]
    if not is_complete:
        lines += ["", *_wrapped(f"all {len(fields)} settings: evenhand {entry.name} --help {ALL}")]
    return "\n".join(lines)


def _partial_options(entry: Entry, words: Sequence[str]) -> dict[str, str]:
    """Return the options of a call, or none if they are not complete yet."""
    rest = [word for word in words if word not in ("-h", "--help", ALL)]
    try:
        return arguments.options(rest, entry)
    except UsageError:
        return {}


def _summary(field: Field[Any], default: str) -> str:
    """Return a setting with its default and the beginning of its help, in one line."""
    head = f"  --{field.name} {default} ".ljust(SHORT_INDENT)
    width = max(_columns() - len(head), 2)
    return head + textwrap.shorten(field.metadata["help"], width, placeholder=" …")


def _description(field: Field[Any], hint: Any, choices: tuple[str, ...], default: str) -> list[str]:
    """Return a setting with its type, its whole help, its choices or bounds, and its default."""
    rules = field.metadata
    accepted = [", ".join(choice or "none" for choice in choices or rules["choices"])]
    if rules["maximum"] is not None:
        accepted.append(f"{rules['minimum']:,} to {rules['maximum']:,}")
    if default:
        accepted.append(f"default: {default}")
    text = "; ".join(filter(None, accepted))
    kind = "PATH" if rules["path"] else type_name(hint)
    return _item(f"--{field.name} {kind}", rules["help"] + (f" ({text})" if text else ""))


def _item(head: str, text: str) -> list[str]:
    """Return a name and its explanation, on the same line if the name is short."""
    lines = _wrapped(text, " " * INDENT)
    if len(head) > INDENT - 4:
        return [f"  {head}", *lines]
    return [f"  {head}".ljust(INDENT) + lines[0].lstrip(), *lines[1:]]


def _wrapped(text: str, indent: str = "") -> list[str]:
    width = max(_columns(), 2 * INDENT)
    return textwrap.wrap(
        text,
        width,
        initial_indent=indent,
        subsequent_indent=indent,
        break_on_hyphens=False,
        break_long_words=False,
    )


def _columns() -> int:
    import shutil  # it imports archive libraries, which the overview does not need

    return shutil.get_terminal_size().columns - 1


def type_name(hint: Any) -> str:
    """Return the name of a setting's type in help and reference."""
    if typing.get_origin(hint) is tuple:
        return f"{type_name(typing.get_args(hint)[0])},…"
    return TYPES[hint]
