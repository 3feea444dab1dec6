"""This project's code as one package of its own name, which travels with a logged model.

An application that loads the model may have packages called `models` or `experiments`, and other models of other versions.
"""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("experiments", "models", "tracking")
_IMPORT = re.compile(rf"^(\s*)from ({'|'.join(PACKAGES)})\b", re.MULTILINE)
_BARE = re.compile(rf"^(\s*)import ({'|'.join(PACKAGES)})$", re.MULTILINE)


def write(folder: Path) -> str:
    """Writes the package into a folder and returns its name: `evenhand_` and a digest of the code."""
    sources = {path.relative_to(ROOT): path.read_bytes() for path in _files()}
    digest = hashlib.sha256(
        b"".join(str(path).encode() + text for path, text in sources.items())
    ).hexdigest()[:12]
    name = f"evenhand_{digest}"
    (folder / name).mkdir(parents=True)
    (folder / name / "__init__.py").write_text(
        '"""The code of evenhand with which a model was logged."""\n', encoding="utf-8"
    )
    for path, content in sources.items():
        target = folder / name / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(_renamed(content, name) if path.suffix == ".py" else content)
    return name


def _files() -> list[Path]:
    found = [path for package in PACKAGES for path in (ROOT / package).rglob("*") if path.is_file()]
    return sorted(path for path in found if "__pycache__" not in path.parts)


def _renamed(source: bytes, name: str) -> bytes:
    """Absolute imports of our packages lead into the new one; modules that are looked up by a text build on `__name__`."""
    text = _IMPORT.sub(rf"\1from {name}.\2", source.decode("utf-8"))
    return _BARE.sub(rf"\1from {name} import \2", text).encode("utf-8")
