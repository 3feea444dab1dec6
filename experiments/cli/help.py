"""What `--help` prints, from the definitions of settings alone: nothing that computes is imported for it."""

from __future__ import annotations

import textwrap
import typing
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import Field
from typing import Any

from experiments import studies
from experiments.cli import arguments, commands, entries
from experiments.cli.entries import Entry
from experiments.config import settings
from tracking.errors import WrongCall

USAGE = """evenhand: the same model in every framework, one honest verdict, all of it in MLflow.

usage: evenhand NAME --setting value …          (or: python -m experiments NAME …, mlflow run . -e NAME -P setting=value …)
       evenhand NAME [--preset PRESET] --help   its settings, with the defaults of that preset
       evenhand NAME --help all                 those that are seldom needed, too, with their bounds
       evenhand --version
       evenhand --completion bash|zsh|fish      a script for the shell, which completes all of these
"""
TYPES = {int: "INTEGER", float: "NUMBER", bool: "true|false", str: "TEXT"}
INDENT = 26
EVERY = "all"


def overview() -> str:
    """Names of all experiments and commands, a line each."""
    lines = [USAGE]
    for title, names in {"experiments": studies.available(), "other": commands.available()}.items():
        lines += [f"{title}:", *(f"  {name:16} {entries.load(name).title}" for name in names)]
    return "\n".join(lines)


def page(entry: Entry, words: Sequence[str]) -> str:
    """Return the settings of an experiment or command, by subject.

    Args:
        entry: what is explained.
        words: the call; its preset gives the defaults, and `all` asks for every setting.

    Raises:
        WrongCall: for a preset that is not known.
    """
    is_whole = EVERY in words
    chosen = settings.of_preset(entry.presets, _given(entry, words))
    hints = typing.get_type_hints(entry.settings)
    every = settings.for_users(entry.settings)
    fields = [field for field in every if is_whole or not field.metadata["advanced"]]
    lines = [f"usage: evenhand {entry.name} [--setting value] …", "", *_wrapped(entry.title)]
    for group in dict.fromkeys(field.metadata["group"] for field in fields):
        lines += ["", f"{group}:"]
        for field in (field for field in fields if field.metadata["group"] == group):
            kind = "PATH" if field.metadata["path"] else type_name(hints[field.name])
            choices = entry.presets if field.name == "preset" else field.metadata["choices"]
            accepted = "; ".join(_accepted(field, list(choices), chosen, is_whole))
            text = field.metadata["help"] + (f" ({accepted})" if accepted else "")
            lines += _item(f"--{field.name} {kind}" if is_whole else f"--{field.name}", text)
    if is_whole and entry.presets:
        lines += ["", "presets:"]
        for name, values in entry.presets.items():
            lines += _item(
                name,
                " ".join(f"{key}={settings.to_text(value)}" for key, value in values.items())
                or "the defaults",
            )
    if entry.others:
        lines += [
            "",
            *_wrapped("every setting of the experiment besides: evenhand EXPERIMENT --help"),
        ]
    if more := len(every) - len(fields):
        lines += [
            "",
            *_wrapped(
                f"{more} more settings, bounds and presets: evenhand {entry.name} --help {EVERY}"
            ),
        ]
    return "\n".join(lines)


def _given(entry: Entry, words: Sequence[str]) -> Mapping[str, str]:
    """What the call says so far; nothing where it is not right yet."""
    try:
        return arguments.options(
            [word for word in words if word not in ("-h", "--help", EVERY)], entry
        )
    except WrongCall:
        return {}


def _accepted(
    field: Field[Any], choices: Sequence[str], chosen: Mapping[str, Any], is_whole: bool
) -> Iterator[str]:
    """The end of a setting's line: its choices or bounds, and the default that holds."""
    if choices:
        yield ", ".join(one or "none" for one in choices)
    if is_whole and field.metadata["maximum"] is not None:
        yield f"{field.metadata['minimum']:,} to {field.metadata['maximum']:,}"
    default = settings.to_text(field.default)
    value = settings.to_text(chosen.get(field.name, field.default))
    if field.name != "preset" and value != default:
        yield f"default: {value or 'empty'} in {chosen['preset']}, else {default or 'empty'}"
    elif default:
        yield f"default: {default}"


def _item(head: str, text: str) -> list[str]:
    """A name and its explanation, on the same line where the name is short; hyphens stay within a line."""
    wrapped = _wrapped(text, " " * INDENT)
    if len(head) > INDENT - 4:
        return [f"  {head}", *wrapped]
    return [f"  {head}".ljust(INDENT) + wrapped[0].lstrip(), *wrapped[1:]]


def _wrapped(text: str, indent: str = "") -> list[str]:
    import shutil  # with libraries of archives, which the overview does without

    width = shutil.get_terminal_size().columns - 1
    wrapper = textwrap.TextWrapper(
        max(width, 2 * INDENT), indent, indent, break_on_hyphens=False, break_long_words=False
    )
    return wrapper.wrap(text)


def type_name(hint: Any) -> str:
    """What a setting of this type takes, as help and reference show it."""
    if typing.get_origin(hint) is tuple:
        return f"{type_name(typing.get_args(hint)[0])},…"
    return TYPES[hint]
