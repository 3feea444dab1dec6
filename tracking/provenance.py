"""On what, and with what, something was measured: commit, packages, processor, accelerator; and the machine's fingerprint."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any

from tracking.cpus import cpus

PACKAGES = ("numpy", "mlflow", "scipy", "statsmodels", "sacrebleu")
# Environment variables that change how fast frameworks compute, or what.
VARIABLES = re.compile(
    r"(CUBLAS|CUDA|CUDNN|DNNL|GOMP|JAX|KERAS|KMP|MALLOC|MKL|NCCL|NVIDIA|OMP|ONEDNN|OPENBLAS|PYTORCH|TF|TORCH\w*|XLA)_\w+"
    r"|GLIBC_TUNABLES|LD_PRELOAD|NPROC"
)
# Of these those that do not: each cell is given its own, or they name folders, kinds of messages and programs.
IMMATERIAL = re.compile(
    r"CUDA_(VISIBLE_DEVICES|DEVICE_ORDER|HOME|PATH|CACHE_PATH|VERSION\w*)|KERAS_(BACKEND|TORCH_DEVICE|HOME)|NVIDIA_(?!TF32)\w+"
    r"|TF_(CONFIG|CPP_\w+)|(TORCH|KERAS)_HOME|XLA_PYTHON_CLIENT_(PREALLOCATE|MEM_FRACTION)|NCCL_(VERSION|DEBUG\w*)"
)
# The devices that a CUDA program sees.
VISIBLE = "CUDA_VISIBLE_DEVICES"
ROOT = Path(__file__).resolve().parent.parent


@cache
def machine() -> dict[str, Any]:
    """The hardware and system below the frameworks; the same dictionary on every call."""
    import psutil

    return {
        "host": platform.node(),
        "system": f"{platform.system()} {platform.release()}",
        "cpu": _cpu_name(),
        "cores": os.cpu_count() or 0,
        "memory_gib": round(psutil.virtual_memory().total / 2**30),
        "gpus": gpus(),
    }


def environment(
    framework: Mapping[str, str], of_frameworks: Sequence[str], threads: int
) -> dict[str, Any]:
    """What `environment.json` holds. framework: its versions and switches; threads: those it was given; see `packages`."""
    own = {**asdict(cpus()), "threads": threads}
    return {
        "framework": dict(framework),
        "packages": packages(of_frameworks),
        "machine": machine(),
        "cpus": own,
        "variables": variables(os.environ),
    }


def variables(of_process: Mapping[str, str], *, material: bool = False) -> dict[str, str]:
    """Return the environment variables of a process that frameworks and their libraries read.

    Args:
        material: whether only those that can change what is measured and that cells inherit as they are.
    """
    found = {name: text for name, text in sorted(of_process.items()) if VARIABLES.fullmatch(name)}
    return {
        name: text for name, text in found.items() if not (material and IMMATERIAL.fullmatch(name))
    }


def fingerprint(nodes: Sequence[str] = ()) -> str:
    """Eight hexadecimal digits, equal on the same machine: the tag `machine`. nodes: names of all where it is one of several."""
    return _digest({"machine": machine(), "nodes": list(nodes)} if nodes else machine())


@cache
def packages(of_frameworks: Sequence[str]) -> dict[str, str]:
    """Versions of what is installed and matters, without importing any of it. of_frameworks: distributions of all frameworks."""
    return {"python": platform.python_version(), **versions_of((*of_frameworks, *PACKAGES))}


def versions_of(names: Iterable[str]) -> dict[str, str]:
    """Versions of those packages that are installed."""
    import importlib.metadata  # a third of what --help may take

    found = {}
    for name in names:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def environment_digest(
    of_frameworks: Sequence[str], interpreters: Mapping[str, Mapping[str, str]] | None = None
) -> str:
    """Equal where machine, packages and inherited variables are: the tag `environment`, equal inside a block.

    interpreters: the packages of frameworks that other interpreters than this run, by framework.
    """
    inherited = variables(os.environ, material=True)
    own = {"variables": inherited} if inherited else {}
    others = {"interpreters": interpreters} if interpreters else {}
    return _digest({"machine": machine(), "packages": packages(of_frameworks), **own, **others})


def environment_tags(
    of_frameworks: Sequence[str], installed: Mapping[str, str] | None = None
) -> dict[str, str]:
    """What the two digests stand for, as tags that people can read and compare by: `cpu`, `gpu`, `version.torch`, …

    `inherited.NAME` is an environment variable that cells inherit.
    installed: the packages of another interpreter than this.
    """
    here = machine()
    hardware = {"cpu": f"{here['cores']} × {here['cpu']}", "gpu": ", ".join(here["gpus"])}
    found = packages(of_frameworks) if installed is None else installed
    versions = {f"version.{name}": version for name, version in found.items()}
    inherited = {
        f"inherited.{name}": text for name, text in variables(os.environ, material=True).items()
    }
    return {name: text for name, text in {**hardware, **versions, **inherited}.items() if text}


def commit() -> str:
    """The commit of this checkout; empty outside of git.

    Where tracked files differ from it, `+changes.` and a digest of how: two states of one commit are not the same code.
    """
    try:
        head, changes = (
            _git("rev-parse", "HEAD"),
            _git("diff", "--binary", "--no-ext-diff", "--no-textconv", "--no-color", "HEAD"),
        )
        return (
            f"{head}+changes.{hashlib.sha256(changes.encode()).hexdigest()[:8]}"
            if changes
            else head
        )
    except (OSError, subprocess.SubprocessError):
        return ""


@cache
def gpus() -> list[str]:
    """Names of the NVIDIA devices that CUDA sees, with their driver; empty where there is none."""
    from tracking.sensors import nvml

    return nvml.names()


def _git(*arguments: str) -> str:
    command = ["git", "-C", str(ROOT), *arguments]
    run = subprocess.run(
        command, capture_output=True, text=True, errors="replace", check=True, timeout=10
    )
    return run.stdout.strip()


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(
            line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")
        )
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:8]
