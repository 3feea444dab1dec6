"""Facts about a framework's variant that need no import of the framework, nor of NumPy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Variant:
    """Facts about a framework's variant, known before it is imported.

    architecture: the file that it reads in a model's folder; with a dot in it, a package with a
    module for each model. packages: its imports. imports_if_there: optional imports that nothing
    measured needs. looks_for: another framework that it imports later if that is installed.
    distributions: packages whose versions are recorded, and which a trained model needs.
    has_plain_loop: whether `loops/plain.py` is the loop of its tutorials. extra: the extra of this
    project that installs it. has_pipeline: whether it has a `Framework.read`. trouble: returns why it
    cannot run although its packages are installed; empty if it can. compiles: whether it traces or
    compiles its steps. by_xla: devices on which XLA compiles them.
    """

    architecture: str
    packages: tuple[str, ...]
    distributions: tuple[str, ...]
    imports_if_there: tuple[str, ...] = ()
    looks_for: tuple[str, ...] = ()
    extra: str = ""
    has_pipeline: bool = False
    has_plain_loop: bool = False
    trouble: Callable[[], str] | None = None
    compiles: bool = False
    by_xla: tuple[str, ...] = ()
