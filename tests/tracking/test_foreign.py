"""Journal of another user: files of its folder only, our loaders, packages by version."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from experiments.cli import main as command_line
from tracking.journal import Journal
from tracking.records import Artifact, ModelSaved, Record, RunClosed, RunOpened
from tracking.store import Store

SECRET = b"kept from others"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return an export with one good file, and ways out of it to secrets."""
    (tmp_path / "private").mkdir()
    for path in (tmp_path / "secret.txt", tmp_path / "private" / "key.txt"):
        path.write_bytes(SECRET)
    folder = tmp_path / "export"
    for name in ("good", "linked", "entered", "piped", "looped"):
        (folder / name).mkdir(parents=True)
        (folder / name / "file.txt").write_text("theirs")
    (folder / "link.txt").symlink_to("../secret.txt")
    (folder / "inside.txt").symlink_to("good/file.txt")
    (folder / "linked" / "link.txt").symlink_to(tmp_path / "secret.txt")
    (folder / "entered" / "way").symlink_to(tmp_path / "private")
    (folder / "looped" / "loop").symlink_to("loop")
    os.mkfifo(folder / "piped" / "pipe")
    return folder


def model(data: str) -> ModelSaved:
    name = re.sub("[/.:]", "_", f"model {data}")
    return ModelSaved("r1", name, data, {"flavor": "toy", "data": "data"})


def hostile(folder: Path) -> list[tuple[str, Record]]:
    """Return records with a value that the refusal names."""
    private, secret = folder.parent / "private", folder.parent / "secret.txt"
    paths = {
        str(secret): str(secret),
        "../secret.txt": f"{folder}/../secret.txt",
        "good/../../private/key.txt": f"{folder}/good/../../private/key.txt",
        "..": f"{folder}/..",
        "link.txt": f"{folder}/link.txt",
        "linked": f"{folder}/linked/link.txt",
        "entered": f"{folder}/entered/way",
        "entered/way/key.txt": f"{folder}/entered/way/key.txt",
        "piped": f"{folder}/piped/pipe",
        "looped": "looped",
        "a\0b": "a\\x00b",
    }
    return [
        *((value, Artifact("r1", path)) for path, value in paths.items()),
        ("../up", Artifact("r1", "good/file.txt", "../up")),
        (str(private), model(str(private))),
        (f"{folder}/linked/link.txt", model("linked")),
    ]


def test_paths_that_lead_out_are_refused_and_the_rest_arrives(
    store: Store, folder: Path, tmp_path: Path
) -> None:
    bad = hostile(folder)
    copies = [Artifact("r1", "good/file.txt", "again"), Artifact("r1", "inside.txt")]
    good: list[Record] = [Artifact("r1", "good"), *copies, model("good")]
    opened, closed = RunOpened("r1", 1, "foreign", "run"), RunClosed("r1", 2, "ok")
    journal = Journal(folder)
    for record in (opened, *(record for _, record in bad), *good, closed):
        journal.append(record)
    journal.close()
    assert command_line.main(["import", f"--journal={folder}"]) == 1
    (run,) = store.runs("foreign")
    assert run.status == "FINISHED"
    paths = store.download(run.run_id, tmp_path / "files")
    assert paths == ["again/file.txt", "file.txt", "inside.txt"]
    stored = [
        path
        for name in ("mlruns", "mlartifacts", "files")
        for path in (tmp_path / name).rglob("*")
        if path.is_file()
    ]
    assert not [path for path in stored if SECRET in path.read_bytes()]
    models = store._client.search_logged_models([store.experiment_id("foreign")])
    assert [logged.name for logged in models] == [good[-1].name]  # type: ignore[union-attr]
    refused = Store(store.uri).apply([opened, *(record for _, record in bad)], folder)
    for line, (value, record) in zip(refused, bad, strict=True):
        shown = f"'{value}'"
        assert line.startswith(f"{type(record).__name__} of r1: {shown[:100]}"), line
