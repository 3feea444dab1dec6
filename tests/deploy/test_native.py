"""One command starts a server with PostgreSQL and passwords; it can be stopped, copied, restored and upgraded."""

from __future__ import annotations

import grp
import os
import shutil
import sqlite3
import stat
import subprocess
import tarfile
from pathlib import Path

import pytest
import requests

from deploy import copies
from deploy.copies import ArtifactFolder
from deploy.native import database
from deploy.native.database import PostgreSQL, Sqlite
from deploy.native.folder import DeployError, Folder, Secrets, Settings
from tests.deploy.group import Group, free_port, native


def ask(uri: str, words: tuple[str, str], address: str, **sent: object) -> requests.Response:
    return requests.post(f"{uri}/api/2.0/mlflow/{address}", auth=words, json=sent, timeout=30)


def test_a_server_is_copied_while_it_works_and_made_anew_from_the_copy(
    group: Group, place: Path
) -> None:
    first, second = group.folder, place / "second"
    words = ("admin", group.password("admin"))
    experiment = ask(group.uri, words, "experiments/create", name="kept").json()["experiment_id"]
    run = ask(group.uri, words, "runs/create", experiment_id=experiment).json()["run"]["info"][
        "run_id"
    ]
    ask(
        group.uri,
        words,
        "runs/log-metric",
        run_id=run,
        key="val/loss",
        value=1.5,
        timestamp=1,
        step=0,
    )
    artifact = f"mlflow-artifacts/artifacts/{experiment}/{run}/artifacts/note.txt"
    requests.put(
        f"{group.uri}/api/2.0/{artifact}", auth=words, data=b"kept too", timeout=30
    ).raise_for_status()

    again = native("start", first, "--port", "1")
    assert again.returncode == 2
    assert "is running already" in again.stderr
    assert native("status", first).returncode == 0, "what was refused has changed nothing"
    copied = native("backup", first, str(place / "copy"))
    assert copied.returncode == 0, copied.stderr

    port = free_port()
    restored = native("restore", second, str(place / "copy"), "--port", str(port), "--workers", "1")
    assert restored.returncode == 0, restored.stdout + restored.stderr

    def check_kept() -> None:
        uri = f"http://127.0.0.1:{port}"
        found = requests.get(
            f"{uri}/api/2.0/mlflow/runs/get", params={"run_id": run}, auth=words, timeout=30
        ).json()
        assert [(one["key"], one["value"]) for one in found["run"]["data"]["metrics"]] == [
            ("val/loss", 1.5)
        ]
        assert (
            requests.get(f"{uri}/api/2.0/{artifact}", auth=words, timeout=30).content == b"kept too"
        )

    check_kept()
    full = native("restore", second, str(place / "copy"))
    assert full.returncode == 2
    assert "restore into an empty --folder" in full.stderr
    assert native("stop", second).returncode == 0
    assert native("status", second).returncode == 1

    shutil.copytree(place / "copy", place / "damaged")
    with (place / "damaged" / "artifacts.tar").open("r+b") as file:
        file.write(b"x")
    damaged = native("restore", place / "third", str(place / "damaged"))
    assert damaged.returncode == 2
    assert "is damaged" in damaged.stderr
    shutil.rmtree(place / "damaged")
    shutil.rmtree(place / "copy")


def test_a_database_is_served_by_the_version_that_made_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for version in (16, 18):
        initdb = tmp_path / str(version) / "bin" / "initdb"
        initdb.parent.mkdir(parents=True)
        initdb.touch()
    monkeypatch.setattr(database, "DEBIAN", tmp_path)
    folder = Folder(tmp_path / "server")
    cluster = folder.path / "postgres" / "data"
    cluster.mkdir(parents=True)
    for made_by, serves in ((None, 18), (16, 16), (18, 18)):
        if made_by:
            (cluster / "PG_VERSION").write_text(f"{made_by}\n")
        server = database.create(folder, Settings(), Secrets())
        assert isinstance(server, PostgreSQL)
        assert server.binaries == tmp_path / str(serves) / "bin"
    (cluster / "PG_VERSION").write_text("9\n")
    with pytest.raises(DeployError, match=r"is of PostgreSQL 9, not of 16, 18; install 9"):
        database.create(folder, Settings(), Secrets())


@pytest.mark.parametrize(
    ("name", "link"),
    [
        ("../../escaped", ""),
        ("/tmp/escaped", ""),
        ("artifacts/link", "/etc/passwd"),
        ("secrets.json", ""),
        ("artifacts/../secrets.json", ""),
    ],
)
def test_a_copy_writes_nothing_but_artifacts(tmp_path: Path, name: str, link: str) -> None:
    copy, folder = tmp_path / "copy", Folder(tmp_path / "server")
    copy.mkdir()
    sqlite3.connect(copy / "database.sqlite").close()
    with tarfile.open(copy / "artifacts.tar", "w") as tar:
        member = tarfile.TarInfo(name)
        member.type, member.linkname = (tarfile.SYMTYPE, link) if link else (tarfile.REGTYPE, "")
        tar.addfile(member)
    folder.set_up(Settings(database="sqlite"))
    before = folder.secrets()
    with pytest.raises(DeployError, match="which is no file of the artifacts"):
        copies.restore(copy, Sqlite(folder.sqlite), ArtifactFolder(folder.artifacts))
    assert folder.secrets() == before
    assert not (tmp_path / "escaped").exists()
    assert not list(folder.artifacts.iterdir())


def test_secrets_are_their_owners_alone(group: Group) -> None:
    for name in ("secrets.json", "server.log", "settings.json", "server.pid"):
        assert stat.S_IMODE((group.folder / name).stat().st_mode) == 0o600
    auth = (group.folder / "auth.ini").stat()
    assert stat.S_IMODE(auth.st_mode) == (
        0o600 if os.getuid() else 0o640
    )  # of root's, the server's user may read it
    assert os.getuid() or grp.getgrgid(auth.st_gid).gr_name == "evenhand"
    assert stat.S_IMODE((group.accounts / "alice.env").stat().st_mode) == 0o600
    hidden = [
        *group.secrets.values(),
        *(group.password(user) for user in ("alice", "bob", "carol")),
    ]
    everybody_sees = subprocess.run(
        ["ps", "axww", "-o", "args"], capture_output=True, text=True
    ).stdout
    logs = "".join(
        path.read_text(errors="replace")
        for path in group.folder.rglob("*.log")
        if os.access(path, os.R_OK)
    )
    for secret in hidden:
        assert secret not in everybody_sees
        assert secret not in logs


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            ("start", "--database", "mysql://x/y"),
            "write system, sqlite or postgresql://user@host/database",
        ),
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
def test_upgrade_copies_and_starts_again(place: Path) -> None:
    server = place / "one"
    done = native("start", server, "--database", "sqlite", "--port", str(free_port()))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "for one person" in done.stdout
    upgraded = native("upgrade", server)
    assert upgraded.returncode == 0, upgraded.stdout + upgraded.stderr
    assert "MLflow answers" in upgraded.stdout
    assert len(list((server / "backups").iterdir())) == 1
