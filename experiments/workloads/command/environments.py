"""Virtual environments and git worktrees of levels, made before the first block."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from experiments.config import devices, virtual_environments
from experiments.config.race_file import Conditions
from experiments.config.settings import require_writable
from experiments.config.virtual_environments import VirtualEnvironment, python_of
from experiments.datasets.files import hold_lock, replace_text
from tracking import plain, provenance, whereabouts
from tracking.errors import ErrorCode, UsageError
from tracking.redaction import Redaction, secrets

# Key of a worktree's lock: cells of a cluster, which outlive the process that made it, use it.
OF_JOBS = "of_jobs"
ABANDONED_SECONDS = 7 * 24 * 3_600
# Written last into an environment: without it the creation was killed.
COMPLETE = "evenhand.json"
INSTALLATION_SECONDS, CHECKOUT_SECONDS = 3_600, 600
MAX_REASON_CHARACTERS = 300


@dataclass(frozen=True)
class Environment:
    """Environment of a level's processes.

    cwd: their working folder. variables: of their environment; None removes one.
    packages: versions that their `python` sees. commit: full hash, with a digest of uncommitted
    changes; None outside of a repository.
    """

    cwd: Path
    variables: Mapping[str, str | None]
    packages: Mapping[str, str]
    commit: str | None


def make(
    level: Conditions,
    *,
    cwd: Path,
    cache: Path,
    progress: Callable[[str], None],
    of_jobs: bool = False,
) -> Environment:
    """Return the environment of a level, made where it is missing.

    Args:
        level: Its conditions; paths in its requirements are relative to `cwd`.
        cwd: Working folder of the level's command; that of a commit is the same folder in it.
        cache: Folder of the project's cache.
        progress: Shows what is made.
        of_jobs: It is for jobs of a cluster, which may run when this process is dead.

    Raises:
        UsageError: If it cannot be made.
    """
    if level.commit is None:
        return _complete(level, cwd, cache, progress)
    label = f"commit={plain.short(level.commit)}"
    root, digest = _resolve(level.commit, label, cwd)
    _remove_worktrees(cwd, _is_over)
    progress(f"commit {level.commit}: {digest[:12]}")
    place, folder = _new_folder(root, cache, digest), cwd.resolve().relative_to(root)
    try:
        _check_out(digest, label, place, cwd, of_jobs=of_jobs)
        if not (place / folder).is_dir():
            raise UsageError(
                ErrorCode.NOT_FOUND, f"{label} has no folder {folder}; choose another cwd or commit"
            )
        return _complete(level, place / folder, cache, progress)
    except BaseException:
        _remove(place, cwd)
        raise


def make_virtual(
    environment: VirtualEnvironment, cache: Path, progress: Callable[[str], None]
) -> Path:
    """Return the folder of a virtual environment, made where it is missing or has been changed.

    Of two processes that need the same environment, one makes it and the other waits.

    Raises:
        UsageError: If it cannot be made.
    """
    place = environment.place(cache)
    with hold_lock(place.with_suffix(".lock")):
        if not _is_complete(place):
            shutil.rmtree(place, ignore_errors=True)
            content = ", ".join(environment.requirements) or f"python {environment.python}"
            with _reported(progress, _redaction(environment)(f"environment: {content}")):
                _install(environment, place)
            packages = virtual_environments.installed(python_of(place), _isolated())
            replace_text(place / COMPLETE, json.dumps(packages))
    return place


@contextmanager
def _reported(progress: Callable[[str], None], text: str) -> Iterator[None]:
    """Report every second how long this block takes: minutes, where gigabytes are downloaded."""
    over, began = threading.Event(), time.monotonic()

    def report() -> None:
        while not over.wait(1):
            progress(f"{text} ({time.monotonic() - began:.0f} s)")

    progress(text)
    thread = threading.Thread(target=report, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def remove_worktrees(cwd: Path) -> None:
    """Remove this process's worktrees of the repository at a folder, with all files in them."""
    ours = str(os.getpid())
    _remove_worktrees(
        cwd, lambda owner: owner.get("pid") == ours and whereabouts.is_alive(owner) is True
    )


