"""Models of others: a folder anywhere, with spec.py and a file for each architecture, stands beside those of this package.

It is known by its own name (`models.NAME`) in this process and in all that it starts: cells, the parity gate, searches.
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

from models.errors import ModelError

FOLDERS = "EVENHAND_MODELS"
OURS = Path(__file__).parent
_NAME = re.compile(r"[a-z][a-z0-9_]*")
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")


def add(folder: Path) -> str:
    """Makes a model's folder known and returns its name. Raises ModelError for what is none, and for a name that is taken."""
    root = folder.expanduser().resolve()
    name = root.name
    if not (root / "spec.py").is_file():
        raise ModelError(f"model={folder}: there is no spec.py; `evenhand new model NAME` writes a folder to begin with")
    if not _NAME.fullmatch(name):
        raise ModelError(f"model={folder}: {ascii(name)[:60]} is no name of a model; small letters, digits and _, as in my_net")
    if (OURS / name).exists() or (OURS / f"{name}.py").exists():
        raise ModelError(f"model={folder}: evenhand has a '{name}' of its own; give the folder another name")
    known = folders()
    if known.get(name, root) != root:
        raise ModelError(f"model={folder}: {known[name]} is called so too; give one of them another name")
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
        total.update(path.name.encode() + path.read_bytes())
    return total.hexdigest()[:12]


def sources(name: str) -> list[Path]:
    """Its Python files, by their names."""
    return sorted(folders()[name].glob("*.py"))


def labelled(name: str) -> str:
    """A model's name as runs bear it: of one that was added with a digest of its sources, since no commit has them."""
    return f"{name}@{digest(name)}" if name in folders() else name


def fault(name: str, error: Exception) -> str:
    """Return one line on an error in the code of a model that was added: file, line, message."""
    files, frames = set(map(str, sources(name))), traceback.extract_tb(error.__traceback__)
    places = [f"{one.filename}, line {one.lineno}: " for one in frames if one.filename in files]
    text = str(error).partition("\n\nArguments received")[0]  # Keras adds a list of them
    text = " ".join(_COLOURS.sub("", text).split())
    return f"{places[-1] if places else ''}{type(error).__name__}: {text[:300]}"


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
