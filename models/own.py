"""Models of others: a folder anywhere, with spec.py and a file for each architecture, stands beside those of this package.

It is known by its own name (`models.NAME`) in this process and in all that it starts: cells, the parity gate, searches.
"""

from __future__ import annotations

import hashlib
import os
import re
import signal
import sys
import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.machinery import ModuleSpec
from importlib.util import module_from_spec
from pathlib import Path

from models.errors import ModelError

FOLDERS = "EVENHAND_MODELS"
OURS = Path(__file__).parent
IMPORT_SECONDS = 60.0
AGAIN_SECONDS = 5.0  # code that catches every exception is interrupted once more
ERROR_CHARACTERS = 500
_NAME = re.compile(r"[a-z][a-z0-9_]*")
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")


def add(folder: Path) -> str:
    """Makes a model's folder known and returns its name. Raises ModelError for what is none, and for a name that is taken."""
    try:
        root = folder.expanduser().resolve()
        is_model = (root / "spec.py").is_file()
    except (OSError, RuntimeError, ValueError) as error:  # a loop of links, no permission, a NUL
        reason = getattr(error, "strerror", None) or error
        raise ModelError(
            f"model={folder} cannot be read: {reason}; give the folder with spec.py in it"
        ) from None
    name = root.name
    if not is_model:
        raise ModelError(
            f"model={folder}: there is no spec.py; `evenhand new model NAME` writes a folder to begin with"
        )
    if not _NAME.fullmatch(name):
        raise ModelError(
            f"model={folder}: {ascii(name)[:60]} is no name of a model; small letters, digits and _, as in my_net"
        )
    if (OURS / name).exists() or (OURS / f"{name}.py").exists():
        raise ModelError(
            f"model={folder}: evenhand has a '{name}' of its own; give the folder another name"
        )
    known = folders()
    if known.get(name, root) != root:
        raise ModelError(
            f"model={folder}: {known[name]} is called so too; give one of them another name"
        )
    os.environ[FOLDERS] = os.pathsep.join(map(str, {**known, name: root}.values()))
    _make(name, root)
    return name


def folders() -> dict[str, Path]:
    """Name → folder of the models that were added, here or by the process that started this one."""
    paths = [Path(text) for text in os.environ.get(FOLDERS, "").split(os.pathsep) if text]
    return {path.name: path for path in paths}


def digest(name: str) -> str:
    """Of the sources of a model that was added: which version of it was measured."""
    total = hashlib.sha256()
    for path in sources(name):
        try:
            total.update(path.name.encode() + path.read_bytes())
        except OSError as error:
            raise ModelError(f"{path} cannot be read: {error.strerror}") from None
    return total.hexdigest()[:12]


def sources(name: str) -> list[Path]:
    """Its Python files, by their names."""
    return sorted(path for path in folders()[name].glob("*.py") if path.is_file())


def labelled(name: str) -> str:
    """A model's name as runs bear it: of one that was added with a digest of its sources, since no commit has them."""
    return f"{name}@{digest(name)}" if name in folders() else name


def fault(name: str, error: Exception) -> str:
    """Return one line on an error in the code of a model that was added: file, line, message."""
    files, frames = set(map(str, sources(name))), traceback.extract_tb(error.__traceback__)
    places = [f"{one.filename}, line {one.lineno}: " for one in frames if one.filename in files]
    return f"{places[-1] if places else ''}{reason(error)}"


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Raise TimeoutError in the code within, which is the user's, once it has run so long; in the main thread only.

    Ctrl-C interrupts it as ever.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(*_: object) -> None:
        raise TimeoutError(f"it takes longer than {seconds:g} s")

    before = signal.signal(signal.SIGALRM, interrupt)
    left = signal.setitimer(signal.ITIMER_REAL, seconds, AGAIN_SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, *left)
        signal.signal(signal.SIGALRM, before)


def reason(error: BaseException) -> str:
    """Return what the user's code raised, in one line that a terminal can show."""
    try:
        text = f"{type(error).__name__}: {error}"
    except Exception:  # its own __str__ fails
        text = type(error).__name__
    text = text.partition("\n\nArguments received")[0]  # Keras adds a list of them
    text = " ".join(_COLOURS.sub("", text).split())
    shown = "".join(
        one if one.isprintable() else ascii(one)[1:-1] for one in text[:ERROR_CHARACTERS]
    )
    return shown if len(text) <= ERROR_CHARACTERS else f"{shown}…"


def begin() -> None:
    """Makes those known that the process before knew."""
    for name, folder in folders().items():
        _make(name, folder)


def _make(name: str, folder: Path) -> None:
    """The package `models.NAME`, whose modules lie in the folder; its parent folder stays out of every search."""
    full = f"{__package__}.{name}"
    if full not in sys.modules:
        described = ModuleSpec(full, None, is_package=True)
        described.submodule_search_locations = [str(folder)]
        sys.modules[full] = module_from_spec(described)
        setattr(sys.modules[str(__package__)], name, sys.modules[full])
