"""Program as a shell sees it: commands to paste, its version, and the files of its faults.

Every call imports this module, so modules that few calls need are imported where they are used.
"""

from __future__ import annotations

import os
import shlex
import sys
import time
from pathlib import Path
from urllib.parse import urlsplit

FAULTS = Path(".evenhand/faults")
SERVER = "MLFLOW_TRACKING_URI"


def command(*arguments: str) -> str:
    """Return a call of this program as it was called: `evenhand`, or a module of this Python."""
    import shutil

    is_script = Path(sys.argv[0]).name == "evenhand"
    program = str(Path(sys.argv[0]).absolute()) if is_script else sys.executable
    name = Path(program).name.rstrip("0123456789.")
    if name and shutil.which(name) == program:
        program = name
    module = [] if is_script else ["-m", "experiments"]
    return shlex.join([program, *module, *arguments])


def from_anywhere(*arguments: str) -> str:
    """Return the same call for any folder and the same server, unless its URI has a password."""
    server = os.environ.get(SERVER, "")
    variable = f"{SERVER}={shlex.quote(server)} " if server and not has_password(server) else ""
    return f"cd {shlex.quote(os.getcwd())} && {variable}{command(*arguments)}"


def version() -> str:
    """Return the installed version, or that of pyproject.toml in a checkout."""
    from importlib import metadata

    try:
        return metadata.version("evenhand")
    except metadata.PackageNotFoundError:
        import tomllib

        text = (Path(__file__).resolve().parents[2] / "pyproject.toml").read_text(encoding="utf-8")
        return str(tomllib.loads(text)["project"]["version"])


def keep_traceback(error: BaseException) -> Path:
    """Write an error with its traceback to a file, or to standard error; return the path."""
    import traceback

    head = f"evenhand {version()}: {' '.join(sys.argv[1:2])}\n\n"
    text = head + "".join(traceback.format_exception(error))
    path = FAULTS.absolute() / f"evenhand-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}.log"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8", errors="backslashreplace")
    except OSError:
        sys.stderr.write(text)
        return Path("standard error")
    return path


def has_password(uri: str) -> bool:
    try:
        return urlsplit(uri).password is not None
    except ValueError:
        return True
