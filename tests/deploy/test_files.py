"""The files for compose, Kubernetes and systemd, as far as they can be judged without what they are for."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from compose_spec import PyCompose
from docker.utils.build import exclude_paths

from tests.conftest import ROOT

DEPLOY = ROOT / "deploy"
COMPOSE = (DEPLOY / "compose" / "compose.yaml").read_text()
KUBERNETES = (DEPLOY / "kubernetes" / "evenhand.yaml").read_text()
VERSIONS = ("1.25", "1.31", kubernetes_validate.latest_version())


def interpolated(text: str) -> str:
    """Fill in the defaults of variables, as Compose does before it looks at a file."""
    return re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", text)


def compose(text: str = COMPOSE) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(interpolated(text))
    return found


def manifests(text: str = KUBERNETES) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all(text))


def judge_compose(text: str) -> None:
    """Raises ValueError for what the Compose Specification does not know, and for a name that nothing has."""
    PyCompose.from_yaml(interpolated(text)).validate()
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


def pods() -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Each manifest that starts pods, and its template of one."""
    for one in manifests():
        spec = one.get("spec", {}).get("jobTemplate", one).get("spec", {})
        if "template" in spec:
            yield one, spec["template"]


def containers() -> Iterator[tuple[str, dict[str, Any]]]:
    for one, template in pods():
        for container in template["spec"]["containers"]:
            yield one["metadata"]["name"], container


def test_every_service_has_a_check_a_bound_and_starts_again() -> None:
    for name, service in compose()["services"].items():
        assert service["healthcheck"]["test"], name
        assert set(service["deploy"]["resources"]["limits"]) == {"cpus", "memory"}, name
        assert service["restart"] == "unless-stopped", name
    for name, container in containers():
        assert {"readinessProbe", "livenessProbe"} <= set(container) or name == "backup", name
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
    assert all(re.search(r":[a-z]?[0-9][^:/]*$", image) for image in images)
    labels = {template["metadata"]["labels"]["app"] for _, template in pods()}
    for one in manifests():
        if one["kind"] == "Service":
            assert one["spec"]["selector"]["app"] in labels
    kinds = {"StatefulSet", "Deployment", "Service", "Ingress", "NetworkPolicy", "CronJob", "PersistentVolumeClaim"}
    kinds |= {"Namespace"}
    assert {one["kind"] for one in manifests()} == kinds
    assert not any("minio" in image for image in images), "its images are no longer published"


def test_checks_write_and_read_and_a_dead_database_restarts_nothing() -> None:
    assert "/ready" in str(compose()["services"]["tracking"]["healthcheck"]["test"])
    (tracking,) = (container for name, container in containers() if name == "tracking")
    probes = {name: tracking[f"{name}Probe"]["httpGet"] for name in ("startup", "readiness", "liveness")}
    assert {name: probe["path"] for name, probe in probes.items()} == {
        "startup": "/ready",
        "readiness": "/ready",
        "liveness": "/health",
    }
    # the name that the server takes requests for, beside its public one
    assert all(probe["httpHeaders"] == [{"name": "Host", "value": "127.0.0.1:5000"}] for probe in probes.values())


