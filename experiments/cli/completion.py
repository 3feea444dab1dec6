"""Completion in shells: click's scripts call this program, which answers from the settings."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Sequence

from click import Command
from click.shell_completion import CompletionItem, ShellComplete, get_completion_class

import models
from experiments import studies
from experiments.cli import entries
from experiments.cli.entries import Entry
from experiments.config import shell
from models import frameworks
from tracking.errors import UsageError

SHELLS = ("bash", "zsh", "fish")
# Values that exist as folders and files.
DISCOVERED = {
    "experiment": studies.available,
    "framework": frameworks.available,
    "frameworks": frameworks.available,
    "model": models.available,
    "models": models.available,
}


def script(words: Sequence[str]) -> str:
    """Return the script of a shell, for `eval "$(evenhand --completion bash)"`."""
    if len(words) != 1 or words[0] not in SHELLS:
        raise UsageError(f"--completion takes the name of a shell; choose {', '.join(SHELLS)}")
    return _completer(words[0]).source()


def answer(instruction: str) -> str:
    """Return completions for a script: `bash_complete`, with the line in the environment."""
    name, _, action = instruction.partition("_")
    if name not in SHELLS or action != "complete":
        raise UsageError(
            f"{shell.COMPLETING}={instruction} is not an instruction; write bash_complete"
        )
    return _completer(name).complete()


def _completer(name: str) -> ShellComplete:
    base = get_completion_class(name)
    assert base is not None

    class Completer(base):  # type: ignore[valid-type, misc]
        def get_completions(self, args: list[str], incomplete: str) -> list[CompletionItem[str]]:
            items = candidates(args, incomplete)
            return [
                item for item in items if item.type == "file" or item.value.startswith(incomplete)
            ]

    return Completer(Command("evenhand"), {}, "evenhand", shell.COMPLETING)


def candidates(words: Sequence[str], incomplete: str) -> list[CompletionItem[str]]:
    """Return what can follow the words of a call, whether or not it begins like the last one."""
    words = [word for word in words if word != "="]  # bash splits `--name=value` into three words
    if not words:
        names = (*entries.available(), "--help", "--version", "--completion")
        return [CompletionItem(name) for name in names]
    if words[0] == "--completion":
        return [CompletionItem(name) for name in SHELLS]
    if words[0] not in entries.available():
        return []
    entry = entries.load(words[0])
    option, equals, value = incomplete.partition("=")
    if equals and option.startswith("--"):  # zsh and fish keep `--name=value` together
        values = _values(entry, _name(option), value)
        return [CompletionItem(f"{option}={item.value}") for item in values if item.value]
    last = _name(words[-1]) if len(words) > 1 and words[-1].startswith("--") else ""
    is_flag = last in entry.flags and incomplete.startswith("--")
    if last in entry.fields and not is_flag:
        return _values(entry, last, "" if incomplete == "=" else incomplete)
    options = [
        CompletionItem(f"--{name}", help=field.metadata["help"])
        for name, field in entry.fields.items()
    ]
    return [*options, CompletionItem("--help")]


def _name(option: str) -> str:
    return option.removeprefix("--").replace("-", "_")


def _values(entry: Entry, name: str, incomplete: str) -> list[CompletionItem[str]]:
    """Return the values of a setting; of a list, those of its last item."""
    field: dataclasses.Field[object] | None = entry.fields.get(name)
    if field is None:
        return []
    if field.metadata["path"]:
        return [CompletionItem(incomplete, type="file")]
    values: Collection[str] = field.metadata["choices"]
    if name == "preset":
        values = list(entry.presets)
    elif name in entry.flags:
        values = ("true", "false")
    elif name in DISCOVERED:
        values = DISCOVERED[name]()
    is_list = str(field.type).startswith("tuple")
    before = incomplete[: incomplete.rfind(",") + 1] if is_list else ""
    rest = [value for value in values if value and value not in before.split(",")]
    return [CompletionItem(before + value) for value in rest]
