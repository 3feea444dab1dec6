"""What this process is to a shell: commands that can be pasted as they are printed, its version, where its faults are kept.

Every call imports this module, so that what few calls need is imported where it is used.
"""

from __future__ import annotations

import os
import shlex
import sys
import time
from pathlib import Path
from urllib.parse import urlsplit

COMPLETING = "_EVENHAND_COMPLETE"
FAULTS = Path(".evenhand/faults")
SERVER = "MLFLOW_TRACKING_URI"
# What a server may ask for, and no terminal should show.
SECRETS = ("MLFLOW_TRACKING_USERNAME", "MLFLOW_TRACKING_PASSWORD", "MLFLOW_TRACKING_TOKEN")


def command(*arguments: str) -> str:
    """A call of this program, the way it was called itself: as `evenhand`, or as a module of this Python."""
    called = Path(sys.argv[0])
    program = (
        [_shortest(str(called.absolute()))]
        if called.name == "evenhand"
        else [_shortest(sys.executable), "-m", "experiments"]
    )
    return shlex.join([*program, *arguments])


def from_anywhere(*arguments: str) -> str:
    """The same from any folder and for the same server; `unsaid` names what it needs besides."""
    server = os.environ.get(SERVER, "")
    said = f"{SERVER}={shlex.quote(server)} " if server and not has_password(server) else ""
    return f"cd {shlex.quote(os.getcwd())} && {said}{command(*arguments)}"


def unsaid() -> str:
    """What a command needs besides, in brackets: variables that are set here and hold what should not be printed."""
    server = [SERVER] if has_password(os.environ.get(SERVER, "")) else []
    names = [*server, *(name for name in SECRETS if name in os.environ)]
    return f" (with {', '.join(names)} as set here)" if names else ""


def version() -> str:
    """The installed version; of a checkout that is not installed, what its pyproject.toml says."""
    from importlib.metadata import PackageNotFoundError
    from importlib.metadata import version as installed

    try:
        return installed("evenhand")
    except PackageNotFoundError:
        import tomllib

        text = (Path(__file__).resolve().parents[2] / "pyproject.toml").read_text(encoding="utf-8")
        return str(tomllib.loads(text)["project"]["version"])


def keep_traceback(error: BaseException) -> Path:
    """Writes an error with its traceback into a file of its own, in the working folder where that can be; returns its path."""
    import tempfile
    import traceback

    text = "".join(
        [f"evenhand {version()}: {' '.join(sys.argv[1:2])}\n\n", *traceback.format_exception(error)]
    )
    for folder in (FAULTS, Path(tempfile.gettempdir())):
        path = folder.absolute() / f"evenhand-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}.log"
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8", errors="backslashreplace")
        except OSError:
            continue
        return path
    sys.stderr.write(text)
    return Path("standard error")


def _shortest(program: str) -> str:
    """A program's bare name, where a shell would find this very one by it."""
    import shutil

    name = Path(program).name.rstrip("0123456789.") or program
    return name if shutil.which(name) == program else program


def has_password(uri: str) -> bool:
    try:
        return urlsplit(uri).password is not None
    except ValueError:
        return True
