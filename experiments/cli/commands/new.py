"""`evenhand new`: folder of a user-defined model."""

from __future__ import annotations

import os
import re
import sys
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from string import Template

from experiments.cli.codes import DONE
from experiments.cli.commands import Command, Display
from experiments.config import shell
from experiments.config.settings import setting
from tracking import plain
from tracking.errors import ErrorCode, EvenhandError, UsageError

TEMPLATES = Path(__file__).parents[1] / "templates"
_NAME = re.compile(r"[a-z][a-z0-9_]*")


@dataclass(frozen=True)
class New:
    """New folder, which the user then fills."""

    kind: str = setting("model", "what it is", choices=("model",), group="folder")
    name: str = setting(
        "", "its name: small letters, digits and _; the folder is called so", group="folder"
    )
    from_: str = setting(
        "",
        "a model's network in PyTorch: torchvision:resnet18, or torch:MODULE:FUNCTION, which "
        "returns it and may take num_classes; none: a small example",
        group="folder",
    )
    output: str = setting(".", "folder that gets the new one", path=True, group="folder")


def run(settings: New, display: Display) -> int:
    files = write(settings)
    folder = files[0].parent
    for path in files:
        display.say(str(path))
    path = folder if folder.is_absolute() else Path(".") / folder
    sides = ("--frameworks", "pytorch,pytorch+channels_last") if settings.from_ else ()
    display.say(f"next: {shell.command('parity', '--models', f'{path}/', *sides)}")
    return DONE


def write(settings: New) -> list[Path]:
    """Write the files and return their paths.

    Raises:
        UsageError: for an invalid name, a folder that exists, and a network that has no use.
    """
    from models import own

    name = settings.name
    if not _NAME.fullmatch(name):
        raise UsageError(
            ErrorCode.INVALID_VALUE,
            f"name={ascii(name)[:60]}: small letters, digits and _, as in "
            f"{shell.command('new', 'model', 'my_net')}",
        )
    folder = Path(settings.output) / name
    ours = (own.OURS / name, own.OURS / f"{name}.py")
    if taken := [path for path in (*ours, folder) if path.exists()]:
        raise UsageError(
            ErrorCode.EXISTS,
            f"name={name}: {taken[0]} exists; choose another name, or another folder (output=DIR)",
        )
    texts = {
        template.name.removesuffix(".txt"): Template(template.read_text(encoding="utf-8"))
        for template in (TEMPLATES / ("network" if settings.from_ else "model")).glob("*.txt")
    }
    values = {"name": name, "title": "".join(part.capitalize() for part in name.split("_"))}
    if settings.from_:
        network, file = _describe(settings.from_)
        values |= network
        if file:  # cells do not start in this folder, and the model's version is that of its files
            texts["network.py"] = Template(file.read_text(encoding="utf-8").replace("$", "$$"))
            values["module"] = f"models.{name}.network"
    folder.mkdir(parents=True)
    for file_name, template in texts.items():
        (folder / file_name).write_text(template.substitute(values), encoding="utf-8")
    return sorted(folder / file_name for file_name in texts)


def _describe(source: str) -> tuple[dict[str, str], Path | None]:
    """Return the values of a network's templates, and its module if it lies in the working folder.

    Raises:
        UsageError: for a network that cannot be made or classifies no images.
    """
    from models import frameworks, own

    kind, _, path = source.partition(":")
    module_name, _, function = (
        f"torchvision.models:{path}" if kind == "torchvision" else path
    ).partition(":")
    if kind not in ("torch", "torchvision") or not function.isidentifier():
        text = f"from={plain.short(source)}: write torchvision:resnet18, or torch:MODULE:FUNCTION"
        raise UsageError(ErrorCode.INVALID_VALUE, text)
    if reason := frameworks.missing("pytorch"):
        raise UsageError(ErrorCode.NOT_INSTALLED, reason)
    from models.frameworks.pytorch.introspection import describe

    sys.path.insert(0, os.getcwd())
    try:
        module = import_module(module_name)
        network = describe(getattr(module, function))
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # the user's code may raise anything
        is_refused = isinstance(error, EvenhandError)
        raise UsageError(
            error.code if isinstance(error, EvenhandError) else ErrorCode.UNREADABLE,
            f"from={plain.short(source)}: {error if is_refused else own.reason(error)}",
        ) from error
    lines = [
        f'                "{name}": {shape},'.replace("None", "self.classes")
        for name, shape in network.shapes.items()
    ]
    values = {
        "source": source,
        "module": module_name,
        "function": function,
        "arguments": f"{network.argument}=spec.classes" if network.argument else "",
        "classes": network.classes,
        "only_classes": None if network.argument else network.classes,
        "channels": network.channels,
        "least_side": network.least_side,
        "only_side": network.only_side,
        "probe_side": network.only_side or max(64, network.least_side),
        "shapes": "\n".join(lines),
    }
    file = Path(str(module.__file__))
    is_here = "." not in module_name and file.parent == Path.cwd()
    return {name: str(value) for name, value in values.items()}, file if is_here else None


COMMAND = Command(
    "Write the folder of a model of your own, to begin with",
    New,
    run,
    bare=("kind", "name"),
)
