"""A fork is told of as `subprocess` tells of a process that `python …` began, and does not outlive who asked for it."""

from __future__ import annotations

import json
import os
import select
import socket
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests import forks
from tests.conftest import wait_for

TELLS = """
import json, os, sys
own = os.environ.get("MINE"), "PYTEST_VERSION" in os.environ
print(json.dumps([sys.argv, os.getcwd(), *own, sys.stdin.readline()]), flush=True)
print("to say", file=sys.stderr)
sys.exit(7)
"""
WAITS = "import sys, time; sys.stdout.write('begun\\n'); sys.stdout.flush(); time.sleep(600)"


def begun(
    code: str, *arguments: str, folder: Path, address: str = "", framework: str = "pytorch", **environment: str
) -> tuple[forks.Fork, int, Path]:
    """A fork, the end of a pipe that it reads, and the file with what it says."""
    theirs, ours = os.pipe()
    said = folder / "said"
    with said.open("wb") as file:
        fork = forks.Fork(
            address or forks.server(),
            framework,
            ["-c", code, *arguments],
            environment,
            folder,
            (theirs, file.fileno(), file.fileno()),
        )
    os.close(theirs)
    return fork, ours, said


def gone(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def test_it_has_arguments_folder_environment_input_and_an_end_of_its_own(tmp_path: Path) -> None:
    fork, line, said = begun(TELLS, "one", "two", folder=tmp_path, MINE="yes")
    assert fork.poll() is None  # it waits for its input
    with pytest.raises(subprocess.TimeoutExpired):
        fork.wait(0.01)
    os.write(line, b"given\n")
    assert fork.wait(60) == fork.poll() == 7
    told, error = said.read_text().splitlines()
    assert json.loads(told) == [["-c", "one", "two"], str(tmp_path), "yes", False, "given\n"]
    assert error == "to say"
    os.close(line)


def test_it_has_the_framework_and_nothing_of_the_campaign() -> None:
    asked = "import sys; print(*({'torch', 'tensorflow', 'keras', 'mlflow', 'sqlalchemy', 'pytest'} & sys.modules.keys()))"
    done = forks.run(forks.server(), "pytorch", ["-c", asked], Path.cwd())
    assert (done.returncode, done.stdout.split(), done.stderr) == (0, ["torch"], "")


def test_how_a_signal_ends_it_is_told(tmp_path: Path) -> None:
    fork, line, _ = begun(WAITS, folder=tmp_path)
    fork.kill()
    assert fork.wait(60) == -9
    os.close(line)


def test_it_ends_with_the_process_that_asked_for_it() -> None:
    asks = f"""
import sys
from pathlib import Path
from tests import forks
fork = forks.Fork(sys.argv[1], "pytorch", ["-c", {WAITS!r}], {{}}, Path.cwd(), (0, 1, 2))
sys.stdout.write(f"{{fork.pid}}\\n")
sys.stdout.flush()
sys.stdin.read()
"""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "cwd": forks.ROOT}
    asking = subprocess.Popen([sys.executable, "-c", asks, forks.server()], **pipes)
    told = {asking.stdout.readline().strip() for _ in range(2)}
    (fork,) = (psutil.Process(int(word)) for word in told - {"begun"})
    assert not gone(fork.pid)
    asking.kill()
    asking.communicate()
    wait_for(lambda: gone(fork.pid), 60)


def test_the_server_ends_with_the_process_that_it_serves(tmp_path: Path) -> None:
    asks = """
import os, psutil, sys
from pathlib import Path
from tests import forks
address = sys.argv[1]
forks.begin(address, os.getpid())
done = forks.run(address, "toy", ["-c", "import os; print(os.getppid())"], Path.cwd())
print(done.stdout, psutil.Process(int(done.stdout)).ppid())
"""
    done = subprocess.run(
        [sys.executable, "-c", asks, str(tmp_path / "server")], cwd=forks.ROOT, capture_output=True, text=True, check=True
    )
    for pid in map(int, done.stdout.split()):
        wait_for(lambda pid=pid: gone(pid), 60)


def test_who_ends_before_asking_and_a_killed_framework_leave_the_server_at_work(tmp_path: Path) -> None:
    address = str(tmp_path / "server")  # others use that of the run
    forks.begin(address, os.getpid())
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as line:
        line.connect(address)
    fork, line_of_fork, _ = begun(WAITS, folder=tmp_path, address=address, framework="toy")
    keeper = psutil.Process(fork.pid).parent()
    assert keeper is not None
    fork.kill()
    fork.wait(60)
    end = os.pidfd_open(keeper.pid)
    keeper.kill()
    assert select.select([end], [], [], 60)[0], "with all of its threads"
    again = forks.run(address, "toy", ["-c", "print('at work')"], tmp_path)
    assert again.stdout == "at work\n"
    os.close(line_of_fork)
    os.close(end)
