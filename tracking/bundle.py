"""Code of this project as one package, which travels with a logged model.

An application that loads the model may have packages called `models` or `experiments`, and other
models of other versions.
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
    """Write the package into a folder. Return its name: `evenhand_` and a digest of the code."""
    files = [path for package in PACKAGES for path in (ROOT / package).rglob("*") if path.is_file()]
    code = sorted(path for path in files if "__pycache__" not in path.parts)
    sources = {path.relative_to(ROOT): path.read_bytes() for path in code}
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
        if path.suffix == ".py":  # absolute imports of our packages lead into the new one
            text = _IMPORT.sub(rf"\1from {name}.\2", content.decode("utf-8"))
            content = _BARE.sub(rf"\1from {name} import \2", text).encode("utf-8")
        target.write_bytes(content)
    return name
