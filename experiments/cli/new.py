"""Writes the folder of a model or a data set of one's own, to begin with."""

from __future__ import annotations

import re
from pathlib import Path
from string import Template

from experiments.config import shell
from experiments.config.commands import New
from models import own
from tracking.errors import WrongCall

TEMPLATES = Path(__file__).parent / "templates"
_NAME = re.compile(r"[a-z][a-z0-9_]*")


def write(settings: New) -> list[Path]:
    """Writes the files and returns their paths. Raises WrongCall for a name that cannot be, or a folder that is there."""
    name = settings.name
    if not name:
        raise WrongCall(f"name is missing: {shell.command('new', settings.kind, 'my_net')}")
    if not _NAME.fullmatch(name):
        raise WrongCall(f"name={ascii(name)[:60]}: small letters, digits and _, as in my_net")
    if settings.kind == "model" and ((own.OURS / name).exists() or (own.OURS / f"{name}.py").exists()):
        raise WrongCall(f"name={name}: evenhand has a '{name}' of its own; choose another name")
    folder = Path(settings.output) / name
    if folder.exists():
        raise WrongCall(f"{folder} is there already; choose another name, or another folder (output=DIR)")
    title = "".join(part.capitalize() for part in name.split("_"))
    written = []
    folder.mkdir(parents=True)
    for template in sorted((TEMPLATES / settings.kind).glob("*.py.txt")):
        path = folder / template.name.removesuffix(".txt")
        path.write_text(Template(template.read_text(encoding="utf-8")).substitute(name=name, title=title), encoding="utf-8")
        written.append(path)
    return written


def next_step(settings: New, folder: Path) -> str:
    """The command that tries what was written."""
    if settings.kind == "model":
        return shell.command("parity", "--models", f"{folder if folder.is_absolute() else Path('.') / folder}/")
    return shell.command("classification", "--data", str(folder / "dataset.py"), "--model", "lenet")
