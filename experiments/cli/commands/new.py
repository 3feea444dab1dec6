"""`evenhand new`: folder of a user-defined model or data set."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from string import Template

from experiments.cli.codes import DONE
from experiments.cli.commands import Command, Display
from experiments.config import shell
from experiments.config.settings import setting
from tracking.errors import ErrorCode, UsageError

TEMPLATES = Path(__file__).parents[1] / "templates"
_NAME = re.compile(r"[a-z][a-z0-9_]*")


@dataclass(frozen=True)
class New:
    """New folder, which the user then fills."""

    kind: str = setting("model", "what it is", choices=("model", "dataset"), group="folder")
    name: str = setting(
        "", "its name: small letters, digits and _; the folder is called so", group="folder"
    )
    output: str = setting(".", "folder that gets the new one", path=True, group="folder")


def run(settings: New, display: Display) -> int:
    files = write(settings)
    folder = files[0].parent
    if settings.kind == "model":
        path = folder if folder.is_absolute() else Path(".") / folder
        next_step = shell.command("parity", "--models", f"{path}/")
    else:
        next_step = shell.command(
            "classification", "--data", str(folder / "dataset.py"), "--model", "lenet"
        )
    for path in files:
        display.say(str(path))
    display.say(f"next: {next_step}")
    return DONE


def write(settings: New) -> list[Path]:
    """Write the files and return their paths.

    Raises:
        UsageError: for an invalid name, and for a folder that exists.
    """
    from models import own

    name = settings.name
    if not _NAME.fullmatch(name):
        raise UsageError(
            ErrorCode.INVALID_VALUE,
            f"name={ascii(name)[:60]}: small letters, digits and _, as in "
            f"{shell.command('new', settings.kind, 'my_net')}",
        )
    folder = Path(settings.output) / name
    ours = [own.OURS / name, own.OURS / f"{name}.py"] if settings.kind == "model" else []
    if taken := [path for path in (*ours, folder) if path.exists()]:
        raise UsageError(
            ErrorCode.EXISTS,
            f"name={name}: {taken[0]} exists; choose another name, or another folder (output=DIR)",
        )
    values = {"name": name, "title": "".join(part.capitalize() for part in name.split("_"))}
    folder.mkdir(parents=True)
    files = []
    for template in sorted((TEMPLATES / settings.kind).glob("*.py.txt")):
        files.append(folder / template.name.removesuffix(".txt"))
        text = Template(template.read_text(encoding="utf-8")).substitute(values)
        files[-1].write_text(text, encoding="utf-8")
    return files


COMMAND = Command(
    "Write the folder of a model or a data set of your own, to begin with",
    New,
    run,
    bare=("kind", "name"),
)
