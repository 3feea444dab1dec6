"""The files for compose, Kubernetes and systemd, as far as they can be judged without what they are for."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from compose_spec import PyCompose

from tests.conftest import ROOT

DEPLOY = ROOT / "deploy"
COMPOSE = (DEPLOY / "compose" / "compose.yaml").read_text()
KUBERNETES = (DEPLOY / "kubernetes" / "evenhand.yaml").read_text()
VERSIONS = ("1.25", "1.31", kubernetes_validate.latest_version())


def compose(text: str = COMPOSE) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(text)
    return found


def manifests(text: str = KUBERNETES) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all(text))


def judge_compose(text: str) -> None:
    """Raises ValueError for what the Compose Specification does not know, and for a name that nothing has."""
    PyCompose.from_yaml(text).validate()
    found = compose(text)
    for name, service in found["services"].items():
        named = {volume.partition(":")[0] for volume in service.get("volumes", []) if not volume.startswith(".")}
        for wanted, have in ((named, found["volumes"]), (set(service.get("depends_on", {})), found["services"])):
            if unknown := wanted - set(have):
                raise ValueError(f"{name}: nothing is called {unknown}")


def judge_kubernetes(text: str, version: str) -> None:
    for one in manifests(text):
        kubernetes_validate.validate(one, version, strict=True)


def judge_units(folder: Path, texts: dict[str, str]) -> list[str]:
    """What systemd says of units, with programs and users that are there."""
    for name, text in texts.items():
        runnable = text.replace("/opt/evenhand/.venv/bin/python", "/bin/true")
        (folder / name).write_text(runnable.replace("User=evenhand", "User=daemon").replace("Group=evenhand", "Group=daemon"))
    units = [str(folder / name) for name in texts]
    done = subprocess.run(["systemd-analyze", "verify", "--man=no", *units], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return [line for line in done.stderr.splitlines() if str(folder) in line]


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


def test_compose_follows_its_specification() -> None:
    judge_compose(COMPOSE)


@pytest.mark.parametrize("version", VERSIONS)
def test_manifests_follow_the_schemas_of_kubernetes(version: str) -> None:
    judge_kubernetes(KUBERNETES, version)


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("healthcheck:", "healthchek:"),
        ("retries: 20", "retries: often"),
        ("interval: 5s", "interval: soon"),
        ("condition: service_healthy", "condition: service_is_healthy"),
        ("limits: {cpus", "limit: {cpus"),
        ("internal: true", "intern: true"),
        ("secrets: [database_password]", "secrets: [database_pasword]"),
        ("networks: [inside, outside]", "networks: [inside, outsid]"),
        ("volumes: [artifacts:", "volumes: [artefacts:"),
        ("depends_on:\n      tracking", "depends_on:\n      traking"),
    ],
)
def test_a_mistake_in_compose_is_seen(right: str, wrong: str) -> None:
    assert right in COMPOSE
    with pytest.raises(ValueError, match=r"\w"):
        judge_compose(COMPOSE.replace(right, wrong, 1))


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("readinessProbe:", "readynessProbe:"),
        ("periodSeconds: 5", "periodSeconds: often"),
        ("containerPort: 5432", "containerport: 5432"),
        ("mountPath: /data", "mountpath: /data"),
        ("accessModes: [ReadWriteOnce]", "accessModes: ReadWriteOnce"),
        ("pathType: Prefix, ", ""),
        ("runAsUser: 1000", "runAsUsr: 1000"),
        ("matchLabels: {app: database}", "matchLabel: {app: database}"),
        ("policyTypes:", "policyType:"),
    ],
)
def test_a_mistake_in_a_manifest_is_seen(right: str, wrong: str) -> None:
    assert right in KUBERNETES
    with pytest.raises(kubernetes_validate.ValidationError):
        judge_kubernetes(KUBERNETES.replace(right, wrong, 1), VERSIONS[-1])


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="systemd-analyze is not installed")
def test_units_are_what_systemd_understands(tmp_path: Path) -> None:
    texts = {unit.name: unit.read_text() for unit in sorted((DEPLOY / "systemd").iterdir())}
    assert judge_units(tmp_path, texts) == []
    server = texts["evenhand-server.service"]
    for right, wrong in (("RestartSec=", "RestrtSec="), ("Type=forking", "Type=forkin"), ("MemoryMax=4G", "MemoryMax=much")):
        assert judge_units(tmp_path, {**texts, "evenhand-server.service": server.replace(right, wrong)}), wrong
