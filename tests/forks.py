"""Processes that begin with everything imported, as forks of one that has imported it: for tests that do not test the start.

Importing a framework takes seconds of a CPU, what these tests compute with it tenths. `python -m tests.forks ADDRESS PID` answers
at that address as long as process PID lives; for each framework that is asked for it keeps one process that has imported it, and
one for commands. All tests of a run share it.
"""

from __future__ import annotations

import atexit
import fcntl
import gc
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, BinaryIO, NoReturn

from models import frameworks, own

if TYPE_CHECKING:
    pass

ROOT = Path(__file__).resolve().parents[1]
INSTALLED = str(ROOT / "tests" / "toy_framework" / "installed")  # in the path of a server, and of who asks for it
# In the place of a framework: what `python -m experiments` imports.
COMMANDS = "commands"
MESSAGE_BYTES = 2**17  # a request is one message, with its environment
FILES = 3
# What every cell and proof imports beside its framework; nothing of MLflow, and nothing that a framework is not to find.
COMMON = ("numpy", "pyarrow.parquet", "PIL.Image", "models.parity", "experiments.cell.__main__", "experiments.cell.measure")
# What they import later, some of it a framework would look for: pyarrow brings pandas when it writes the first table.
_WORKLOADS = {"captioning": "check extract train captioner", "classification": "train classifier"}
_WORKLOADS |= {"distributed": "check measure"}
_WORKLOADS |= dict.fromkeys(("grid", "training_speed", "graphs", "convolutions"), "measure")
AFTERWARDS = (
    *("numpy.ma", "numpy.random", "pandas", "psutil", "pyarrow.compute", "sacrebleu", "tracking.sensors"),
    *(f"experiments.workloads.{name}.{module}" for name, modules in _WORKLOADS.items() for module in modules.split()),
)
# What PyTorch's first optimizer and our networks import.
LATER = {"torch": ("torch._dynamo", "torchvision")}
Work = Callable[[], None]
_address = ""  # in a server and its forks


class Fork:
    """A fork at work, as `subprocess.Popen` tells of it. It is killed when the process that asked for it ends.

    arguments: those of `python`, `-m MODULE …` or `-c CODE …`. files: its standard input, output and errors.
    """

    def __init__(
        self,
        address: str,
        framework: str,
        arguments: Sequence[str],
        environment: Mapping[str, str],
        folder: Path,
        files: Sequence[int],
    ) -> None:
        self.args = [sys.executable, *arguments]
        self.returncode: int | None = None
        self.stdin: IO[Any] | None = None
        self.stdout: BinaryIO | None = None
        asked = {"framework": framework, "arguments": list(arguments), "environment": dict(environment), "folder": str(folder)}
        self._line = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._line.connect(address)
        socket.send_fds(self._line, [json.dumps(asked).encode()], list(files))
        self.pid = self._heard()

    def poll(self) -> int | None:
        return self._told(0)

    def wait(self, timeout: float | None = None) -> int:
        code = self._told(timeout)
        if code is None:
            raise subprocess.TimeoutExpired(self.args, timeout or 0)
        return code

    def kill(self) -> None:
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)

    def _told(self, seconds: float | None) -> int | None:
        if self.returncode is None and select.select([self._line], [], [], seconds)[0]:
            self.returncode = self._heard()
            self._line.close()
        return self.returncode

    def _heard(self) -> int:
        answer = self._line.recv(32)
        assert answer, f"the process that was to be forked for {self.args[:3]} has ended"
        return int(answer)


class Subprocess:
    """The module `subprocess` as the gate, the contract suite, campaigns and workers use it: what they begin are forks."""

    def __init__(self, address: str, framework: str = "") -> None:
        self._address, self._framework = address, framework

    def __getattr__(self, name: str) -> Any:
        return getattr(subprocess, name)

    def Popen(  # noqa: N802
        self,
        command: Sequence[str],
        *,
        stdin: int,
        stdout: int | IO[Any],
        stderr: IO[Any],
        env: Mapping[str, str] = os.environ,
        text: bool = False,
        start_new_session: bool = True,
    ) -> Fork:
        """`python -P …`, a cell or one of its workers."""
        assert command[1] == "-P"
        assert stdin == subprocess.PIPE
        del start_new_session  # every fork has a group of its own
        given, ours = os.pipe()
        heard, said = os.pipe() if isinstance(stdout, int) else (-1, os.dup(stdout.fileno()))
        fork = Fork(self._address, self._framework, command[2:], env, Path.cwd(), (given, said, stderr.fileno()))
        _close(given, said)
        fork.stdin = os.fdopen(ours, "w" if text else "wb")
        fork.stdout = os.fdopen(heard, "rb") if heard >= 0 else None
        return fork

    def run(self, command: Sequence[str], *, cwd: Path, **given: Any) -> subprocess.CompletedProcess[str]:
        """`python -m models.parity FRAMEWORK …`, `python -m models.testing FRAMEWORK …`, or a module of one framework."""
        framework = self._framework or next(word for word in command if word in frameworks.available())
        if not possible(framework, "cpu", {}):
            return subprocess.run(command, cwd=cwd, **given)
        return run(self._address, framework, command[1:], cwd)


