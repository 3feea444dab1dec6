"""Text of `--help`, from the definitions of settings: no module that computes is imported."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import Field
from typing import Any

from experiments import studies
from experiments.cli import arguments, commands, entries
from experiments.cli.entries import Entry
from experiments.config import settings
from tracking.errors import UsageError

TITLE = "evenhand: the same model in every framework, one honest verdict, all of it in MLflow."
USAGE = {
    "evenhand NAME --setting value …": "the same: python -m experiments NAME …, "
    "mlflow run . -e NAME -P setting=value …",
    "evenhand NAME [--preset PRESET] --help": "its settings, with the defaults of that preset",
    "evenhand NAME --help all": "all settings, with their bounds, and the presets",
    "evenhand --version": "the version of evenhand",
}
# Options without an experiment or command.
OPTIONS = ("--help", "--version")
INDENT, COLUMN = 6, 20
ALL = "all"


def overview() -> str:
    """Return the names of all experiments and commands, a line each."""
    lines = [*_wrapped(TITLE), "", "usage:"]
    for form, text in USAGE.items():
        lines += _beside(f"  {form}", text)
    lines.append("")
    for title, names in {"experiments": studies.available(), "other": commands.available()}.items():
        lines.append(f"{title}:")
        for name in names:
            lines += _beside(f"  {name}", entries.load(name).title)
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
    rest = [word for word in words if word not in ("-h", "--help", ALL)]
    try:
        options = arguments.options(rest, entry)
    except UsageError:  # they are not complete yet
        options = {}
    preset = settings.of_preset(entry.presets, options)
    fields = settings.for_users(entry.settings)
    shown = [field for field in fields if is_complete or not field.metadata["advanced"]]
    usage = f"usage: evenhand {entry.name} [--setting value] …"
    lines = [*_wrapped(usage), "", *_wrapped(entry.title)]
    for group in dict.fromkeys(field.metadata["group"] for field in shown):
        lines += ["", f"{group}:"]
        for field in (field for field in shown if field.metadata["group"] == group):
            default = settings.to_text(preset.get(field.name, field.default))
            head = f"  --{field.name.rstrip('_')} {default}"
            text = _description(field, entry) if is_complete else field.metadata["help"]
            lines += _beside(head, text, INDENT if is_complete else COLUMN)
    if is_complete and entry.presets:
        lines += ["", "presets:"]
        for name, values in entry.presets.items():
            texts = [f"{key}={settings.to_text(value)}" for key, value in values.items()]
            lines += [f"  {name}", *_wrapped(" ".join(texts) or "the defaults", INDENT)]
    if entry.others:
        lines += ["", *_wrapped("and every setting of the experiment: evenhand EXPERIMENT --help")]
    if not is_complete:
        lines += ["", *_wrapped(f"all {len(fields)} settings: evenhand {entry.name} --help {ALL}")]
    return "\n".join(lines)


def _description(field: Field[Any], entry: Entry) -> str:
    """Return the whole help of a setting, with its choices or bounds."""
    rules = field.metadata
    choices = tuple(entry.presets) if field.name == "preset" else rules["choices"]
    accepted = ", ".join(choice or "none" for choice in choices)
    if rules["maximum"] is not None:
        accepted = f"{rules['minimum']:,} to {rules['maximum']:,}"
    return f"{rules['help']} ({accepted})" if accepted else str(rules["help"])


def _beside(head: str, text: str, column: int = COLUMN) -> list[str]:
    """Return a text in the column behind a head, or below a head that is too long for that."""
    lines = _wrapped(text, column)
    if len(head) < column:
        return [head.ljust(column) + lines[0].lstrip(), *lines[1:]]
    return [*_wrapped(head.lstrip(), 2), *lines]


def _wrapped(text: str, indent: int = 0) -> list[str]:
    import shutil  # it imports archive libraries, which the overview does not need

    space, columns = " " * indent, shutil.get_terminal_size().columns - 1
    return textwrap.wrap(
        text,
        max(columns, indent + 10),
        initial_indent=space,
        subsequent_indent=space,
        break_on_hyphens=False,
    )
