"""Models as folders, frameworks as adapters. Importing this package imports no framework."""

from __future__ import annotations

import hashlib
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from models import frameworks, own
from models.errors import ErrorCode, ModelError, suggestion

if TYPE_CHECKING:
    from models.definition import ModelDefinition

# Networks that measure the machine; no study has them.
MEASURING = ("products",)


def available() -> dict[str, tuple[str, ...]]:
    """Return the architectures of each model: a folder with a spec.py and a file for each."""
    architectures = frameworks.architectures()
    folders = sorted(spec.parent for spec in Path(__file__).parent.glob("*/spec.py"))
    return {
        folder.name: tuple(name for name in architectures if _exists(folder, name))
        for folder in (*folders, *own.folders().values())
    }


def _exists(folder: Path, architecture: str) -> bool:
    if "." in architecture:
        return find_spec(f"{architecture}.{folder.name}") is not None
    return (folder / f"{architecture}.py").is_file()


def load(model: str, architecture: str) -> ModuleType:
    """Return `models.<model>.<architecture>`, whose `build(spec)` makes the network.

    An architecture with a dot is a package with a module `<model>`.
    """
    models = available()
    is_measuring = model in MEASURING and _exists(Path(__file__).parent / model, architecture)
    if architecture not in models.get(model, ()) and not is_measuring:
        names = [name for name, architectures in models.items() if architecture in architectures]
        from models.named import why_not

        reason = why_not(model, architecture)
        end = f"; {reason}" if reason else suggestion(model, names)
        raise ModelError(ErrorCode.UNKNOWN_NAME, f"no {architecture} model {model!r}{end}")
    package = f"{architecture}.{model}" if "." in architecture else ""
    return _import(model, package or f"{__name__}.{model}.{architecture}")


def spec(model: str) -> ModelDefinition:
    """Return the definition in `models/<model>/spec.py`. Imports only NumPy."""
    from models.definition import ModelDefinition

    models = available()
    if model not in models:
        raise ModelError(ErrorCode.UNKNOWN_NAME, f"no model {model!r}{suggestion(model, models)}")
    return ModelDefinition.from_module(_import(model, f"{__name__}.{model}.spec"))


def code_digest() -> str:
    """Return a digest of the sources that decide what a model computes."""
    packages = [import_module(name) for name in (__name__, *frameworks.packages())]
    folders = [Path(place) for package in packages for place in package.__path__]
    files = [path for folder in folders for path in sorted(folder.rglob("*.py"))]
    files += [path for name in own.folders() for path in own.sources(name)]
    total = hashlib.sha256()
    for path in files:
        total.update(path.read_bytes())
    return total.hexdigest()


def _import(model: str, name: str) -> ModuleType:
    """Import a module of a model.

    Raise ModelError for a user's module that fails or ends the process.
    """
    if model not in own.folders():
        return import_module(name)
    try:
        return import_module(name)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        file = f"{own.folders()[model]}/{name.rpartition('.')[2]}.py"
        raise ModelError(
            ErrorCode.UNREADABLE, f"{file} cannot be imported: {own.reason(error)}"
        ) from error


own.begin()
