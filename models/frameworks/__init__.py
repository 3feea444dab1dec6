"""Frameworks and their variants by name.

Importing this package imports no framework; `open_framework` imports exactly one. A framework is a
folder of this package: `VARIANTS` (name -> `Variant`) in its `__init__.py`, and a class `Adapter`
in its `adapter.py`. Another distribution adds one as an entry point of the group
`evenhand.frameworks`.
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

from models.devices import CHOICES, CPU
from models.errors import ErrorCode, ModelError, suggestion

GROUP = "evenhand.frameworks"

if TYPE_CHECKING:
    from models.contract import Framework

# Choice of the algorithm of a convolution by a GPU's library. `profiled`: tries all and keeps the
# fastest. `heuristic`: by rules. `fixed`: by rules, and repeatable to the bit. On a CPU these three
# are the same; `onednn` and `plain` are that library's kernels and the framework's own, also for
# products.
CONV_ALGORITHMS = ("profiled", "heuristic", "fixed", "onednn", "plain")
# Of TensorFlow; `all` stands for these and every other one.
GRAPH_OPTIMIZERS = (
    "pruning",
    "constant_folding",
    "arithmetic_optimization",
    "dependency_optimization",
    "all",
)
# `float32`, `float64`: in full. `tf32`: float32 whose products a GPU may round. `bfloat16`: mixed;
# weights, loss and optimizer are float32, convolutions and products bfloat16.
TRAINING_PRECISIONS = ("float32", "tf32", "bfloat16")
PRECISIONS = (*TRAINING_PRECISIONS, "float64")
# FLOP/s of GPUs by a part of their names, without sparsity. Source: NVIDIA's data sheets.
VENDOR_PEAKS = {
    "H200": {"float32": 67e12, "tf32": 494.7e12, "bfloat16": 989.4e12},
    "H100 80GB HBM3": {"float32": 67e12, "tf32": 494.7e12, "bfloat16": 989.4e12},
    "H100 PCIe": {"float32": 51e12, "tf32": 378e12, "bfloat16": 756e12},
    "A100": {"float32": 19.5e12, "tf32": 156e12, "bfloat16": 312e12},
}


@dataclass(frozen=True)
class Variant:
    """Facts about a framework's variant, known before it is imported.

    architecture: the file that it reads in a model's folder; with a dot in it, a package with a
    module for each model. packages: its imports. imports_if_there: optional imports that nothing
    measured needs. looks_for: another framework that it imports later if that is installed.
    distributions: packages whose versions are recorded, and which a trained model needs.
    extra: the extra of this project that installs it; empty if none does. has_pipeline: whether it
    has a `Framework.read`. trouble: returns why it cannot run although its packages are installed;
    empty if it can. compiles: whether it traces or compiles its steps. by_xla: devices on which
    XLA compiles them. exported_from: of a runtime, which does not train, the framework that writes
    its files; empty for a framework. export_packages: imports of the process that writes them.
    in_int8: of a runtime, whether weights, and values between layers, are rounded to 8 bits.
    """

    architecture: str
    packages: tuple[str, ...]
    distributions: tuple[str, ...]
    imports_if_there: tuple[str, ...] = ()
    looks_for: tuple[str, ...] = ()
    extra: str = ""
    has_pipeline: bool = False
    trouble: Callable[[], str] | None = None
    compiles: bool = False
    by_xla: tuple[str, ...] = ()
    exported_from: str = ""
    export_packages: tuple[str, ...] = ()
    in_int8: bool = False


def available() -> tuple[str, ...]:
    """Return the names of all variants, installed or not.

    Returns:
        Names such as `pytorch+compile`, in the order of the packages.
    """
    return tuple(_variants())


def check(name: str) -> None:
    """Raise ModelError, with the nearest names, for a name that no framework has."""
    names = available()
    if name not in names:
        raise ModelError(ErrorCode.UNKNOWN_NAME, f"no framework {name!r}{suggestion(name, names)}")


def described(name: str) -> Variant:
    """Return the facts about a variant; its framework is not imported.

    Raises:
        ModelError: No framework has this name.
    """
    check(name)
    return _variants()[name][1]


def having(quality: Callable[[Variant], object]) -> tuple[str, ...]:
    """Return the names of variants with a quality.

    Args:
        quality: Predicate such as `lambda variant: variant.compiles`.
    """
    return tuple(name for name in available() if quality(described(name)))


def trained() -> tuple[str, ...]:
    """Return the names of the variants that train: all but runtimes."""
    return having(lambda variant: not variant.exported_from)


def architectures() -> tuple[str, ...]:
    """Return the files that frameworks read in a model's folder.

    Returns:
        Sorted names without suffix; one with a dot is a package.
    """
    return tuple(sorted({variant.architecture for _, variant in _variants().values()}))


def distributions() -> tuple[str, ...]:
    """Return the sorted names of the packages whose versions are recorded with a measurement."""
    variants = (variant for _, variant in _variants().values())
    return tuple(sorted({name for variant in variants for name in variant.distributions}))


def missing(name: str) -> str | None:
    """Return the reason why a variant cannot run, with what installs it, or None.

    Packages are looked up without an import.
    """
    variant = described(name)
    for package in (*variant.packages, *variant.export_packages):
        if find_spec(package) is None:
            ours = f"-c constraints.txt -e '.[{variant.extra}]'"
            what = ours if variant.extra else package
            return f"{name}: {package} is not installed: pip install {what}"
    trouble = variant.trouble() if variant.trouble else ""
    if variant.exported_from and not trouble:
        trouble = missing(variant.exported_from) or ""
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
    """Import and set up a framework, one a process. Raises ModelError for a missing package."""
    values = {"device": device, "precision": precision, "conv_algorithm": conv_algorithm}
    choices_of = {"device": CHOICES, "precision": PRECISIONS, "conv_algorithm": CONV_ALGORITHMS}
    for setting, value in values.items():
        if value not in choices_of[setting]:
            text = f"no {setting} {value!r}; have {', '.join(choices_of[setting])}"
            raise ModelError(ErrorCode.UNKNOWN_NAME, text)
    if reason := missing(name):
        raise ModelError(ErrorCode.NOT_INSTALLED, reason)
    adapter: type[Framework] = load(name, "adapter").Adapter
    return adapter(name, threads=threads, seed=seed, **values)


@dataclass(frozen=True)
class HideModules:
    """Python's finder of modules, to which some packages are not installed.

    Nothing of them is put in `sys.modules`, where Keras looks too.
    """

    packages: tuple[str, ...]
    finder: Any = PathFinder

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        return None if name in self.packages else self.finder.find_spec(name, path, target)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.finder, name)


@contextmanager
def hidden(*packages: str) -> Iterator[None]:
    """Hide packages that are not imported yet in this block."""
    finders = sys.meta_path[:]
    sys.meta_path[:] = [HideModules(packages, finder) for finder in finders]
    try:
        yield
    finally:
        sys.meta_path[:] = finders


@contextmanager
def lean_import(name: str) -> Iterator[None]:
    """Hide a framework's optional imports while it is opened in this block.

    MLflow brings packages for plots and tables, which Keras imports if they are installed: their
    memory and start would count for Keras. Packages that are imported already stay; those that the
    framework `looks_for` stay hidden after the block.
    """
    variant = described(name)
    hidden = [package for package in variant.imports_if_there if package not in sys.modules]
    # None in sys.modules means "not installed" to an import
    sys.modules.update(dict.fromkeys(hidden))  # type: ignore[arg-type]
    if variant.looks_for:
        sys.meta_path[:] = [
            HideModules(variant.looks_for) if finder is PathFinder else finder
            for finder in sys.meta_path
        ]
    try:
        yield
    finally:
        for package in hidden:
            del sys.modules[package]


def load(name: str, module: str) -> ModuleType:
    """Import a module of a framework.

    Args:
        name: Name of a variant.
        module: `adapter` or `workers`.
    """
    check(name)
    return import_module(f"{_variants()[name][0]}.{module}")


def packages() -> tuple[str, ...]:
    """Return the packages of frameworks: those here, and those of other distributions."""
    from importlib.metadata import entry_points

    ours = [
        f"{__name__}.{module.name}" for module in pkgutil.iter_modules(__path__) if module.ispkg
    ]
    others = {entry.value for entry in entry_points(group=GROUP)}
    return (*sorted(ours, reverse=True), *sorted(others))


@cache
def _variants() -> dict[str, tuple[str, Variant]]:
    """Return name -> (package, variant). A package's `__init__.py` imports no framework."""
    by_name: dict[str, tuple[str, Variant]] = {}
    for package in packages():
        try:
            variants: dict[str, Variant] = import_module(package).VARIANTS
        except (ImportError, AttributeError) as error:
            text = f"{package}, an entry point of {GROUP}, is no framework: {error}; uninstall it"
            raise ModelError(ErrorCode.UNREADABLE, text) from None
        if twice := by_name.keys() & variants.keys():
            name = min(twice)
            text = f"{package} and {by_name[name][0]} both have a framework {name!r}; uninstall one"
            raise ModelError(ErrorCode.DUPLICATE, text)
        by_name |= {name: (package, variant) for name, variant in variants.items()}
    return by_name


def environment_on(device: str, variables: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a process that inherits these variables and computes on a device.

    On a GPU JAX takes memory as it needs it, unless they state otherwise: processes share the GPU.
    """
    of_gpu = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"} if device != CPU else {}
    return {**of_gpu, **variables}