def run(
    address: str, framework: str, arguments: Sequence[str], folder: Path, seconds: float = 500
) -> subprocess.CompletedProcess[str]:
    """`python ARGUMENTS` to its end. Raises TimeoutExpired."""
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors, open(os.devnull) as nothing:
        files = nothing.fileno(), output.fileno(), errors.fileno()
        fork = Fork(address, framework, arguments, os.environ, folder, files)
        code = fork.wait(seconds)
        told = [os.pread(file.fileno(), os.fstat(file.fileno()).st_size, 0).decode(errors="replace") for file in (output, errors)]
    return subprocess.CompletedProcess(fork.args, code, *told)


def use(address: str) -> None:
    """From here on the cells and proofs that this process starts are forks."""
    from experiments.cell import child
    from experiments.run import cell_process
    from models import parity

    start = cell_process.CellProcess.start

    def begin(cell: cell_process.CellProcess, sensor_seconds: float = 0.0) -> None:
        spec = cell.spec
        fork = possible(spec.framework, spec.device, spec.settings) and not spec.environment
        child.subprocess = Subprocess(address, spec.framework) if fork else subprocess  # type: ignore[assignment]
        start(cell, sensor_seconds)

    cell_process.CellProcess.start = begin  # type: ignore[method-assign]
    parity.subprocess = Subprocess(address)


def _use_in_cell(framework: str) -> None:
    """From here on the workers that this cell starts on its own machine are forks."""
    from experiments.cell import child

    child.subprocess = Subprocess(_address, framework)  # type: ignore[assignment]


def possible(framework: str, device: str, settings: Mapping[str, object]) -> bool:
    """Whether a process of it needs nothing that is set before the framework is imported."""
    packages = frameworks.described(framework).packages
    # TensorFlow is told of its convolutions before the import, PyTorch's switch is read at each call
    usual = settings.get("conv_algorithm", "profiled") == "profiled" or packages == ("torch",)
    return device == "cpu" and usual and "jax" not in packages


@cache
def server() -> str:
    """The address of this test run's server, which the first who asks for it begins."""
    run = os.environ.get("PYTEST_XDIST_TESTRUNUID")
    address = os.path.join(tempfile.gettempdir(), f"forks-{run or os.getpid()}")
    with open(f"{address}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not os.path.exists(address):
            begin(address, os.getppid() if run else os.getpid())  # the workers' parent outlives them
    return address


def begin(address: str, keeper: int) -> None:
    """A server at this address, for as long as the process with this number lives."""
    from tests.conftest import PYTHONPATH, wait_for

    kept = {name: text for name, text in os.environ.items() if not name.startswith("MLFLOW_")}
    command = [sys.executable, "-P", "-m", "tests.forks", address, str(keeper)]
    subprocess.Popen(command, env={**kept, "PYTHONPATH": PYTHONPATH}, cwd=ROOT, start_new_session=True)
    wait_for(lambda: os.path.exists(address), 60)


# ---- the server


def serve(address: str, keeper: int) -> Work | None:
    """Hands every request to the process that has imported its framework. Returns in a fork, with its work; or at the end."""
    global _address
    _address = address
    listening, end = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET), os.pidfd_open(keeper)
    listening.bind(f"{address}.new")
    listening.listen()
    os.rename(f"{address}.new", address)
    imported: dict[tuple[str, ...], tuple[int, socket.socket]] = {}
    while end not in select.select([listening, end], [], [])[0]:
        line = listening.accept()[0]
        request, files = _request(line)
        if not request:
            continue
        framework = json.loads(request)["framework"]
        packages = _packages(framework)
        if packages in imported and os.waitpid(imported[packages][0], os.WNOHANG)[0]:
            del imported[packages]  # something has killed it
        if packages not in imported:
            ours, requests = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            pid = os.fork()
            if not pid:
                _close(end, *files, *(one.detach() for one in (listening, line, ours, *(kept for _, kept in imported.values()))))
                _import(framework)
                return fork_on_request(requests)
            requests.close()
            imported[packages] = pid, ours
        files = [line.detach(), *files]
        socket.send_fds(imported[packages][1], [request], files)
        _close(*files)  # where the import fails, who asked hears of it
    for path in (address, f"{address}.lock"):
        Path(path).unlink(missing_ok=True)
    return None


def _packages(framework: str) -> tuple[str, ...]:
    return (COMMANDS,) if framework == COMMANDS else frameworks.described(framework).packages


def _request(line: socket.socket) -> tuple[bytes, list[int]]:
    """What is asked for, and its files; nothing where who wanted to ask has ended meanwhile."""
    try:
        request, files, *_ = socket.recv_fds(line, MESSAGE_BYTES, FILES)
    except ConnectionError:
        return b"", []
    return request, files


