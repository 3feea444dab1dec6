"""What a framework says of itself before anything of it is imported; without NumPy, so that the command line starts at once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Variant:
    """What is known of a framework's variant before anything of it is imported.

    architecture: the file that it reads in a model's folder; with a dot in it, a package that has a module a model.
    packages: what it imports. imports_if_there: what it imports too where that is installed, and needs for nothing that is
    measured. looks_for: another framework that it imports where that is installed, later than it is opened, and does not need.
    distributions: whose versions are recorded, and which a model trained with it needs.
    has_plain_loop: whether `loops/plain.py` is the loop of its own tutorials.
    extra: the extra of this project that installs them, if they come with one.
    has_pipeline: whether `Framework.read` is its own.
    trouble: why it cannot run here although its packages are installed; empty if it can.
    compiles: whether it trains by programs that it traces or compiles.
    by_xla: the devices on which XLA is to compile these programs.
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
