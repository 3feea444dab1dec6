"""Completion in shells by click's scripts, which call this program."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Sequence
from typing import Any

import click
from click.shell_completion import CompletionItem, ShellComplete, get_completion_class

import models
from experiments import studies
from experiments.cli import entries
from experiments.cli.entries import Entry
from experiments.config import shell
from models import frameworks
from tracking.errors import ErrorCode, UsageError

SHELLS = ("bash", "zsh", "fish")
# Values that exist as folders and files.
DISCOVERED = {
    "experiment": studies.available,
    "framework": frameworks.available,
    "frameworks": frameworks.available,
    "model": models.available,
    "models": models.available,
}


class Values(click.ParamType[str]):
    """Values of a setting; of a list, those of its last item."""

    name = "values"

    def __init__(self, values: Collection[str]) -> None:
        self._values = values

    def shell_complete(
        self, _: click.Context, __: click.Parameter, incomplete: str
    ) -> list[CompletionItem[str]]:
        before = incomplete[: incomplete.rfind(",") + 1]
        rest = [value for value in self._values if value and value not in before.split(",")]
        items = [CompletionItem(before + value) for value in rest]
        return [item for item in items if item.value.startswith(incomplete)]


def script(words: Sequence[str]) -> str:
    """Return the script of a shell, for `eval "$(evenhand --completion bash)"`."""
    return _completer(" ".join(words)).source()


def answer(instruction: str) -> str:
    """Return completions for a script: `bash_complete`, with the line in the environment."""
    return _completer(instruction.removesuffix("_complete")).complete()


def _completer(name: str) -> ShellComplete:
    if name not in SHELLS:
        raise UsageError(
            ErrorCode.UNKNOWN_NAME,
            f"'{name}' is not a shell with completion; choose {', '.join(SHELLS)}",
        )
    base: Any = get_completion_class(name)

    class Completer(base):  # type: ignore[misc]
        def get_completions(self, args: list[str], incomplete: str) -> list[CompletionItem[str]]:
            return candidates(args, incomplete)

    completer: ShellComplete = Completer(_program(), {}, "evenhand", shell.COMPLETING)
    return completer


def candidates(words: Sequence[str], incomplete: str) -> list[CompletionItem[str]]:
    words = [word for word in words if word != "="]  # bash splits `--name=value` into three words
    completer = ShellComplete(_program(), {}, "evenhand", shell.COMPLETING)
    items = completer.get_completions(list(words), incomplete)
    option, equals, _ = incomplete.partition("=")
    if equals and option:  # zsh and fish keep `--name=value` together
        return [CompletionItem(f"{option}={item.value}") for item in items if item.value]
    return items


def _program() -> click.Group:
    commands = []
    for name in entries.available():
        entry = entries.load(name)
        options = [_option(entry, name, field) for name, field in entry.fields.items()]
        commands.append(click.Command(name, params=[*options]))
    shells = click.Option(["--completion"], type=Values(SHELLS))
    version = click.Option(["--version"], is_flag=True)
    return click.Group("evenhand", commands=commands, params=[version, shells])


def _option(entry: Entry, name: str, field: dataclasses.Field[Any]) -> click.Option:
    values: Collection[str] = field.metadata["choices"]
    if name == "preset":
        values = entry.presets
    elif name in entry.flags:
        values = ("true", "false")
    elif name in DISCOVERED:
        values = DISCOVERED[name]()
    kind = click.Path() if field.metadata["path"] else Values(values)
    flag_value = "true" if name in entry.flags else None
    return click.Option(
        [f"--{name.rstrip('_')}"],
        type=kind,
        help=field.metadata["help"],
        is_flag=False,
        flag_value=flag_value,
    )
