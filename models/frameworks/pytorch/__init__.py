"""PyTorch, eager, compiled or with channels last. Importing this does not import PyTorch."""

from __future__ import annotations

import os
import shutil
from dataclasses import replace

from models.devices import ACCELERATORS, CPU
from models.frameworks import Variant

# Language, compilers and the variable that names one; on a GPU Triton needs another than Inductor.
COMPILERS = {
    CPU: ("C++", ("c++", "g++", "clang++"), "CXX"),
    **dict.fromkeys(ACCELERATORS, ("C", ("cc", "gcc", "clang"), "CC")),
}


def has_compiler(names: tuple[str, ...], variable: str) -> bool:
    """Return whether a compiler is installed.

    Args:
        names: Its usual names.
        variable: Variable of the environment that may name another.
    """
    return any(map(shutil.which, filter(None, (os.environ.get(variable), *names))))


def _no_compiler() -> str:
    """Return the compiler that is missing on any device; the adapter checks for its device's."""
    if any(has_compiler(names, variable) for _, names, variable in COMPILERS.values()):
        return ""
    return "torch.compile needs a C++ compiler, on a GPU a C compiler: install g++ or clang++"


_EAGER = Variant(
    architecture="pytorch",
    packages=("torch",),
    distributions=("torch", "torchvision"),
    extra="frameworks",
    has_pipeline=True,
)
VARIANTS = {
    "pytorch": _EAGER,
    "pytorch+compile": replace(_EAGER, compiles=True, trouble=_no_compiler),
    "pytorch+channels_last": _EAGER,
}
