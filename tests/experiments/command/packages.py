"""Wheels made by tests, and programs that install only them."""

from __future__ import annotations

import importlib.metadata
import sys
import zipfile
from pathlib import Path

import pytest

from experiments.config import virtual_environments


def make_tiny(folder: Path, version: str, **files: str) -> Path:
    """Write a wheel of the package `tiny`, whose module has its version."""
    return make_wheel(folder, "tiny", version, py=f"VERSION = {version!r}\n", **files)


def make_wheel(folder: Path, name: str, version: str, **files: str) -> Path:
    """Write a wheel, and return its path.

    Args:
        folder: Of the wheel.
        name: Of the package.
        version: Of the package.
        files: Suffix → text: `py` is `NAME.py`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    module = name.replace("-", "_")
    info = f"{module}-{version}.dist-info"
    content = {
        **{f"{module}.{suffix}": text for suffix, text in files.items()},
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
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
    """Let pip and uv use the wheels of a folder, without any network."""
    for name in ("PIP_NO_INDEX", "UV_NO_INDEX", "UV_OFFLINE"):
        monkeypatch.setenv(name, "1")
    for name in ("PIP_FIND_LINKS", "UV_FIND_LINKS"):
        monkeypatch.setenv(name, str(folder))
    monkeypatch.setenv("UV_NO_CACHE", "1")


def packages_of_this(folder: Path) -> None:
    """Write wheels of the packages that a cell needs, which lead to those installed here."""
    installed = "".join(f"{path}\n" for path in sys.path if path.endswith("-packages"))
    for name in virtual_environments.OF_CELLS:
        files = {"pth": installed} if name == "numpy" else {}
        make_wheel(folder, name, importlib.metadata.version(name), **files)
