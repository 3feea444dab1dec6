"""The files for compose, Kubernetes, systemd and nginx, as far as they can be judged without what they are for."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.conftest import ROOT

DEPLOY = ROOT / "deploy"


def compose() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((DEPLOY / "compose" / "compose.yaml").read_text())
    return found


def manifests() -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((DEPLOY / "kubernetes" / "evenhand.yaml").read_text()))


def containers() -> Iterator[tuple[str, dict[str, Any]]]:
    for one in manifests():
        for container in one.get("spec", {}).get("template", {}).get("spec", {}).get("containers", []):
            yield one["metadata"]["name"], container


def test_every_service_has_a_check_a_bound_and_starts_again() -> None:
    for name, service in compose()["services"].items():
        assert service["healthcheck"]["test"], name
        assert set(service["deploy"]["resources"]["limits"]) == {"cpus", "memory"}, name
        assert service["restart"] == "unless-stopped", name
    for name, container in containers():
        assert {"readinessProbe", "livenessProbe"} <= set(container), name
        assert {"cpu", "memory"} <= set(container["resources"]["limits"]), name


def test_nothing_is_open_but_the_proxy_and_nothing_has_a_password_in_it() -> None:
    services = compose()["services"]
    assert [name for name, service in services.items() if "ports" in service] == ["proxy"]
    assert compose()["networks"]["inside"]["internal"] is True
    for name, service in services.items():
        for key, text in service.get("environment", {}).items():
            assert "PASSWORD" not in key or key.endswith("_FILE"), (name, key)
            assert "secret" not in str(text) or str(text).startswith("/run/secrets/"), (name, key)
    for name, container in containers():
        assert all("PASSWORD" not in one["name"] or one["name"].endswith("_FILE") for one in container.get("env", [])), name
    assert all(one["kind"] != "Secret" for one in manifests())


def test_images_are_pinned_and_kubernetes_parts_find_each_other() -> None:
    images = [service["image"] for service in compose()["services"].values() if "image" in service]
    images += [container["image"] for _, container in containers()]
    assert all(":" in image and not image.endswith(":latest") for image in images)
    labels = {one["spec"]["template"]["metadata"]["labels"]["app"] for one in manifests() if "template" in one["spec"]}
    for one in manifests():
        if one["kind"] == "Service":
            assert one["spec"]["selector"]["app"] in labels
    assert {one["kind"] for one in manifests()} == {"StatefulSet", "Deployment", "Service", "Ingress", "NetworkPolicy"}


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="systemd-analyze is not installed")
def test_units_are_what_systemd_understands(tmp_path: Path) -> None:
    for unit in sorted((DEPLOY / "systemd").iterdir()):
        text = unit.read_text().replace("/opt/evenhand/.venv/bin/python", "/bin/true").replace("User=evenhand", "User=daemon")
        (tmp_path / unit.name).write_text(text.replace("Group=evenhand", "Group=daemon"))
    units = [str(path) for path in sorted(tmp_path.iterdir())]
    done = subprocess.run(["systemd-analyze", "verify", "--man=no", *units], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    told = [line for line in done.stderr.splitlines() if str(tmp_path) in line]
    assert not told, told
