"""Wheels made by tests, and programs that install only them."""

from __future__ import annotations

import importlib.metadata
import sys
import zipfile
from collections.abc import Sequence
from pathlib import Path

import pytest

from experiments.config import virtual_environments


def make_tiny(folder: Path, version: str, **files: str) -> Path:
    """Write a wheel of the package `tiny`, whose module has its version."""
    return make_wheel(folder, "tiny", version, py=f"VERSION = {version!r}\n", **files)


def make_wheel(
    folder: Path, name: str, version: str, requires: Sequence[str] = (), **files: str
) -> Path:
    """Write a wheel, and return its path.

    Args:
        folder: Of the wheel.
        name: Of the package.
        version: Of the package.
        requires: Requirements of the package.
        files: Suffix → text: `py` is `NAME.py`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    module = name.replace("-", "_")
    info = f"{module}-{version}.dist-info"
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    content = {
        **{f"{module}.{suffix}": text for suffix, text in files.items()},
        f"{info}/METADATA": metadata + "".join(f"Requires-Dist: {line}\n" for line in requires),
        f"{info}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    path = folder / f"{module}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as wheel:
        for file, text in content.items():
            wheel.writestr(file, text)
        record = "".join(f"{file},,\n" for file in (*content, f"{info}/RECORD"))
        wheel.writestr(f"{info}/RECORD", record)
    return path


def install_only_from(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let uv use the wheels of a folder, without any network."""
    for name in ("UV_NO_INDEX", "UV_OFFLINE", "UV_NO_CACHE"):
        monkeypatch.setenv(name, "1")
    monkeypatch.setenv("UV_FIND_LINKS", str(folder))


def packages_of_this(folder: Path) -> None:
    """Write wheels of the packages that a cell needs, which lead to those installed here."""
    installed = "".join(f"{path}\n" for path in sys.path if path.endswith("-packages"))
    for name in virtual_environments.OF_CELLS:
        files = {"pth": installed} if name == "numpy" else {}
        make_wheel(folder, name, importlib.metadata.version(name), **files)