def _complete(
    level: Conditions, cwd: Path, cache: Path, progress: Callable[[str], None]
) -> Environment:
    """Return the environment in a folder that exists."""
    commit = provenance.commit(cwd) or None
    if not level.requirements and level.python is None:
        packages: Mapping[str, str] = {}
        with suppress(UsageError):  # the command need not be Python
            packages = virtual_environments.installed(shutil.which("python") or "python3")
        return Environment(cwd, {}, packages, commit)
    environment = VirtualEnvironment(
        level.requirements, python=level.python or "", folder=cwd.resolve()
    )
    place = make_virtual(environment, cache, progress)
    variables = {
        "PATH": os.pathsep.join([str(place / "bin"), os.environ.get("PATH", os.defpath)]),
        "VIRTUAL_ENV": str(place),
        "PYTHONHOME": None,
    }
    seen = devices.changed(os.environ, variables)
    packages = virtual_environments.installed(python_of(place), seen)
    return Environment(cwd, variables, packages, commit)


def _is_complete(place: Path) -> bool:
    """Return whether an environment is as it was made: nobody installed more into it."""
    with suppress(OSError, ValueError, UsageError):
        made: object = json.loads((place / COMPLETE).read_text(encoding="utf-8"))
        return made == virtual_environments.installed(python_of(place), _isolated())
    return False


def _install(environment: VirtualEnvironment, place: Path) -> None:
    """Make a virtual environment with compiled bytecode."""
    python, interpreter = environment.python or sys.executable, python_of(place)
    _uv(environment, f"python={python}", "venv", "--no-project", "--python", python, str(place))
    if not environment.requirements:
        return
    lines = _redaction(environment)(", ".join(environment.requirements))
    label = f"requirements {plain.short(lines)}"
    arguments = [
        part
        for line in environment.requirements
        for part in (re.split(r"[ =]+", line, maxsplit=1) if line.startswith("-") else [line])
    ]
    with tempfile.TemporaryDirectory() as folder:
        if environment.preferred:  # uv keeps the versions of a list that exists, where it can
            names, lock = Path(folder) / "requirements.in", Path(folder) / "requirements.txt"
            names.write_text("\n".join(environment.requirements), encoding="utf-8")
            lock.write_text("\n".join(environment.preferred), encoding="utf-8")
            files = ("--output-file", str(lock), str(names))
            _uv(environment, label, "pip", "compile", "--python", interpreter, *files)
            arguments = ["--requirements", str(lock)]
        options = ("--python", interpreter, "--compile-bytecode")
        _uv(environment, label, "pip", "install", *options, *arguments)


