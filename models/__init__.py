"""What is measured: models as folders, frameworks as adapters. Importing this package imports no framework."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from models import frameworks, own
from models.errors import ModelError, choices

if TYPE_CHECKING:
    from models.definition import ModelDefinition


def available() -> dict[str, tuple[str, ...]]:
    """Model -> the architectures it is written in. A model is a folder with a spec.py and one file an architecture."""
    architectures = frameworks.architectures()
    folders = sorted(spec.parent for spec in Path(__file__).parent.glob("*/spec.py")) + list(
        own.folders().values()
    )
    return {
        folder.name: tuple(name for name in architectures if _written(folder, name))
        for folder in folders
    }


def _written(folder: Path, architecture: str) -> bool:
    if "." in architecture:
        return find_spec(f"{architecture}.{folder.name}") is not None
    return (folder / f"{architecture}.py").is_file()


def load(model: str, architecture: str) -> ModuleType:
    """The module `models.<model>.<architecture>`, whose `build(spec)` makes the network; of a package, its `<model>`."""
    found = available()
    if architecture not in found.get(model, ()):
        have = [name for name, architectures in found.items() if architecture in architectures]
        raise ModelError(f"no {architecture} model {model!r}; {choices(model, have)}")
    return _module(
        model,
        f"{architecture}.{model}" if "." in architecture else f"{__name__}.{model}.{architecture}",
    )


def spec(model: str) -> ModelDefinition:
    """Return what `models/<model>/spec.py` states. NumPy only."""
    from models.definition import ModelDefinition

    found = available()
    if model not in found:
        raise ModelError(f"no model {model!r}; {choices(model, found)}")
    return ModelDefinition.of(_module(model, f"{__name__}.{model}.spec"))


def _module(model: str, name: str) -> ModuleType:
    """Import a module of a model; a fault in ours stays what it is.

    Raises ModelError for one of the user's that cannot be imported, ends the process or takes too long.
    """
    if model not in own.folders():
        return import_module(name)
    try:
        with own.time_limit(own.IMPORT_SECONDS):
            return import_module(name)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        file = f"{own.folders()[model]}/{name.rpartition('.')[2]}.py"
        raise ModelError(f"{file} cannot be imported: {own.reason(error)}") from error


own.begin()
