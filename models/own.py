"""Users' models: a folder anywhere, with spec.py and a file for each architecture.

Each is the package `models.NAME` in this process and in all that it starts.
"""

from __future__ import annotations

import hashlib
import os
import re
import sys
import traceback
from importlib.machinery import ModuleSpec
from importlib.util import module_from_spec
from pathlib import Path

from models.errors import ErrorCode, ModelError

FOLDERS = "EVENHAND_MODELS"
OURS = Path(__file__).parent
ERROR_CHARACTERS = 500
_NAME = re.compile(r"[a-z][a-z0-9_]*")
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")


def add(folder: Path) -> str:
    """Add a model's folder and return its name. Raise ModelError for others and for taken names."""
    try:
        root = folder.expanduser().resolve()
        is_model = (root / "spec.py").is_file()
    except (OSError, RuntimeError, ValueError) as error:  # a loop of links, no permission, a NUL
        message = getattr(error, "strerror", None) or error
        text = f"model={folder} cannot be read: {message}; give the folder with spec.py in it"
        raise ModelError(ErrorCode.UNREADABLE, text) from None
    name = root.name
    others = folders()
    if not is_model:
        problem = ErrorCode.NOT_FOUND, "there is no spec.py; `evenhand new model NAME` writes one"
    elif not _NAME.fullmatch(name):
        text = f"{ascii(name)[:60]} is no name of a model; use a-z, 0-9 and _, as in my_net"
        problem = ErrorCode.INVALID_VALUE, text
    elif (OURS / name).exists() or (OURS / f"{name}.py").exists():
        problem = ErrorCode.EXISTS, f"evenhand has a '{name}' of its own; rename the folder"
    elif others.get(name, root) != root:
        problem = ErrorCode.DUPLICATE, f"{others[name]} is called so too; rename one of them"
    else:
        os.environ[FOLDERS] = os.pathsep.join(map(str, {**others, name: root}.values()))
        begin()
        return name
    raise ModelError(problem[0], f"model={folder}: {problem[1]}")


def folders() -> dict[str, Path]:
    """Return the folders of users' models.

    Returns:
        By name, those that this process or one before it has added.
    """
    paths = [Path(text) for text in os.environ.get(FOLDERS, "").split(os.pathsep) if text]
    return {path.name: path for path in paths}


def digest(name: str) -> str:
    """Return a digest of the sources of an added model: the version that was measured."""
    total = hashlib.sha256()
    for path in sources(name):
        try:
            total.update(path.name.encode() + path.read_bytes())
        except OSError as error:
            raise ModelError(
                ErrorCode.UNREADABLE, f"{path} cannot be read: {error.strerror}"
            ) from None
    return total.hexdigest()[:12]


def sources(name: str) -> list[Path]:
    """Return the Python files of an added model, sorted."""
    return sorted(path for path in folders()[name].glob("*.py") if path.is_file())


def labelled(name: str) -> str:
    """Return a model's name in runs.

    Returns:
        The name; of an added model with the digest of its files, because no commit has them.
    """
    return f"{name}@{digest(name)}" if name in folders() else name


def fault(name: str, error: Exception) -> str:
    """Return one line on an error in the code of an added model: file, line, message."""
    files, frames = set(map(str, sources(name))), traceback.extract_tb(error.__traceback__)
    places = [f"{at.filename}, line {at.lineno}: " for at in frames if at.filename in files]
    return f"{places[-1] if places else ''}{reason(error)}"


def reason(error: BaseException) -> str:
    """Return an error of another program's code, in one line that a terminal can show."""
    try:
        text = f"{type(error).__name__}: {error}"
    except Exception:  # its __str__ fails
        text = type(error).__name__
    text = text.partition("\n\nArguments received")[0]  # Keras adds a list of them
    text = " ".join(_COLOURS.sub("", text).split())
    characters = (at if at.isprintable() else ascii(at)[1:-1] for at in text[:ERROR_CHARACTERS])
    return "".join(characters) + "…" * (len(text) > ERROR_CHARACTERS)


def begin() -> None:
    """Make the package `models.NAME` of each added folder; its parent stays out of every search."""
    for name, folder in folders().items():
        full = f"{__package__}.{name}"
        if full not in sys.modules:
            spec = ModuleSpec(full, None, is_package=True)
            spec.submodule_search_locations = [str(folder)]
            sys.modules[full] = module_from_spec(spec)
            setattr(sys.modules[str(__package__)], name, sys.modules[full])
