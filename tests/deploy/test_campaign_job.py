"""A campaign as a Kubernetes Job, judged without a cluster: MLflow reads its files, and schemas judge what it makes of them."""

from __future__ import annotations

import json
from typing import Any

import kubernetes_validate
import pytest
import yaml
from docker.utils.build import exclude_paths
from mlflow.projects import _parse_kubernetes_config
from mlflow.projects._project_spec import load_project

from tests.conftest import ROOT
from tests.deploy.test_files import VERSIONS

FOLDER = ROOT / "deploy" / "kubernetes" / "campaign"


@pytest.fixture
def job(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The template that MLflow finds by the backend's configuration, from the project's root, as it fills it in."""
    monkeypatch.chdir(ROOT)
    config = _parse_kubernetes_config(json.loads((FOLDER / "backend.json").read_text()))
    template: dict[str, Any] = config["kube-job-template"]
    template["metadata"]["name"] = "evenhand-2026-11-23-01-02-03-000000"
    container = template["spec"]["template"]["spec"]["containers"][0]
    image = f"{config['repository-uri']}:0123abc@sha256:{'0' * 64}"
    container |= {"name": "evenhand", "image": image, "command": ["python", "-m", "experiments", "captioning"]}
    container["env"] += [{"name": "MLFLOW_RUN_ID", "value": "0" * 32}]
    return template


@pytest.mark.parametrize("version", VERSIONS)
def test_the_job_as_mlflow_fills_it_in_follows_the_schema_of_kubernetes(job: dict[str, Any], version: str) -> None:
    kubernetes_validate.validate(job, version, strict=True)
    kubernetes_validate.validate(yaml.safe_load((FOLDER / "work.yaml").read_text()), version, strict=True)


def test_a_wrong_field_of_the_job_is_found(job: dict[str, Any]) -> None:
    job["spec"]["template"]["spec"]["containers"][0]["resource"] = {}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(job, VERSIONS[-1], strict=True)


def test_the_project_in_a_container_has_the_entry_points_of_the_project() -> None:
    inside, outside = load_project(str(FOLDER)), load_project(str(ROOT))
    assert inside.docker_env["image"].partition(":")[0].startswith("registry.example.org/")
    assert inside.name == outside.name
    assert {name: one.command for name, one in inside._entry_points.items()} == {
        name: one.command for name, one in outside._entry_points.items()
    }


def test_the_job_keeps_its_journal_and_meets_no_other_campaign(job: dict[str, Any]) -> None:
    pod, labels = job["spec"]["template"]["spec"], job["spec"]["template"]["metadata"]["labels"]
    claim = yaml.safe_load((FOLDER / "work.yaml").read_text())["metadata"]
    assert pod["volumes"][0]["persistentVolumeClaim"]["claimName"] == claim["name"]
    assert claim["namespace"] == job["metadata"]["namespace"]
    assert pod["containers"][0]["volumeMounts"][0]["mountPath"] == "/mlflow/projects/code/.evenhand"
    (apart,) = pod["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert apart["labelSelector"]["matchLabels"] == labels
    resources = pod["containers"][0]["resources"]
    assert resources["requests"] == resources["limits"]  # or the pod gets no cores of its own


def test_the_image_is_made_of_the_code_and_nothing_else() -> None:
    ignored = [
        line for line in (FOLDER / "Dockerfile.dockerignore").read_text().splitlines() if line and not line.startswith("#")
    ]
    sent = exclude_paths(str(ROOT), ignored) - {".dockerignore"}  # which docker itself always adds
    copied = [line.split()[1:-1] for line in (FOLDER / "Dockerfile").read_text().splitlines() if line.startswith("COPY")]
    roots = {part.removeprefix("./") for parts in copied for part in parts}
    assert {path.partition("/")[0] for path in sent} == roots
    assert {"experiments/__main__.py", "models/contract.py", "tracking/journal.py"} <= sent
