"""Commands: one module each, whose `COMMAND` declares its settings and its function.

A module imports what computes within its function, because help imports all of them.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from experiments.config.console import Display as Display
else:  # Rich, which help does not need
    Display = Any


@dataclass(frozen=True)
class Command:
    """Command with the name of its module.

    run: gets the settings, with `of_experiment` also those of the experiment as text, and the
    display; returns the exit code.
    bare: settings whose values may be the first words of the call, without their names.
    """

    title: str
    settings: type[Any]
    run: Callable[..., int]
    of_experiment: bool = False
    bare: tuple[str, ...] = ()


def available() -> list[str]:
    """Return the names of the commands: those of their modules, without a final underscore."""
    return sorted(module.name.rstrip("_") for module in pkgutil.iter_modules(__path__))


def load(name: str) -> Command:
    module = f"{name}_" if name == "import" else name
    command: Command = importlib.import_module(f"{__name__}.{module}").COMMAND
    return command
