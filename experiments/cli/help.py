"""What `--help` says, from the definitions of settings and presets alone: nothing that computes is imported for it."""

from __future__ import annotations

import argparse
import textwrap
import types
import typing
from collections.abc import Mapping, Sequence
from typing import Any

from experiments import studies
from experiments.cli import arguments
from experiments.config import settings
from experiments.config.commands import COMMANDS
from tracking.errors import WrongCall

USAGE = """evenhand: the same model in every framework, one honest verdict, all of it in MLflow.

usage: evenhand NAME --setting value …          (or: python -m experiments NAME …, mlflow run . -e NAME -P setting=value …)
       evenhand NAME [--preset PRESET] --help   its settings, with the defaults of that preset
       evenhand --version
       evenhand --completion bash|zsh|fish      a script for the shell, which completes all of these
"""
TYPES = {int: "INTEGER", float: "NUMBER", bool: "true|false", str: "TEXT"}


class _Formatter(argparse.HelpFormatter):
    """Keeps names with hyphens in one piece, so that they can be copied."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=34)

    def _split_lines(self, text: str, width: int) -> list[str]:
        return textwrap.wrap(text, width, break_on_hyphens=False, break_long_words=False)


def overview() -> str:
    """Names of all experiments and commands, a line each."""
    names = {"experiments": studies.available(), "other": list(COMMANDS)}
    return "\n".join([USAGE, *(line for title, of in names.items() for line in (f"{title}:", *map(_listed, of)))])


def _listed(name: str) -> str:
    return f"  {name:16} {_title(name)}"


def _title(name: str) -> str:
    title: str = COMMANDS[name].title if name in COMMANDS else studies.load(name).TITLE
    return title


def of(name: str, words: Sequence[str]) -> str:
    """The settings of an experiment or command, by subject. words: the call, whose preset gives the defaults.

    Raises WrongCall for a name or preset that is not known.
    """
    title = _title(name)
    command = COMMANDS.get(name)
    kind, presets = (command.settings, {}) if command else (studies.load(name).Settings, studies.load(name).PRESETS)
    chosen = settings.of_preset(presets, _given(name, words)) if presets else {}
    more = "every setting of the experiment besides: evenhand EXPERIMENT --help" if command and command.of_experiment else None
    return _page(name, title, kind, presets, chosen, more)


def _given(name: str, words: Sequence[str]) -> Mapping[str, str]:
    """What the call says so far; nothing where it is not right yet."""
    try:
        return arguments.options([word for word in words if word not in ("-h", "--help")], arguments.flags(name))
    except WrongCall:
        return {}


def _page(
    name: str,
    title: str,
    kind: type[Any],
    presets: Mapping[str, Mapping[str, Any]],
    chosen: Mapping[str, Any],
    more: str | None,
) -> str:
    page = argparse.ArgumentParser(
        prog=f"evenhand {name}",
        usage="%(prog)s [--setting value] …",
        description=title,
        epilog=more,
        add_help=False,
        formatter_class=_Formatter,
    )
    preset = chosen.get("preset", "")
    values = {key: value for key, value in chosen.items() if key != "preset"}
    fields = settings.for_users(kind)
    hints = typing.get_type_hints(kind)
    groups = {group: page.add_argument_group(group) for group in dict.fromkeys(field.metadata["group"] for field in fields)}
    for field in fields:
        rules = {**field.metadata, "choices": tuple(presets)} if field.name == "preset" else field.metadata
        text = f"{rules['help']}{_accepted(rules, field.default, values.get(field.name), preset)}"
        metavar = "PATH" if rules["path"] else type_name(hints[field.name])
        groups[rules["group"]].add_argument(
            f"--{field.name}",
            metavar=metavar,
            nargs="?" if hints[field.name] is bool else None,  # shown in brackets: without a value it is true
            help=text.replace("%", "%%"),
        )
    if presets:
        shown = page.add_argument_group("presets")
        for one, own in presets.items():
            text = " ".join(f"{key}={settings.to_text(value)}" for key, value in own.items()) or "the defaults"
            shown.add_argument(one, help=text.replace("%", "%%"))
    return page.format_help()


def type_name(hint: Any) -> str:
    """What a setting of this type takes, as help and reference show it."""
    if typing.get_origin(hint) is tuple:
        return f"{type_name(typing.get_args(hint)[0])},…"
    if isinstance(hint, types.UnionType):
        return type_name(next(one for one in typing.get_args(hint) if one is not type(None)))
    return TYPES[hint]


def _accepted(rules: Mapping[str, Any], default: Any, by_preset: Any, preset: str) -> str:
    """The end of a setting's line: its choices or bounds, and the default that holds."""
    parts = [", ".join(one or "none" for one in rules["choices"])]
    if rules["maximum"] is not None:
        parts.append(f"{rules['minimum']:,} to {rules['maximum']:,}")
    own = settings.to_text(default)
    if by_preset is None or by_preset == default:
        parts.append(f"default: {own}" if own else "")
    else:
        parts.append(f"default: {settings.to_text(by_preset) or 'empty'} in {preset}, else {own or 'empty'}")
    said = "; ".join(filter(None, parts))
    return f" ({said})" if said else ""
