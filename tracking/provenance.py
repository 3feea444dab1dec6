"""Provenance of a measurement: commit, packages, processor, accelerator, machine.

Imports within the package are relative here, since MLflow's plugin loads this module under another
name (`evenhand_run_context.py`).
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any

from .cpus import cpus

PACKAGES = ("numpy", "mlflow", "scipy", "statsmodels", "sacrebleu")
# Packages of which each release is made for one release of the other.
RELEASED_TOGETHER = (frozenset({"torch", "torchvision"}), frozenset({"jax", "jaxlib"}))
# Environment variables that change the speed or the results of frameworks. TF_CLI_… and so on are
# Terraform's.
VARIABLES = re.compile(
    r"(CUBLAS|CUDA|CUDNN|DNNL|GOMP|JAX|KERAS|KMP|MALLOC|MKL|NCCL|NVIDIA|OMP|ONEDNN|OPENBLAS"
    r"|PYTORCH|TF(?!_(?:CLI|TOKEN|VAR)_)|TORCH\w*|XLA)_\w+"
    r"|GLIBC_TUNABLES|LD_PRELOAD|NPROC"
)
# Exceptions: set for each cell, or names of folders, messages and programs.
IMMATERIAL = re.compile(
    r"CUDA_(VISIBLE_DEVICES|DEVICE_ORDER|HOME|PATH|CACHE_PATH|VERSION\w*)"
    r"|KERAS_(BACKEND|TORCH_DEVICE|HOME)|NVIDIA_(?!TF32)\w+|TF_(CONFIG|CPP_\w+)|TORCH_HOME"
    r"|XLA_PYTHON_CLIENT_(PREALLOCATE|MEM_FRACTION)|NCCL_(VERSION|DEBUG\w*)"
)
ROOT = Path(__file__).resolve().parent.parent
# Ends of lines that look like secrets, and passwords in addresses: every user reads tags.
SECRET_TEXT = re.compile(
    r"((?:token|passw(?:or)?d|secret|credentials?|(?:api|access|private|secret)_?key)[\"']?"
    r"\s*[:=]\s*)\S.*|(://[^/\s:@]*:)[^@\s/]+(?=@)",
    re.IGNORECASE,
)
_DIFF = ("diff", "--no-ext-diff", "--no-textconv", "--no-color")


@cache
def machine() -> dict[str, Any]:
    """Return the hardware and the system; the same dictionary on each call."""
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
    """Return the content of `environment.json`.

    Args:
        framework: Its versions and switches.
        of_frameworks: Distributions of all frameworks.
        threads: Number of threads of the framework.
    """
    return {
        "framework": dict(framework),
        "packages": packages(of_frameworks),
        "machine": machine(),
        "cpus": {**asdict(cpus()), "threads": threads},
        "variables": variables(os.environ),
    }


def variables(of_process: Mapping[str, str], *, material: bool = False) -> dict[str, str]:
    """Return the environment variables of a process that frameworks and their libraries read.

    Args:
        material: Return only those that can change measurements and that cells inherit unchanged.
    """
    from .redaction import SECRET  # its expressions take a tenth of what --help may take

    return {
        name: text
        for name, text in sorted(of_process.items())
        if VARIABLES.fullmatch(name)
        and not SECRET.search(name)
        and not (material and IMMATERIAL.fullmatch(name))
    }


def fingerprint(nodes: Sequence[str] = ()) -> str:
    """Return the tag `machine`: eight hexadecimal digits, equal on the same machine.

    Args:
        nodes: Names of all machines, if several measure together.
    """
    return _digest({"machine": machine(), "nodes": list(nodes)} if nodes else machine())


@cache
def packages(of_frameworks: Sequence[str]) -> dict[str, str]:
    """Return versions of installed packages that matter, without importing any of them."""
    return {"python": platform.python_version(), **versions_of((*of_frameworks, *PACKAGES))}


def versions_of(names: Iterable[str]) -> dict[str, str]:
    import importlib.metadata  # a third of what --help may take

    versions = {}
    for name in names:
        with suppress(importlib.metadata.PackageNotFoundError):
            versions[name] = importlib.metadata.version(name)
    return versions


def environment_digest(
    of_frameworks: Sequence[str], interpreters: Mapping[str, Mapping[str, str]] | None = None
) -> str:
    """Return the tag `environment`, equal if machine, packages and inherited variables are.

    Args:
        interpreters: Packages of frameworks that other interpreters run, by framework.
    """
    inherited = variables(os.environ, material=True)
    parts: dict[str, Any] = {"machine": machine(), "packages": packages(of_frameworks)}
    if inherited:
        parts["variables"] = inherited
    if interpreters:
        parts["interpreters"] = interpreters
    return _digest(parts)


def environment_tags(
    of_frameworks: Sequence[str], installed: Mapping[str, str] | None = None
) -> dict[str, str]:
    """Return readable tags of the two digests: `cpu`, `gpu`, `version.torch`, `inherited.NAME`, ….

    Args:
        installed: Packages of another interpreter than this.
    """
    hardware = machine()
    tags = {
        "cpu": f"{hardware['cores']} × {hardware['cpu']}",
        "gpu": ", ".join(hardware["gpus"]),
        "machine.system": hardware["system"],
    }
    versions = packages(of_frameworks) if installed is None else installed
    tags |= {f"version.{name}": version for name, version in versions.items()}
    inherited = variables(os.environ, material=True)
    tags |= {f"inherited.{name}": text for name, text in inherited.items()}
    return {name: text for name, text in tags.items() if text}


def commit(folder: Path | None = None) -> str:
    """Return the commit of a checkout, by default this one; empty outside of git.

    If tracked files differ from it, `+changes.` and a digest of the differences follow.
    """
    try:
        head = git("rev-parse", "HEAD", folder=folder)
        differences = git(*_DIFF, "--binary", "HEAD", folder=folder)
    except (OSError, subprocess.SubprocessError):
        return ""
    digest = hashlib.sha256(differences.encode()).hexdigest()[:8]
    return f"{head}+changes.{digest}" if differences else head


def changes(folder: Path | None = None) -> str:
    """Return how tracked files of a checkout, by default this one, differ from the commit.

    What follows a name such as `password` or `token` is masked. Outside of git it is empty.
    """
    try:
        text = git(*_DIFF, "HEAD", folder=folder)
        return SECRET_TEXT.sub(lambda match: f"{match[1] or match[2]}***", text)
    except (OSError, subprocess.SubprocessError):
        return ""


@cache
def gpus() -> list[str]:
    """Return the names of CUDA's devices; in a user's process, a helper reads them."""
    from . import nvml

    return nvml.names() if __package__ == "tracking" else nvml.names_from_helper()


def git(*arguments: str, folder: Path | None = None, timeout_seconds: float = 10) -> str:
    """Return what git prints in a folder, by default in this checkout.

    Raises:
        OSError: if there is no git.
        subprocess.SubprocessError: if it fails.
    """
    command = ["git", "-C", str(folder or ROOT), *arguments]
    run = subprocess.run(
        command,
        capture_output=True,
        text=True,
        errors="replace",
        check=True,
        timeout=timeout_seconds,
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
