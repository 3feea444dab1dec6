"""One framework a process: tests that need one start a child and read what it wrote.

`python -m tests.models.children PACKAGE …` imports the packages and then runs each call that standard input names in a fork of
itself: importing a framework takes seconds, computing with it in these tests tenths.
"""

from __future__ import annotations

import json
import os
import runpy
import signal
import subprocess
import sys
import tempfile
from functools import cache
from importlib import import_module
from pathlib import Path

from models.frameworks import described

ROOT = Path(__file__).parents[2]


def run_python(*arguments: str, timeout: int = 500) -> subprocess.CompletedProcess[str]:
    """`python …` from the project's root; fails with the child's own words."""
    return _checked(subprocess.run([sys.executable, *arguments], cwd=ROOT, capture_output=True, text=True, timeout=timeout))


def run_in(framework: str, *arguments: str, timeout: int = 500) -> subprocess.CompletedProcess[str]:
    """The same in a process in which nothing has happened but the import of the framework's packages."""
    with tempfile.TemporaryDirectory() as folder:
        output, errors = Path(folder, "output"), Path(folder, "errors")
        imported = _imported(described(framework).packages)
        assert imported.stdin
        assert imported.stdout
        call = {"arguments": arguments, "outputs": [str(output), str(errors)]}
        call |= {"seconds": timeout, "environment": dict(os.environ)}
        imported.stdin.write(json.dumps(call) + "\n")
        imported.stdin.flush()
        code = int(imported.stdout.readline())
        return _checked(subprocess.CompletedProcess(arguments, code, output.read_text(), errors.read_text()))


def _checked(done: subprocess.CompletedProcess[str]) -> subprocess.CompletedProcess[str]:
    assert done.returncode == 0, done.stderr[-3000:]
    return done


@cache
def _imported(packages: tuple[str, ...]) -> subprocess.Popen[str]:
    """It ends with this process, whose pipe it reads."""
    backend = {"KERAS_BACKEND": packages[-1], "KERAS_TORCH_DEVICE": "cpu", "TF_CPP_MIN_LOG_LEVEL": "3"}
    command = [sys.executable, "-m", "tests.models.children", *packages]
    return subprocess.Popen(command, cwd=ROOT, env=os.environ | backend, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def main(packages: list[str]) -> None:
    """Returns in no process but a fork, once its call is done."""
    later = ("torch._dynamo", "torchvision") if "torch" in packages else ()  # which its first optimizer and our networks import
    for name in (*packages, *later):
        import_module(name)
    imports = {name: text for name, text in os.environ.items() if name.startswith(("KERAS_", "TF_"))}
    while line := sys.stdin.readline():
        call = json.loads(line)
        child = os.fork()
        if not child:
            os.environ.clear()
            os.environ.update(imports | call["environment"])
            signal.alarm(call["seconds"])
            return _run(call["arguments"], call["outputs"])
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)
    return None


def _run(arguments: list[str], outputs: list[str]) -> None:
    for number, path in enumerate(outputs, start=1):
        os.dup2(os.open(path, os.O_CREAT | os.O_WRONLY), number)
    what, code, *given = arguments
    sys.argv = [what, *given]
    if what == "-c":
        exec(compile(code, "<string>", "exec"), {"__name__": "__main__"})
    else:
        runpy.run_module(code, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main(sys.argv[1:])