def test_pods_run_without_root_and_only_who_must_can_speak_with_another() -> None:
    for one, template in pods():
        assert template["spec"]["securityContext"]["runAsNonRoot"] is True, one["metadata"]["name"]
        for container in template["spec"]["containers"]:
            assert container["securityContext"]["allowPrivilegeEscalation"] is False
            assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    policies = {one["metadata"]["name"]: one["spec"] for one in manifests() if one["kind"] == "NetworkPolicy"}
    assert policies.pop("nobody") == {"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}
    chosen = [one["podSelector"] for one in policies.values()]
    named = {one.get("matchLabels", {}).get("app") for one in chosen} | {
        app for one in chosen for rule in one.get("matchExpressions", []) for app in rule["values"]
    }
    assert named - {None} == {template["metadata"]["labels"]["app"] for _, template in pods()}
    (ingress,) = (one["spec"] for one in manifests() if one["kind"] == "Ingress")
    assert ingress["ingressClassName"]


def test_containers_and_pods_have_no_rights_but_those_they_need() -> None:
    """Root without DAC_OVERRIDE cannot read a secret of the user who drew it."""
    needed = {
        "database": {"CHOWN", "DAC_OVERRIDE", "FOWNER", "SETGID", "SETUID"},
        "store": {"DAC_OVERRIDE"},
        "tracking": {"DAC_OVERRIDE", "SETGID", "SETUID"},
        "backup": {"DAC_OVERRIDE"},
        "proxy": {"CHOWN", "DAC_OVERRIDE", "NET_BIND_SERVICE", "SETGID", "SETUID"},
    }
    services = compose()["services"]
    assert {name: set(service["cap_add"]) for name, service in services.items()} == needed
    for name, service in services.items():
        assert service["cap_drop"] == ["ALL"], name
        assert service["security_opt"] == ["no-new-privileges:true"], name
        assert service["read_only"] is True, name
    for name, container in containers():
        assert container["securityContext"]["readOnlyRootFilesystem"] is True, name
    for one, template in pods():
        assert template["spec"]["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        allowed = {"secret", "emptyDir", "persistentVolumeClaim"}  # by the standard `restricted`
        for volume in template["spec"]["volumes"]:
            assert set(volume) - {"name"} <= allowed, one["metadata"]["name"]
    first = manifests()[0]
    assert first["kind"] == "Namespace"
    assert first["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "restricted"


WITH_CAPABILITIES = shutil.which("setpriv") if os.getuid() == 0 else None


def confined(service: str) -> list[str]:
    """Begin a command as root with the capabilities of a service of compose."""
    added = ",".join(f"+{name.lower()}" for name in compose()["services"][service]["cap_add"])
    return ["setpriv", f"--bounding-set=-all,{added}", "--inh-caps=-all", "--no-new-privs"]


@pytest.mark.skipif(not WITH_CAPABILITIES, reason="capabilities are dropped as root, by setpriv")
def test_the_tracking_container_reads_secrets_and_gives_root_up_with_its_capabilities(
    tmp_path: Path,
) -> None:
    (tmp_path / "secret").write_text("drawn by another user")
    (tmp_path / "secret").chmod(0o600)
    os.chown(tmp_path / "secret", 12_345, 12_345)
    script = (
        "import os, pwd; from deploy.compose import serve\n"
        "pwd.getpwnam = lambda _: pwd.getpwuid(65534)  # the container's user is not here\n"
        "print(serve.secret('secret')); serve.drop_root(); print(os.getresuid())"
    )
    command = [*confined("tracking"), sys.executable, "-c", script]
    own = {"SECRETS": str(tmp_path), "PYTHONPATH": str(ROOT), "PATH": os.environ["PATH"]}
    done = subprocess.run(command, env=own, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["drawn by another user", "(65534, 65534, 65534)"]
    command[1] = command[1].replace("+dac_override,", "")
    refused = subprocess.run(command, env=own, capture_output=True, text=True, timeout=60)
    assert "Permission denied" in refused.stderr


def test_there_are_copies_every_day_with_an_end_to_them() -> None:
    service = compose()["services"]["backup"]
    assert service["profiles"] == ["backup"]
    assert int(service["environment"]["KEEP"]) > 1
    (job,) = (one["spec"] for one in manifests() if one["kind"] == "CronJob")
    assert job["concurrencyPolicy"] == "Forbid"
    timer = (DEPLOY / "systemd" / "evenhand-backup.service").read_text()
    assert "--keep 14" in timer


def test_the_builder_gets_what_the_image_is_made_of_and_no_secret(tmp_path: Path) -> None:
    kept = {"constraints.txt", "deploy/readiness.py", "deploy/compose/serve.py", "deploy/native/folder.py", "deploy/guard/app.py"}
    kept_out = {
        ".git/config",
        ".venv/bin/python",
        ".evenhand/accounts/alice.env",
        "mlruns/0/meta.yaml",
        "evenhand-server/secrets.json",
        "deploy/compose/secrets/admin_password",
        "deploy/compose/certificates/server.key",
        "deploy/compose/.env",
        "deploy/compose/__pycache__/serve.pyc",
        "deploy/native/evenhand-server/secrets.json",
        "models/lenet/spec.py",
    }
    for name in kept | kept_out:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    sent = exclude_paths(str(tmp_path), (ROOT / ".dockerignore").read_text().splitlines())
    assert {name for name in sent if (tmp_path / name).is_file()} == kept


def test_compose_follows_its_specification() -> None:
    judge_compose(COMPOSE)
    digest = f"@sha256:{'0' * 64}"
    judge_compose(re.sub(r"\$\{\w+_IMAGE:-([^}]*):[^}]*\}", rf"\1{digest}", COMPOSE))


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


@pytest.mark.debian(package="systemd")
def test_units_are_what_systemd_understands(tmp_path: Path) -> None:
    texts = {unit.name: unit.read_text() for unit in sorted((DEPLOY / "systemd").glob("evenhand-*"))}
    assert judge_units(tmp_path, texts) == []
    server = texts["evenhand-server.service"]
    for right, wrong in (
        ("RestartSec=", "RestrtSec="),
        ("Type=notify", "Type=notfy"),
        ("LimitNOFILE=65536", "LimitNOFILE=many"),
        ("MemoryMax=4G", "MemoryMax=much"),
    ):
        assert judge_units(tmp_path, {**texts, "evenhand-server.service": server.replace(right, wrong)}), wrong


@pytest.mark.debian(package="systemd")
def test_the_units_user_is_made_by_systemd(tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    users = DEPLOY / "systemd" / "evenhand.sysusers.conf"
    done = subprocess.run(["systemd-sysusers", f"--root={tmp_path}", str(users)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (made,) = ((tmp_path / "etc" / "passwd").read_text()).splitlines()
    name, *_, home, shell = made.split(":")
    assert (name, home) == ("evenhand", "/var/lib/evenhand")
    assert "nologin" in shell
