"""One command starts a server with PostgreSQL and passwords; it can be stopped, copied, restored and upgraded."""

from __future__ import annotations

import json
import os
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import requests

from tests.deploy.conftest import Group, free_port, native
from tests.tracking.postgres import MISSING


@pytest.fixture
def place() -> Iterator[Path]:
    if MISSING:
        pytest.skip(MISSING)
    folder = Path(tempfile.mkdtemp(prefix="evenhand-native-", dir="/tmp"))
    folder.chmod(0o711)
    yield folder
    for server in folder.iterdir():
        native("stop", server)
    shutil.rmtree(folder)


def ask(uri: str, words: tuple[str, str], address: str, **sent: object) -> requests.Response:
    return requests.post(f"{uri}/api/2.0/mlflow/{address}", auth=words, json=sent, timeout=30)


def test_a_server_is_copied_while_it_works_and_made_anew_from_the_copy(place: Path) -> None:
    first, second = place / "first", place / "second"
    port = free_port()
    uri = f"http://127.0.0.1:{port}"
    started = native("start", first, "--port", str(port))
    assert started.returncode == 0, started.stdout + started.stderr
    words = ("admin", json.loads((first / "secrets.json").read_text())["admin_password"])
    experiment = ask(uri, words, "experiments/create", name="kept").json()["experiment_id"]
    run = ask(uri, words, "runs/create", experiment_id=experiment).json()["run"]["info"]["run_id"]
    ask(uri, words, "runs/log-metric", run_id=run, key="val/loss", value=1.5, timestamp=1, step=0)
    artifact = f"mlflow-artifacts/artifacts/{experiment}/{run}/artifacts/note.txt"
    requests.put(f"{uri}/api/2.0/{artifact}", auth=words, data=b"kept too", timeout=30).raise_for_status()

    again = native("start", first, "--port", "1")
    assert again.returncode == 2
    assert "is running already" in again.stderr
    assert native("status", first).returncode == 0, "what was refused has changed nothing"
    copied = native("backup", first, str(place / "copy"))
    assert copied.returncode == 0, copied.stderr
    upgraded = native("upgrade", first)
    assert upgraded.returncode == 0, upgraded.stdout + upgraded.stderr
    assert "MLflow answers" in upgraded.stdout
    assert native("stop", first).returncode == 0
    assert native("status", first).returncode == 1

    restored = native("restore", second, str(place / "copy"), "--port", str(port))
    assert restored.returncode == 0, restored.stdout + restored.stderr
    metrics = requests.get(f"{uri}/api/2.0/mlflow/runs/get", params={"run_id": run}, auth=words, timeout=30).json()["run"]["data"]
    assert [(one["key"], one["value"]) for one in metrics["metrics"]] == [("val/loss", 1.5)]
    assert requests.get(f"{uri}/api/2.0/{artifact}", auth=words, timeout=30).content == b"kept too"
    full = native("restore", second, str(place / "copy"))
    assert full.returncode == 2
    assert "holds a server already" in full.stderr

    shutil.copytree(place / "copy", place / "damaged")
    with (place / "damaged" / "artifacts.tar").open("r+b") as file:
        file.write(b"x")
    damaged = native("restore", place / "third", str(place / "damaged"))
    assert damaged.returncode == 2
    assert "is damaged" in damaged.stderr
    shutil.rmtree(place / "damaged")
    shutil.rmtree(place / "copy")


def test_secrets_are_their_owners_alone(group: Group) -> None:
    for name in ("secrets.json", "auth.ini", "server.log", "settings.json"):
        assert stat.S_IMODE((group.folder / name).stat().st_mode) == 0o600
    assert stat.S_IMODE((group.accounts / "alice.env").stat().st_mode) == 0o600
    hidden = [*group.secrets.values(), *(group.password(user) for user in ("alice", "bob", "carol"))]
    everybody_sees = subprocess.run(["ps", "axww", "-o", "args"], capture_output=True, text=True).stdout
    logs = "".join(path.read_text(errors="replace") for path in group.folder.rglob("*.log") if os.access(path, os.R_OK))
    for secret in hidden:
        assert secret not in everybody_sees
        assert secret not in logs


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("start", "--database", "mysql://x/y"), "write system, embedded, sqlite or postgresql://user@host/database"),
        (("start", "--database", "postgresql://u:secret@h/d"), "leave it out and set PGPASSWORD"),
        (("status",), "there is no server in"),
        (("restore", "nowhere"), "is no backup"),
    ],
)
def test_a_wrong_call_is_one_line(tmp_path: Path, arguments: tuple[str, ...], said: str) -> None:
    done = native(arguments[0], tmp_path / "server", *arguments[1:])
    assert done.returncode == 2
    assert said in done.stderr
    assert "Traceback" not in done.stderr
    assert "secret" not in done.stderr


@pytest.mark.slow
def test_sqlite_is_for_one_person_and_says_so(tmp_path: Path) -> None:
    port = free_port()
    try:
        done = native("start", tmp_path / "one", "--database", "sqlite", "--port", str(port))
        assert done.returncode == 0, done.stdout + done.stderr
        assert "for one person" in done.stdout
        copied = native("backup", tmp_path / "one")
        assert copied.returncode == 0, copied.stderr
    finally:
        native("stop", tmp_path / "one")
