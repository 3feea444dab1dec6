"""`python -m tests.sharing ADDRESS -m MODULE ARGUMENTS`: the module, with cells and proofs that are forks (tests/forks.py)."""

from __future__ import annotations

import runpy
import sys

from tests import forks

if __name__ == "__main__":
    _, address, _, module, *arguments = sys.argv
    sys.argv = [module, *arguments]
    forks.use(address)
    sys.modules.pop(f"{module}.__main__", None)
    runpy.run_module(module, run_name="__main__", alter_sys=True)