def _uv(environment: VirtualEnvironment, label: str, *arguments: str) -> None:
    """Run uv.

    Raises:
        UsageError: If it fails, with the reason in its output.
    """
    try:
        done = subprocess.run(
            [sys.executable, "-P", "-m", "uv", *arguments],
            cwd=environment.folder,
            env=_isolated() | {"NO_COLOR": "1"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=INSTALLATION_SECONDS,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        output = str(error)
    else:
        if not done.returncode:
            return
        output = done.stderr or done.stdout
    reason = _reason(_redaction(environment)(output))
    raise UsageError(ErrorCode.NOT_INSTALLED, f"{label}: the environment cannot be made: {reason}")


def _redaction(environment: VirtualEnvironment) -> Redaction:
    return Redaction(secrets(os.environ, *environment.requirements))


def _isolated() -> dict[str, str]:
    """Return the variables of processes to which only the environment's packages are installed."""
    return devices.changed(os.environ, dict.fromkeys(("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")))


def _reason(output: str) -> str:
    """Return the errors in the output of uv in one line."""
    lines = [line.strip(" ×╰─▶│├") for line in output.splitlines()]
    errors = [line for line in lines if line.startswith(("ERROR:", "error:"))] or lines
    text = " ".join(filter(None, errors))
    return plain.line(text if len(text) <= MAX_REASON_CHARACTERS else text[:MAX_REASON_CHARACTERS])


def _resolve(commit: str, label: str, cwd: Path) -> tuple[Path, str]:
    """Return the folder of the repository at a working folder, and the full hash of a commit.

    Raises:
        UsageError: If there is no such commit or repository.
    """
    try:
        root = Path(provenance.git("rev-parse", "--show-toplevel", folder=cwd)).resolve()
    except (OSError, subprocess.SubprocessError) as error:
        raise UsageError(
            ErrorCode.NOT_FOUND,
            f"{label}: git in {cwd.resolve()}: {_of_git(error)}; "
            "set cwd to a folder of a repository, or leave commit out",
        ) from None
    try:
        target = ("--verify", "--quiet", "--end-of-options", f"{commit}^{{commit}}")
        return root, provenance.git("rev-parse", *target, folder=cwd).splitlines()[-1]
    except subprocess.SubprocessError:
        raise UsageError(
            ErrorCode.NOT_FOUND,
            f"{label} is not in {root}; name one of its tags, branches or hashes "
            "(git fetch --tags brings those of the server)",
        ) from None


def _check_out(digest: str, label: str, place: Path, cwd: Path, *, of_jobs: bool) -> None:
    """Make a worktree in an empty folder.

    Its lock names this process: whatever ends it, a later one recognizes the worktree.

    Raises:
        UsageError: If it cannot be checked out.
    """
    reason = json.dumps(whereabouts.process_tags() | ({OF_JOBS: "true"} if of_jobs else {}))
    add = ("worktree", "add", "--detach", "--lock", "--reason", reason, str(place), digest)
    try:
        provenance.git(*add, folder=cwd, timeout_seconds=CHECKOUT_SECONDS)
    except (OSError, subprocess.SubprocessError) as error:
        raise UsageError(
            ErrorCode.UNWRITABLE, f"{label} cannot be checked out in {place}: {_of_git(error)}"
        ) from None


def _is_over(owner: Mapping[str, str]) -> bool:
    """Return whether a worktree's process is dead, and its jobs, if it has any, are over too."""
    started = float(owner.get(whereabouts.HEARTBEAT, 0))
    is_recent = time.time() - started < ABANDONED_SECONDS
    return whereabouts.is_alive(owner) is False and not (OF_JOBS in owner and is_recent)


def _of_git(error: Exception) -> str:
    """Return the reason for which git failed."""
    text = getattr(error, "stderr", None) or str(error)
    return plain.short(text.strip().splitlines()[-1])


def _remove_worktrees(cwd: Path, is_over: Callable[[Mapping[str, str]], bool]) -> None:
    """Remove the worktrees whose owners are over, and git's records of removed folders."""
    with suppress(OSError, subprocess.SubprocessError):
        for path, owner in list(_worktrees(cwd)):
            if is_over(owner):
                _remove(path, cwd)
        provenance.git("worktree", "prune", folder=cwd)


def _new_folder(root: Path, cache: Path, digest: str) -> Path:
    """Return a new folder in the cache or, if that is inside the repository, in the user's cache.

    Inside the repository, programs would find its settings in the folders above.
    """
    parent = cache.resolve()
    if parent.is_relative_to(root):
        parent = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "evenhand"
    require_writable(parent / "worktrees", "cache=DIR")
    return Path(tempfile.mkdtemp(prefix=f"{root.name}-{digest[:12]}-", dir=parent / "worktrees"))


def _worktrees(cwd: Path) -> Iterator[tuple[Path, Mapping[str, str]]]:
    """Yield the worktrees of a repository that processes of this project made, and their owners."""
    path = Path()
    for line in provenance.git("worktree", "list", "--porcelain", folder=cwd).splitlines():
        name, _, text = line.partition(" ")
        if name == "worktree":
            path = Path(text)
        elif name == "locked":
            with suppress(ValueError):  # somebody else's reason
                owner = json.loads(json.loads(text) if text.startswith('"') else text)
                if isinstance(owner, dict) and whereabouts.STARTED in owner:
                    yield path, owner


def _remove(path: Path, cwd: Path) -> None:
    with suppress(OSError, subprocess.SubprocessError):
        force = ("--force", "--force")  # files in it may have changed, and it is locked
        provenance.git(
            "worktree", "remove", *force, str(path), folder=cwd, timeout_seconds=CHECKOUT_SECONDS
        )
    shutil.rmtree(path, ignore_errors=True)
    with suppress(OSError, subprocess.SubprocessError):  # where the folder was removed by hand
        provenance.git("worktree", "unlock", str(path), folder=cwd)
