"""Wheels made by tests, and programs that install only them."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from pathlib import Path

import pytest


def make_wheel(folder: Path, name: str, version: str, **files: str) -> Path:
    """Write a wheel with a module of the package's name and more files; return its path.

    Args:
        folder: Of the wheel.
        name: Of the package.
        version: Of the package, which the module has as `VERSION`.
        files: More files, suffix → text: `pth` is `NAME.pth`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    module = name.replace("-", "_")
    info = f"{module}-{version}.dist-info"
    content: Mapping[str, str] = {
        f"{module}.py": f"VERSION = {version!r}\n",
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