def fork_on_request(requests: socket.socket) -> Work | None:
    """Says of each fork its number, and later how it ended; kills it when nobody listens any more."""
    at_work: dict[int, tuple[int, socket.socket]] = {}  # a fork's descriptor -> its number, the line to who asked for it
    while True:
        lines = {line.fileno(): pid for pid, line in at_work.values()}
        ready = set(select.select([requests, *at_work, *lines], [], [])[0])
        for file in at_work.keys() & ready:
            pid, line = at_work.pop(file)
            del lines[line.fileno()]
            ended = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
            _tell(line, ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status)
            os.waitpid(pid, 0)  # only now its number leads to nothing, as that of a child which nobody has waited for
            line.close()
            os.close(file)
        for file in lines.keys() & ready:
            os.kill(lines[file], signal.SIGKILL)
        if requests in ready:
            request, files, *_ = socket.recv_fds(requests, MESSAGE_BYTES, FILES + 1)
            if not request:
                break
            pid = os.fork()
            if not pid:
                _close(requests.detach(), files[0], *at_work, *(line.detach() for _, line in at_work.values()))
                return lambda: _run(files[1:], **json.loads(request))
            os.setpgid(pid, pid)  # before anybody knows the number, by which the group is stopped and killed
            line = socket.socket(fileno=files[0])
            at_work[os.pidfd_open(pid)] = pid, line
            _tell(line, pid)
            _close(*files[1:])
    for pid, _ in at_work.values():
        os.kill(pid, signal.SIGKILL)
    return None


def _import(framework: str) -> None:
    gc.disable()  # it would look through all that stays again and again
    if framework == COMMANDS:
        import_module("tests.warm_imports")
    else:
        _import_framework(framework)
    frameworks._variants.cache_clear()  # a process may have another path than this one
    gc.freeze()  # a fork that looks for garbage among all this would copy it
    gc.enable()


def _import_framework(framework: str) -> None:
    packages = frameworks.described(framework).packages
    os.environ |= {"KERAS_BACKEND": packages[-1], "KERAS_TORCH_DEVICE": "cpu", "TF_CPP_MIN_LOG_LEVEL": "3"}
    with frameworks.lean_import(framework):
        for name in (*packages, *(later for package in packages for later in LATER.get(package, ())), *COMMON):
            import_module(name)
    for name in AFTERWARDS:
        import_module(name)


def _tell(line: socket.socket, number: int) -> None:
    try:
        line.send(str(number).encode())
    except BrokenPipeError:
        pass


def _close(*files: int) -> None:
    for file in files:
        os.close(file)


def _run(files: Sequence[int], framework: str, arguments: list[str], environment: dict[str, str], folder: str) -> None:
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    sys.stdin, sys.stdout = (os.fdopen(number, mode, encoding="utf-8", closefd=False) for number, mode in enumerate("rw"))
    sys.stderr = os.fdopen(2, "w", buffering=1, errors="backslashreplace", closefd=False)
    imports = {name: text for name, text in os.environ.items() if name.startswith(("KERAS_", "TF_"))}
    if framework == COMMANDS:
        imports = import_module("tests.warm_imports").SET_BY_IMPORTS
        signal.signal(signal.SIGINT, signal.default_int_handler)  # a test run in the background has Ctrl-C ignored
    os.environ.clear()
    os.environ |= {**imports, **environment}
    os.chdir(folder)
    own.begin()  # which the import of `models` does
    asked = [entry for entry in environment.get("PYTHONPATH", "").split(os.pathsep) if entry]
    sys.path[:] = [entry for entry in sys.path if entry != INSTALLED or entry in asked]
    sys.path += [entry for entry in asked if entry not in sys.path]
    what, code, *given = arguments
    sys.argv = [what, *given]
    if (what, code) == ("-m", "experiments.cell"):
        _use_in_cell(framework)
    if what == "-c":
        exec(compile(code, "<string>", "exec"), {"__name__": "__main__"})
    else:
        package = hasattr(sys.modules.get(code), "__path__")
        sys.modules.pop(f"{code}.__main__" if package else code, None)
        runpy.run_module(code, run_name="__main__", alter_sys=True)


def _end(work: Work) -> NoReturn:
    """As an interpreter ends, but for taking everything apart that was imported: of a framework that takes a second."""
    try:
        work()
        code = 0
    except SystemExit as exit_:
        code = exit_.code if isinstance(exit_.code, int) else int(exit_.code is not None)
        if isinstance(exit_.code, str):
            print(exit_.code, file=sys.stderr)
    except BaseException:
        traceback.print_exc()
        code = 1
    threading._shutdown()
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(code)


if __name__ == "__main__":
    _end(serve(sys.argv[1], int(sys.argv[2])) or (lambda: None))
