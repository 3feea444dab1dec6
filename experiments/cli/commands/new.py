"""`evenhand new`: folder of a user-defined model or data set."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from string import Template

from experiments.cli.codes import DONE
from experiments.cli.commands import Command
from experiments.config import shell
from experiments.config.settings import setting
from tracking import plain
from tracking.errors import UsageError

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


def run(settings: New) -> int:
    files = write(settings)
    folder = files[0].parent
    if settings.kind == "model":
        path = folder if folder.is_absolute() else Path(".") / folder
        next_step = shell.command("parity", "--models", f"{path}/")
    else:
        next_step = shell.command(
            "classification", "--data", str(folder / "dataset.py"), "--model", "lenet"
        )
    print("\n".join(plain.visible(str(path)) for path in files))
    print(f"next: {plain.visible(next_step)}")
    return DONE


def write(settings: New) -> list[Path]:
    """Write the files and return their paths.

    Raises:
        UsageError: for a name that cannot be, and for a folder that exists.
    """
    from models import own

    name = settings.name
    if not name:
        raise UsageError(f"name is missing: {shell.command('new', settings.kind, 'my_net')}")
    if not _NAME.fullmatch(name):
        raise UsageError(f"name={ascii(name)[:60]}: small letters, digits and _, as in my_net")
    if settings.kind == "model" and (
        (own.OURS / name).exists() or (own.OURS / f"{name}.py").exists()
    ):
        raise UsageError(f"name={name}: evenhand has a '{name}' of its own; choose another name")
    folder = Path(settings.output) / name
    if folder.exists():
        raise UsageError(
            f"{folder} is there already; choose another name, or another folder (output=DIR)"
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
