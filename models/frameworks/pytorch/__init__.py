"""PyTorch, eager, compiled or with channels last in memory: everything of it. Importing this package does not import PyTorch."""

from __future__ import annotations

import shutil
from dataclasses import replace

from models.variant import Variant


def _no_compiler() -> str:
    if any(map(shutil.which, ("c++", "g++", "clang++"))):
        return ""
    return "torch.compile needs a C++ compiler: install g++ or clang++"


_EAGER = Variant(
    architecture="pytorch",
    packages=("torch",),
    distributions=("torch", "torchvision"),
    has_pipeline=True,
    autologging="pytorch",
)
VARIANTS = {
    "pytorch": replace(_EAGER, has_plain_loop=True),
    "pytorch+compile": replace(_EAGER, compiles=True, trouble=_no_compiler),
    "pytorch+channels_last": _EAGER,
}
