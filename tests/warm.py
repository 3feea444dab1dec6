"""Commands in processes that have imported already what `python -m experiments` imports: for tests that do not test the start.

Python's own fork server holds the imports; each command is a fresh fork of it with arguments, environment, folder and output of
its own. What the command itself starts (cells, servers) it starts as ever.
"""

from __future__ import annotations

import multiprocessing
import os
import runpy
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from functools import cache
from multiprocessing import forkserver
from pathlib import Path

import pytest

_ROOT = Path(__file__).resolve().parent.parent
_SERVER = multiprocessing.get_context("forkserver")
_SERVER.set_forkserver_preload(["tests.warm_imports"])


@cache
def _start() -> None:
    """Python's fork server takes its path from the environment alone."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [str(_ROOT), os.environ.get("PYTHONPATH")])))
        forkserver.ensure_running()


def run(
    command: Sequence[str], environment: Mapping[str, str], folder: Path, seconds: float = 300
) -> subprocess.CompletedProcess[str]:
    """`python -m MODULE ARGUMENTS` to its end. Raises TimeoutExpired."""
    _start()
    with tempfile.TemporaryDirectory() as place:
        output, errors = Path(place, "stdout"), Path(place, "stderr")
        process = _SERVER.Process(target=_run, args=(command[2:], dict(environment), folder, output, errors))
        process.start()
        process.join(seconds)
        if process.exitcode is None:
            process.kill()
            raise subprocess.TimeoutExpired(command, seconds)
        return subprocess.CompletedProcess(command, process.exitcode, output.read_text(), errors.read_text())


def _run(arguments: Sequence[str], environment: dict[str, str], folder: Path, *outputs: Path) -> None:
    from tests.warm_imports import SET_BY_IMPORTS

    module, *sys.argv[1:] = arguments
    os.environ.clear()
    os.environ.update({**SET_BY_IMPORTS, **environment})
    os.chdir(folder)
    sys.path += [entry for entry in environment.get("PYTHONPATH", "").split(os.pathsep) if entry and entry not in sys.path]
    for number, path in enumerate(outputs, start=1):
        os.dup2(os.open(path, os.O_CREAT | os.O_WRONLY | os.O_APPEND), number)
    sys.stdout, sys.stderr = (os.fdopen(number, "w", encoding="utf-8", closefd=False) for number in (1, 2))
    sys.modules.pop(f"{module}.__main__", None)
    runpy.run_module(module, run_name="__main__", alter_sys=True)
