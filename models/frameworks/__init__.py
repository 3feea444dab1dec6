"""Frameworks and their variants by name. Importing this package imports no framework.

A framework is a folder here: `VARIANTS` (name -> `Variant`) in its `__init__.py`, and a class
`Adapter` in its `adapter.py`. Such a folder may also be a package of another distribution, with an
entry point of the group `evenhand.frameworks`.
"""

from __future__ import annotations

import pkgutil
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from importlib.machinery import PathFinder
from importlib.util import find_spec
from types import ModuleType
from typing import TYPE_CHECKING, Any

from models.errors import ModelError, choices

GROUP = "evenhand.frameworks"

if TYPE_CHECKING:
    from models.contract import Framework
    from models.variant import Variant

DEVICES = ("auto", "cpu", "cuda")
# How a GPU's library chooses the algorithm of a convolution in a new shape. `profiled`: tries them
# and keeps the quickest. `heuristic`: by rules. `fixed`: by rules, and repeatable to the bit. On a
# CPU these are the same; there are `onednn` and `plain`: that library's kernels, or the framework's
# own, also for products.
CONV_ALGORITHMS = ("profiled", "heuristic", "fixed", "onednn", "plain")
# Of TensorFlow; `all` stands for these and the others.
GRAPH_OPTIMIZERS = (
    "pruning",
    "constant_folding",
    "arithmetic_optimization",
    "dependency_optimization",
    "all",
)
# The others for which TensorFlow's Python interface has a switch.
OTHER_GRAPH_OPTIMIZERS = (
    "layout_optimizer",
    "shape_optimization",
    "remapping",
    "loop_optimization",
    "function_optimization",
    "scoped_allocator_optimization",
    "pin_to_host_optimization",
    "implementation_selector",
)
# `float32`, `float64`: in full. `tf32`: float32 whose products a GPU may round. `bfloat16`: mixed:
# weights, loss and optimizer in float32, convolutions and products in bfloat16.
PRECISIONS = ("float32", "tf32", "bfloat16", "float64")


def available() -> tuple[str, ...]:
    """Return names with variants (`pytorch+compile`, `keras-jax`), installed or not."""
    return tuple(_variants())


def check(name: str) -> None:
    """Raise ModelError, with the nearest names, for an unknown name."""
    names = available()
    if name not in names:
        raise ModelError(f"no framework {name!r}; {choices(name, names)}")


def described(name: str) -> Variant:
    """Return the facts about a framework. Raise ModelError for an unknown name."""
    check(name)
    return _variants()[name][1]


def having(quality: Callable[[Variant], object]) -> tuple[str, ...]:
    """Return the names of the variants with some quality: `having(lambda at: at.has_pipeline)`."""
    return tuple(name for name in available() if quality(described(name)))


def architectures() -> tuple[str, ...]:
    """Return the names of architecture files in a model's folder, sorted."""
    return tuple(sorted({variant.architecture for _, variant in _variants().values()}))


def distributions() -> tuple[str, ...]:
    """Return the distributions whose versions each measurement records, sorted."""
    variants = (variant for _, variant in _variants().values())
    return tuple(sorted({name for variant in variants for name in variant.distributions}))


def missing(name: str) -> str | None:
    """Return why a framework cannot run here and what installs it, or None, without its import."""
    variant = described(name)
    for package in variant.packages:
        if find_spec(package) is None:
            target = f"'.[{variant.extra}]'" if variant.extra else "."
            return f"{name}: {package} is not installed: pip install -c constraints.txt -e {target}"
    trouble = variant.trouble() if variant.trouble else ""
    return f"{name}: {trouble}" if trouble else None


def open_framework(
    name: str,
    *,
    device: str,
    threads: int,
    precision: str,
    seed: int,
    conv_algorithm: str = "profiled",
) -> Framework:
    """Return the adapter of a framework, imported and set up: one in each process.

    Raise ModelError for an unknown setting or a missing framework.
    """
    for setting, value, values in (
        ("device", device, DEVICES),
        ("precision", precision, PRECISIONS),
        ("conv_algorithm", conv_algorithm, CONV_ALGORITHMS),
    ):
        if value not in values:
            raise ModelError(f"no {setting} {value!r}; have {', '.join(values)}")
    if reason := missing(name):
        raise ModelError(reason)
    module = import_module(f"{_variants()[name][0]}.adapter")
    framework: Framework = module.Adapter(
        name,
        device=device,
        threads=threads,
        precision=precision,
        seed=seed,
        conv_algorithm=conv_algorithm,
    )
    return framework


@dataclass(frozen=True)
class HideModules:
    """Python's finder of modules, to which some packages are not installed.

    They are not put in `sys.modules`, where Keras looks too.
    """

    packages: tuple[str, ...]
    finder: Any = PathFinder

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        return None if name in self.packages else self.finder.find_spec(name, path, target)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.finder, name)


@contextmanager
def lean_import(name: str) -> Iterator[None]:
    """Hide what a framework `imports_if_there` while it is opened in this block.

    MLflow brings packages for plots and tables, which Keras imports if they are installed: their
    memory and their start would be part of the measurement. Packages that it `looks_for` stay
    hidden after the block.
    """
    variant = described(name)
    hidden = [package for package in variant.imports_if_there if package not in sys.modules]
    # None means "not installed" to an import
    sys.modules.update(dict.fromkeys(hidden))  # type: ignore[arg-type]
    if variant.looks_for:
        hiding = HideModules(variant.looks_for)
        sys.meta_path[:] = [hiding if at is PathFinder else at for at in sys.meta_path]
    try:
        yield
    finally:
        for package in hidden:
            del sys.modules[package]


def loop(name: str, which: str) -> ModuleType:
    """Return a training loop of others (`plain`, `lightning`), from the folder of a framework."""
    check(name)
    return import_module(f"{_variants()[name][0]}.loops.{which}")


def workers(name: str) -> ModuleType:
    """Return the module `workers` of a framework, for training in several processes."""
    check(name)
    return import_module(f"{_variants()[name][0]}.workers")


def packages() -> tuple[str, ...]:
    """Return the packages of frameworks: ours, and those with an entry point."""
    from importlib.metadata import entry_points

    folders = [module.name for module in pkgutil.iter_modules(__path__) if module.ispkg]
    ours = [f"{__name__}.{folder}" for folder in sorted(folders, reverse=True)]
    return (*ours, *sorted({point.value for point in entry_points(group=GROUP)}))


@cache
def _variants() -> dict[str, tuple[str, Variant]]:
    """Return (package, facts) by name. A package's `__init__.py` imports no framework."""
    variants: dict[str, tuple[str, Variant]] = {}
    for package in packages():
        try:
            of_package: dict[str, Variant] = import_module(package).VARIANTS
        except (ImportError, AttributeError) as error:
            raise ModelError(
                f"{package}, an entry point of {GROUP}, is no framework: {error}; mend or "
                "uninstall it"
            ) from None
        for name, variant in of_package.items():
            if name in variants:
                raise ModelError(
                    f"{package} has a framework {name!r}, and so has {variants[name][0]}; rename "
                    "or uninstall one"
                )
            variants[name] = package, variant
    return variants


def environment_on(device: str, variables: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a process that inherits these variables and uses a device.

    On a GPU JAX takes memory as it needs it, by default: two processes share the GPU.
    """
    of_gpu = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"} if device == "cuda" else {}
    return {**of_gpu, **variables}
