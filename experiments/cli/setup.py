"""Environments of frameworks: made by uv, checked on the device, and used in this folder."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

from experiments.cli.campaign import print_warnings
from experiments.cli.settings import Setup
from experiments.config import devices, interpreters, virtual_environments
from experiments.config.console import Display
from experiments.config.settings import require_writable
from experiments.datasets.files import replace_text
from experiments.workloads.command import environments
from models import frameworks, parity
from models.contract import ModelError
from models.devices import CPU
from models.parity import ParityRequest, Side
from tracking import provenance

NETWORK = "lenet"  # the smallest: it computes forwards, backwards and five steps


def make(settings: Setup, display: Display) -> bool:
    """Make and check the environments, each as soon as it is there, and write them down.

    Environments that are complete stay as they are.

    Returns:
        True if every framework computes on the device.

    Raises:
        UsageError: For an unknown framework, and for an environment that cannot be made.
    """
    device, cache = devices.present(settings.device), Path(settings.cache)
    for name in settings.frameworks:
        frameworks.check(name)
    require_writable(cache, "cache=DIR")
    require_writable(interpreters.SETUP.parent, "another working folder")
    failed = []
    for name in settings.frameworks:
        environment = virtual_environments.of_framework(name, device)
        display.begin(name)
        place = environments.make_virtual(
            environment, cache, lambda text: display.step(text, 0, None)
        )
        python = virtual_environments.python_of(place)
        display.step(f"check on {device}", 0, None)
        try:
            with tempfile.TemporaryDirectory() as folder:
                parity.compute_in_process(
                    [ParityRequest(NETWORK, device=device)],
                    Side(name, python=python),
                    Path(folder, name),
                    environment=devices.environment_on(device, os.environ),
                )
        except ModelError as error:
            failed.append(str(error))
            continue
        served = [name, *_variants_served(name)]
        _remember(served, python)
        versions = interpreters.packages(name, python)
        packages = [f"{package} {versions[package]}" for package in _distributions(name)]
        display.say(f"{', '.join(packages)}: computes on {_device_name(device)}")
        display.say(f"    for {', '.join(served)}: {python}")
    display.rest()
    print_warnings(failed, display)
    if len(failed) < len(settings.frameworks):
        display.say(f"campaigns in this folder use what {interpreters.SETUP} names")
    return not failed


def _distributions(name: str) -> tuple[str, ...]:
    return frameworks.described(name).distributions


def _variants_served(name: str) -> list[str]:
    """Return the other variants whose packages the environment of this one contains."""
    packages = set(_distributions(name))
    return [
        other
        for other in frameworks.available()
        if other != name and packages.issuperset(_distributions(other)) and _distributions(other)
    ]


def _remember(served: Sequence[str], python: str) -> None:
    """Write the interpreter of these frameworks beside those of earlier calls."""
    texts = interpreters.read_setup().get("pythons", "").split(",")
    before = interpreters.parse(list(filter(None, texts)))
    pythons = {**before, **dict.fromkeys(served, python)}
    lines = [f"{name}={path}" for name, path in pythons.items()]
    replace_text(interpreters.SETUP, json.dumps({"pythons": lines}, indent=1) + "\n")


def _device_name(device: str) -> str:
    return str(provenance.machine()["cpu"]) if device == CPU else ", ".join(provenance.gpus())
