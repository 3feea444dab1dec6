"""Frameworks and their variants by name. Importing this package imports no framework; `open_framework` imports exactly one.

An adapter is a module here with a literal `NAMES` (name with variant -> the packages it needs), the `ARCHITECTURE` that it reads
in a model's folder, and a class `Adapter`.
"""

from __future__ import annotations

import ast
import shutil
from difflib import get_close_matches
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

from models.contract import Framework, ModelError

DEVICES = ("auto", "cpu", "cuda")
PRECISIONS = ("float32", "tf32", "bfloat16", "float64")
_INSTALLED_BY = {"jax": "pip install 'evenhand[jax]'"}


def available() -> tuple[str, ...]:
    """Names with variants: `pytorch`, `pytorch+compile`, `keras-jax`, … whether or not their packages are installed."""
    return tuple(_adapters())


def check(name: str) -> None:
    """Raises ModelError, with the nearest names, for a name that no adapter has."""
    names = available()
    if name not in names:
        near = get_close_matches(name, names, n=3, cutoff=0.5)
        hint = f"did you mean {' or '.join(near)}? " if near else ""
        raise ModelError(f"no framework {name!r}; {hint}have {', '.join(names)}")


def check_device(device: str) -> None:
    if device not in DEVICES:
        raise ModelError(f"no device {device!r}; have {', '.join(DEVICES)}")


def check_precision(precision: str) -> None:
    """`float32` and `float64`: in full. `tf32`: float32 whose products a GPU may round. `bfloat16`: mixed.

    Mixed is each framework's own: weights, loss and optimiser in float32, convolutions and products in bfloat16.
    """
    if precision not in PRECISIONS:
        raise ModelError(f"no precision {precision!r}; have {', '.join(PRECISIONS)}")


def missing(name: str) -> str | None:
    """Why `name` cannot run here and what installs it, or None. Looks for packages without importing them."""
    check(name)
    for package in _adapters()[name][1]:
        if find_spec(package) is None:
            return f"{name}: {package} is not installed: {_INSTALLED_BY.get(package, 'pip install evenhand')}"
    if name.endswith("+compile") and not any(map(shutil.which, ("c++", "g++", "clang++"))):
        return f"{name}: torch.compile needs a C++ compiler: install g++ or clang++"
    return None


def open_framework(name: str, *, device: str, threads: int, precision: str, seed: int) -> Framework:
    """The adapter of `name`, its framework imported and set up: one a process. Raises ModelError when anything is not there."""
    check_device(device)
    check_precision(precision)
    if reason := missing(name):
        raise ModelError(reason)
    module = import_module(f"models.frameworks.{_adapters()[name][0]}")
    framework: Framework = module.Adapter(name, device=device, threads=threads, precision=precision, seed=seed)
    return framework


def architecture(name: str) -> str:
    """The architecture file that a framework reads in a model's folder. Raises ModelError for one that is not there."""
    check(name)
    return _adapters()[name][2]


@cache
def _adapters() -> dict[str, tuple[str, tuple[str, ...], str]]:
    """Name -> (module, packages, architecture), read from the sources: importing them would import the frameworks."""
    found: dict[str, tuple[str, tuple[str, ...], str]] = {}
    for path in sorted(Path(__file__).parent.glob("*.py"), reverse=True):
        assigned = {
            node.targets[0].id: node.value
            for node in ast.parse(path.read_bytes()).body
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
        }
        if "NAMES" in assigned:
            architecture = ast.literal_eval(assigned["ARCHITECTURE"])
            names = ast.literal_eval(assigned["NAMES"])
            found |= {name: (path.stem, packages, architecture) for name, packages in names.items()}
    return found
