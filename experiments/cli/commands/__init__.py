"""Commands: one module each, whose `COMMAND` declares its settings and its function. No list is edited.

A module imports what computes within its function: help imports all of them.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Command:
    """A command of the name of its module.

    run: gets the settings, and as text those of the experiment, if `of_experiment`; returns the exit code.
    bare: the settings whose values may be the first words of the call, without their names.
    """

    title: str
    settings: type[Any]
    run: Callable[..., int]
    of_experiment: bool = False
    bare: tuple[str, ...] = ()


def available() -> list[str]:
    """Names of the commands; a module of the name of a keyword has an underscore behind it."""
    return sorted(module.name.rstrip("_") for module in pkgutil.iter_modules(__path__))


def load(name: str) -> Command:
    module = f"{name}_" if name == "import" else name
    command: Command = importlib.import_module(f"{__name__}.{module}").COMMAND
    return command
