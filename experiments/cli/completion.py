"""Completion in shells: click's scripts, which ask this program; the answers are the settings' own definitions."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence

from click import Command
from click.shell_completion import CompletionItem, ShellComplete, get_completion_class

import models
from experiments import studies
from experiments.cli import entries
from experiments.cli.entries import Entry
from experiments.config import shell
from models import frameworks
from tracking.errors import WrongCall

SHELLS = ("bash", "zsh", "fish")
# Names that are found, not listed in the setting.
FOUND = {
    "experiment": studies.available,
    "framework": frameworks.available,
    "frameworks": frameworks.available,
    "model": models.available,
    "models": models.available,
}


def script(words: Sequence[str]) -> str:
    """What the shell reads once, as in `eval "$(evenhand --completion bash)"`. Raises WrongCall."""
    if len(words) != 1 or words[0] not in SHELLS:
        raise WrongCall(f"--completion takes the name of a shell; choose {', '.join(SHELLS)}")
    return _completer(words[0]).source()


def answer(instruction: str) -> str:
    """What the script asks at every key: `bash_complete`, with the line in the environment. Raises WrongCall."""
    name, _, what = instruction.partition("_")
    if name not in SHELLS or what != "complete":
        raise WrongCall(
            f"{shell.COMPLETING}={instruction} is not an instruction; write bash_complete"
        )
    return _completer(name).complete()


def _completer(name: str) -> ShellComplete:
    base = get_completion_class(name)
    assert base is not None

    class Completer(base):  # type: ignore[valid-type, misc]
        def get_completions(self, args: list[str], incomplete: str) -> list[CompletionItem[str]]:
            return [
                one
                for one in candidates(args, incomplete)
                if one.type == "file" or one.value.startswith(incomplete)
            ]

    return Completer(Command("evenhand"), {}, "evenhand", shell.COMPLETING)


def candidates(words: Sequence[str], incomplete: str) -> list[CompletionItem[str]]:
    """What can stand after these words of a call, whether or not it begins like the last one. Never raises WrongCall."""
    words = [word for word in words if word != "="]  # bash takes `--name=value` for three words
    if not words:
        return [
            CompletionItem(name)
            for name in (*entries.available(), "--help", "--version", "--completion")
        ]
    name, *rest = words
    if name == "--completion":
        return [CompletionItem(one) for one in SHELLS]
    if name not in entries.available():
        return []
    entry = entries.load(name)
    fields = entry.fields
    asked, equals, value = incomplete.partition("=")
    if equals and asked.startswith("--"):  # zsh and fish take it for one
        field = fields.get(asked[2:].replace("-", "_"))
        return [
            CompletionItem(f"{asked}={one.value}")
            for one in (_values(entry, field, value) if field else ())
            if one.value
        ]
    last = rest[-1][2:].replace("-", "_") if rest and rest[-1].startswith("--") else ""
    if last in fields and not (last in entry.flags and incomplete.startswith("--")):
        return list(_values(entry, fields[last], "" if incomplete == "=" else incomplete))
    return [
        *(CompletionItem(f"--{one}", help=field.metadata["help"]) for one, field in fields.items()),
        CompletionItem("--help"),
    ]


def _values(
    entry: Entry, field: dataclasses.Field[object], begun: str
) -> Iterable[CompletionItem[str]]:
    """The values of a setting; of a list, what its last part could be."""
    if field.metadata["path"]:
        return [CompletionItem(begun, type="file")]
    known: Iterable[str] = field.metadata["choices"]
    if field.name == "preset":
        known = entry.presets
    elif field.name in entry.flags:
        known = ("true", "false")
    elif field.name in FOUND:
        known = FOUND[field.name]()
    before = begun[: begun.rfind(",") + 1] if str(field.type).startswith("tuple") else ""
    return [CompletionItem(before + one) for one in known if one and one not in before.split(",")]


__all__ = ["answer", "candidates", "script"]
