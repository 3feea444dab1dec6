"""Files for compose, Kubernetes and systemd, checked without running them."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tomllib
from functools import reduce
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from compose_spec import PyCompose
from docker.utils.build import exclude_paths
from mlflow.projects import _parse_kubernetes_config
from mlflow.projects._project_spec import load_project

from tests.conftest import ROOT

DEPLOY = ROOT / "deploy"
COMPOSE, LOGIN = (
    yaml.safe_load((DEPLOY / "compose" / f"{name}.yaml").read_text())
    for name in ("compose", "compose.login")
)
CAMPAIGN = DEPLOY / "kubernetes" / "campaign"
MANIFESTS, OF_LOGIN = (
    list(yaml.safe_load_all((DEPLOY / "kubernetes" / f"{name}.yaml").read_text()))
    for name in ("evenhand", "login")
)
VERSIONS = ("1.25", "1.31", kubernetes_validate.latest_version())
WITH_CAPABILITIES = shutil.which("setpriv") if os.getuid() == 0 else None


def confined(service: str) -> list[str]:
    """Begin a command as root with the capabilities of a service of compose, or as any user."""
    added = ",".join(f"+{name.lower()}" for name in COMPOSE["services"][service]["cap_add"])
    options = [f"--bounding-set=-all,{added}", "--inh-caps=-all", "--no-new-privs"]
    return ["setpriv", *options] if WITH_CAPABILITIES else []


# Compose


def merged(base: Any, added: Any) -> Any:
    """Merge a second file into a first one as Docker Compose does: lists are joined."""
    if isinstance(base, dict):
        both = {key: merged(base[key], added[key]) for key in base.keys() & added.keys()}
        return {**base, **added, **both}
    return [*base, *added] if isinstance(base, list) else added


@pytest.mark.parametrize("files", [(COMPOSE,), (COMPOSE, LOGIN)], ids=["alone", "with log-in"])
def test_compose_follows_its_specification(files: tuple[dict[str, Any], ...]) -> None:
    whole = reduce(merged, files)
    PyCompose.from_yaml(yaml.safe_dump(whole)).validate()
    with pytest.raises(ValueError, match=r"\w"):
        PyCompose.from_yaml(yaml.safe_dump({**whole, "servces": {}})).validate()
    for service in whole["services"].values():
        sources = {volume.partition(":")[0] for volume in service.get("volumes", [])}
        named = {source for source in sources if not source.startswith(".")}
        assert named <= set(whole["volumes"])
        files_of_login = {source for source in sources if "." in source[2:]}
        assert all((DEPLOY / "compose" / source).is_file() for source in files_of_login)
        for kind in ("secrets", "networks"):
            assert set(service.get(kind, [])) <= set(whole[kind])
        assert set(service.get("depends_on", {})) <= set(whole["services"])


def test_login_gets_the_files_and_the_port_of_its_settings() -> None:
    services = LOGIN["services"]
    settings = tomllib.loads((DEPLOY / "compose" / "oauth2-proxy.cfg").read_text())
    files = {Path(text).name for name, text in settings.items() if name.endswith("_file")}
    assert files == set(services["login"]["secrets"])
    port = settings["http_address"].rpartition(":")[2]
    assert services["proxy"]["environment"]["LOGIN"].endswith(port)
    assert "proxy_secret" in services["tracking"]["secrets"]


def test_login_replaces_ingress_and_policy_of_the_server() -> None:
    """Let nobody but the pod of the log-in reach the server."""
    names = {(item["kind"], item["metadata"]["name"]) for item in MANIFESTS}
    of_login = {(item["kind"], item["metadata"]["name"]): item for item in OF_LOGIN}
    assert names & set(of_login) == {("Ingress", "tracking"), ("NetworkPolicy", "tracking")}
    (rule,) = of_login["NetworkPolicy", "tracking"]["spec"]["ingress"]
    labels = of_login["Deployment", "login"]["spec"]["template"]["metadata"]["labels"]
    assert rule["from"] == [{"podSelector": {"matchLabels": labels}}]
    (route,) = of_login["Ingress", "tracking"]["spec"]["rules"][0]["http"]["paths"]
    assert route["backend"]["service"]["name"] == "login"


@pytest.mark.skipif(not WITH_CAPABILITIES, reason="capabilities are dropped as root, by setpriv")
def test_tracking_container_drops_root_after_secrets(
    tmp_path: Path,
) -> None:
    secret = tmp_path / "admin_password"
    secret.write_text("drawn by another user")
    secret.chmod(0o600)
    os.chown(secret, 12_345, 12_345)
    script = (
        "import os, pwd; from deploy.compose import serve\n"
        "pwd.getpwnam = lambda _: pwd.getpwuid(65534)  # the container's user is not here\n"
        "print(*serve.read_secrets().items()); serve.drop_root(); print(os.getresuid())"
    )
    command = [*confined("tracking"), sys.executable, "-c", script]
    env = {"SECRETS": str(tmp_path), "PYTHONPATH": str(ROOT), "PATH": os.environ["PATH"]}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "('MLFLOW_AUTH_ADMIN_PASSWORD', 'drawn by another user')",
        "(65534, 65534, 65534)",
    ]
    command[1] = command[1].replace("+dac_override,", "")
    refused = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60)
    assert "Permission denied" in refused.stderr


def test_build_context_holds_no_secret(tmp_path: Path) -> None:
    sent = {
        "constraints.txt",
        "evenhand_run_context.py",
        "pyproject.toml",
        "deploy/readiness.py",
        "deploy/compose/serve.py",
        "deploy/guard/app.py",
    }
    held_back = {
        ".git/config",
        ".evenhand/accounts/alice.env",
        "deploy/compose/secrets/admin_password",
        "deploy/compose/certificates/server.key",
        "deploy/compose/.env",
        "auth.ini",
        "server.env",
        "models/errors.py",
        "tracking/errors.py",
    }
    for name in sent | held_back:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    context = exclude_paths(str(tmp_path), (ROOT / ".dockerignore").read_text().splitlines())
    assert {name for name in context if (tmp_path / name).is_file()} == sent


# Kubernetes


@pytest.fixture
def job(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Return a campaign's Job as MLflow fills in the template of the backend's configuration."""
    monkeypatch.chdir(ROOT)
    config = _parse_kubernetes_config(json.loads((CAMPAIGN / "backend.json").read_text()))
    template: dict[str, Any] = config["kube-job-template"]
    template["metadata"]["name"] = "evenhand-2026-11-23-01-02-03-000000"
    container = template["spec"]["template"]["spec"]["containers"][0]
    image = f"{config['repository-uri']}:0123abc@sha256:{'0' * 64}"
    container |= {"name": "evenhand", "image": image, "command": ["python", "-m", "experiments"]}
    container["env"] += [{"name": "MLFLOW_RUN_ID", "value": "0" * 32}]
    return template


