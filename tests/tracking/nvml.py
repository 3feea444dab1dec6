"""NVIDIA GPUs whose answers a test writes: nvidia-ml-py on a driver library that is built here."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

SOURCE = Path(__file__).with_name("nvml_driver.c")
NAME = "libnvidia-ml.so.1"
# UUIDs of the driver's GPUs by index.
UUIDS = [f"GPU-{0xA0 + index:08x}-0000-0000-0000-000000000000" for index in range(4)]
ANSWERS = {
    "used_bytes": 2e9,
    "utilization_percent": 87,
    "celsius": 61,
    "milliwatts": 250_000,
    "limit_milliwatts": 700_000,
    "sm_megahertz": 1_410,
    "max_sm_megahertz": 1_980,
    "memory_megahertz": 2_619,
    "clock_limits": 0,
    "counter_seconds": 0.02,
}


@dataclass(frozen=True)
class Driver:
    """Environment of a process that sees the GPUs, and the file of their answers."""

    folder: Path

    @property
    def environment(self) -> dict[str, str]:
        return {"LD_LIBRARY_PATH": str(self.folder), "NVML_ANSWERS": str(self.folder / "answers")}

    def answers(self, of_cards: Mapping[str, float] | None = None, **of_all: float | None) -> None:
        """Set the answers from now on; None removes an answer.

        Args:
            of_cards: Answers of single GPUs, such as `1.celsius`.
            of_all: Answers of all GPUs; `cards`: their number.
        """
        answers = {**ANSWERS, **of_all, **(of_cards or {})}
        lines = [f"{name} {value:.17g}\n" for name, value in answers.items() if value is not None]
        new = self.folder / "answers.new"
        new.write_text("".join(lines))
        new.replace(self.folder / "answers")

    def loaded(self, command: Sequence[str]) -> list[str]:
        """Return `python -m MODULE …` as a command that loads the driver first."""
        _, _, module, *arguments = command
        load = f"import ctypes, runpy; ctypes.CDLL({str(self.folder / NAME)!r})"
        return [
            sys.executable,
            "-c",
            f"{load}; runpy.run_module({module!r}, run_name='__main__', alter_sys=True)",
            *arguments,
        ]

    def python(self, script: str, words: Iterable[str] = (), **environment: str) -> str:
        """Return the output of a script in a process that sees the GPUs."""
        done = subprocess.run(
            [sys.executable, "-c", script, *words],
            env={**os.environ, **self.environment, **environment},
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    built = tmp_path_factory.mktemp("nvml") / NAME
    options = ["-shared", "-fPIC", "-O1", f"-Wl,-soname,{built.name}"]
    subprocess.run(["cc", *options, "-o", str(built), str(SOURCE)], check=True)
    return built


@pytest.fixture
def driver(library: Path, tmp_path: Path) -> Driver:
    folder = tmp_path / "driver"
    folder.mkdir()
    (folder / library.name).symlink_to(library)
    driver = Driver(folder)
    driver.answers()
    return driver
