"""The journal of somebody else: it names files of its own folder alone, loaders of ours, packages by name and version."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from experiments.cli import main as command_line
from tracking.journal import Journal
from tracking.records import Artifact, ModelSaved, Record, RunClosed, RunOpened
from tracking.store import Store

LOADER = "experiments.workloads.captioning.captioner"


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, empty_store: Path) -> Store:
    monkeypatch.chdir(tmp_path)
    return Store(f"sqlite:///{shutil.copy(empty_store, tmp_path / 'mlflow.db')}")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """An export with one good file, and ways out of it to a secret beside it."""
    (tmp_path / "secret.txt").write_text("kept from others")
    (tmp_path / "private").mkdir()
    (tmp_path / "private" / "key.txt").write_text("kept from others")
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


def model(data: str, loader: str = LOADER, requirement: str = "numpy==2.0.0") -> ModelSaved:
    return ModelSaved(
        "r1",
        f"model {data} {loader} {len(requirement)}".translate(str.maketrans("/.:", "___")),
        loader,
        data,
        {"image": "a.png"},
        "caption",
        (requirement,),
    )


def refused(folder: Path) -> dict[str, Record]:
    """By what is said of each."""
    outside = str(folder.parent / "secret.txt")
    return {
        f"Artifact of r1: '{outside}' leads out": Artifact("r1", outside),
        f"Artifact of r1: '{folder}/../secret.txt' leads out": Artifact("r1", "../secret.txt"),
        f"Artifact of r1: '{folder}/good/../../private/key.txt' leads out": Artifact(
            "r1", "good/../../private/key.txt"
        ),
        f"Artifact of r1: '{folder}/..' leads out": Artifact("r1", ".."),
        f"Artifact of r1: '{folder}/link.txt' leads out": Artifact("r1", "link.txt"),
        f"Artifact of r1: '{folder}/linked/link.txt' leads out": Artifact("r1", "linked"),
        f"Artifact of r1: '{folder}/entered/way' leads out": Artifact("r1", "entered"),
        f"Artifact of r1: '{folder}/entered/way/key.txt' leads out": Artifact(
            "r1", "entered/way/key.txt"
        ),
        f"Artifact of r1: '{folder}/piped/pipe' is missing, or is no file": Artifact("r1", "piped"),
        "Artifact of r1: 'looped' cannot be read": Artifact("r1", "looped"),
        "Artifact of r1: 'a\\x00b' cannot be read": Artifact("r1", "a\0b"),
        "Artifact of r1: '../up' is no folder of artifacts": Artifact(
            "r1", "good/file.txt", "../up"
        ),
        f"ModelSaved of r1: '{folder.parent}/private' leads out": model(
            str(folder.parent / "private")
        ),
        f"ModelSaved of r1: '{folder}/linked/link.txt' leads out": model("linked"),
        "ModelSaved of r1: 'os' is no loader of evenhand's": model("good", "os"),
        "ModelSaved of r1: 'experiments.cell' is no loader of evenhand's": model(
            "good", "experiments.cell"
        ),
        "ModelSaved of r1: 'experiments.../good' is no loader of evenhand's": model(
            "good", "experiments.../good"
        ),
        "ModelSaved of r1: '-r ../secret.txt' is no requirement NAME==VERSION": model(
            "good", requirement="-r ../secret.txt"
        ),
        "ModelSaved of r1: 'evil @ https://h/x.whl' is no requirement": model(
            "good", requirement="evil @ https://h/x.whl"
        ),
    }


def test_what_leads_out_is_refused_by_name_and_the_rest_arrives(
    store: Store, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    hostile = refused(folder)
    good: list[Record] = [
        Artifact("r1", "good"),
        Artifact("r1", "good/file.txt", "again"),
        Artifact("r1", "inside.txt"),
        model("good"),
    ]
    kept = Journal(folder)
    for record in (
        RunOpened("r1", 1, "foreign", "run"),
        *hostile.values(),
        *good,
        RunClosed("r1", 2, "ok"),
    ):
        kept.append(record)
    assert [
        line
        for line in store.apply(list(hostile.values()), folder)
        if "is not on this server" not in line
    ] == []
    code = command_line.main(["import", f"--journal={folder}"])
    output = capsys.readouterr().out
    (run,) = store.runs("foreign")
    store.download(run.run_id, tmp_path / "there")
    everything = [
        path
        for place in ("mlruns", "mlartifacts", "there")
        for path in (tmp_path / place).rglob("*")
        if path.is_file()
    ]
    assert everything
    assert not [path for path in everything if b"kept from others" in path.read_bytes()]
    assert code == 1
    assert "and 11 more" in output
    told = Store(store.uri).apply([RunOpened("r1", 1, "foreign", "run"), *hostile.values()], folder)
    assert len(told) == len(hostile)
    for line, wanted in zip(told, hostile, strict=True):
        assert line.startswith(wanted), (line, wanted)

    (run,) = store.runs("foreign")
    assert run.status == "FINISHED"
    assert store.download(run.run_id, tmp_path / "there") == [
        "again/file.txt",
        "file.txt",
        "inside.txt",
    ]
    models = store._client.search_logged_models([store.experiment_id("foreign")])
    assert [one.name for one in models] == [good[-1].name]  # type: ignore[union-attr]