@pytest.mark.parametrize("version", VERSIONS)
def test_manifests_follow_kubernetes_schemas(job: dict[str, Any], version: str) -> None:
    work = yaml.safe_load((CAMPAIGN / "work.yaml").read_text())
    for manifest in (*MANIFESTS, *OF_LOGIN, work, job):
        kubernetes_validate.validate(manifest, version, strict=True)
    job["spec"]["template"]["spec"]["containers"][0]["resource"] = {}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(job, version, strict=True)
    volume = job["spec"]["template"]["spec"]["volumes"][0]
    assert volume["persistentVolumeClaim"]["claimName"] == work["metadata"]["name"]


def test_container_project_has_all_entry_points() -> None:
    inside, outside = load_project(str(CAMPAIGN)), load_project(str(ROOT))
    commands = [
        {name: entry.command for name, entry in p._entry_points.items()} for p in (inside, outside)
    ]
    assert inside.name == outside.name
    assert commands[0] == commands[1]


# systemd


@pytest.mark.debian(package="systemd")
def test_systemd_accepts_the_unit(tmp_path: Path) -> None:
    unit, user = tmp_path / "evenhand-server.service", "=evenhand\n"
    text = (DEPLOY / "systemd" / unit.name).read_text().replace(user, "=daemon\n")
    text = text.replace("/opt/evenhand/.venv/bin/python", "/bin/true")
    for written, is_accepted in {
        text: True,
        text.replace("RestartSec=", "RestrtSec="): False,
    }.items():
        unit.write_text(written)
        command = ["systemd-analyze", "verify", "--man=no", str(unit)]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        assert (str(tmp_path) not in done.stderr) == is_accepted, done.stderr
