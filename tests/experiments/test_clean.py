"""`evenhand clean` removes what is confirmed, and nothing that is needed, used or linked."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest

from experiments.cli.codes import DONE, WRONG_CALL
from experiments.cli.commands import clean
from experiments.cli.main import main
from experiments.config import virtual_environments
from tests.conftest import ROOT
from tests.documented import commands
from tracking import journal
from tracking.journal import Journal
from tracking.records import RunOpened

PAGE = ROOT / "docs" / "how-to" / "remove.md"
FREE = {"parity", "comparisons", "a-link", "d" * 32}
STAY = {"accounts", "u" * 32}


def make_journal(name: str, uri: str = "") -> Path:
    """Write a journal of one record; uri: of the server that has it."""
    folder = Path(".evenhand/journal", name)
    records = Journal(folder)
    records.append(RunOpened("r", 1, "lenet", "campaign", {}, {}))
    journal.write_campaign(folder, {"study": "lenet", "run_id": name, "settings": {}})
    if uri:
        journal.mark_delivered(folder, records.size, uri)
    records.close()
    return folder


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder with one of each kind; its link leads out of it."""
    place = tmp_path / "place"
    place.mkdir()
    monkeypatch.chdir(place)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    Path("mlflow.db").write_bytes(b"runs")
    Path("mlruns").mkdir()
    make_journal("d" * 32, f"sqlite:///{place}/mlflow.db")
    make_journal("u" * 32)
    for name in ("cache/parity", "comparisons", "accounts"):
        folder = Path(".evenhand", name)
        folder.mkdir(parents=True)
        (folder / "file").write_bytes(b"0" * 2_048)
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "file").write_text("of another program")
    Path(".evenhand/a-link").symlink_to(tmp_path / "outside")
    Path(".evenhand/cache/parity/link").symlink_to(tmp_path / "outside")
    return place


def remaining() -> set[str]:
    return {entry.path.name for entry in clean.entries(clean.Clean())}


def states() -> dict[str, str]:
    return {entry.path.name: entry.state for entry in clean.entries(clean.Clean())}


@pytest.mark.usefixtures("place")
def test_list_removes_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert states() == {
        "d" * 32: "delivered",
        "u" * 32: "not delivered",
        "parity": "",
        "comparisons": "",
        "a-link": "",
        "accounts": "holds passwords",
    }
    assert main(["clean"]) == DONE
    output = capsys.readouterr().out
    assert f"{Path('mlflow.db').absolute()}, 4 bytes" in output
    assert re.search(r"comparisons +2.00 KiB", output)
    assert remaining() == FREE | STAY


def test_yes_keeps_the_store_links_and_what_was_not_delivered(place: Path) -> None:
    assert main(["clean", "--yes"]) == DONE
    assert remaining() == STAY
    assert (place.parent / "outside" / "file").exists()
    assert {"mlflow.db", "mlruns"} < {path.name for path in place.iterdir()}


@pytest.mark.usefixtures("place")
def test_journal_is_delivered_only_to_a_store_that_exists() -> None:
    Path("mlflow.db").unlink()
    assert states()["d" * 32] == "not delivered"


@pytest.mark.usefixtures("place")
def test_undelivered_journal_has_to_be_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["clean", "--yes", f"--discard={'x' * 32}"]) == WRONG_CALL
    assert remaining() == FREE | STAY
    assert main(["clean", "--yes", f"--discard={'u' * 32}"]) == DONE
    assert remaining() == {"accounts"}
    assert "passwords" in capsys.readouterr().out


@pytest.mark.usefixtures("place")
def test_what_a_campaign_uses_stays() -> None:
    running = Journal(Path(".evenhand/journal", "d" * 32))
    assert {name for name, state in states().items() if state == "in use"} == {"d" * 32, "parity"}
    assert main(["clean", "--yes", f"--discard={'d' * 32}"]) == DONE
    assert remaining() == STAY | {"d" * 32, "parity"}
    running.close()


def test_linked_folders_are_not_followed(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path(".evenhand").rename(place.parent / "elsewhere")
    Path(".evenhand").symlink_to(place.parent / "elsewhere")
    assert main(["clean", "--yes"]) == DONE
    assert str(place.parent / "elsewhere") in capsys.readouterr().out
    assert (place.parent / "elsewhere" / "comparisons").exists()
    assert main(["clean", "--yes", f"--journal={place.parent}/elsewhere/journal"]) == DONE
    assert {path.name for path in (place.parent / "elsewhere/journal").iterdir()} == {"u" * 32}


def test_other_folders_of_a_cache_are_not_listed(place: Path) -> None:
    (place / "photographs").mkdir()
    names = {entry.path.name for entry in clean.entries(clean.Clean(cache=str(place)))}
    assert "photographs" not in names


def test_every_folder_that_the_code_makes_in_a_cache_is_listed() -> None:
    code = "".join(path.read_text() for path in (ROOT / "experiments").rglob("*.py"))
    made = re.findall(r'cache(?:\.\w+\(\))? / "(\w+)"', code)
    assert {*made, virtual_environments.FOLDER, "worktrees"} == set(clean.CACHES)


def test_question_in_a_terminal(place: Path) -> None:
    names = [entry.path.name for entry in clean.entries(clean.Clean())]
    answer = f"{names.index('comparisons') + 1},{names.index('d' * 32) + 1}"
    ours, theirs = pty.openpty()
    os.write(ours, f"{answer}\n".encode())
    done = subprocess.run(
        [sys.executable, "-m", "experiments", "clean"],
        stdin=theirs,
        capture_output=True,
        text=True,
        cwd=place,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    os.close(ours)
    os.close(theirs)
    assert done.returncode == DONE, done.stderr
    assert remaining() == (FREE | STAY) - {"comparisons", "d" * 32}


@pytest.mark.usefixtures("place")
@pytest.mark.parametrize("answer", ["0", "9", "2-1", "some", "1;2"])
def test_wrong_answers(answer: str) -> None:
    listed = clean.entries(clean.Clean())
    with pytest.raises(clean.UsageError, match="nothing was removed"):
        clean.choose(answer, listed, listed)
    with pytest.raises(clean.UsageError, match="nothing was removed"):
        clean.choose("1", listed, listed[1:])
    assert clean.choose("all", listed, listed[1:]) == listed[1:]
    assert clean.choose("1-2, 2", listed, listed) == listed[:2]
    assert clean.choose("none", listed, listed) == []


# ---- docs/how-to/remove.md


@pytest.mark.usefixtures("place")
def test_commands_of_the_page() -> None:
    calls = [list(call.words) for call in commands() if call.page == "docs/how-to/remove.md"]
    cleaning = [words[1:] for words in calls if words[:2] == ["evenhand", "clean"]]
    assert ["clean", "--yes", "--discard", "RUN_ID"] in cleaning
    for words in (words for words in cleaning if "DIR" not in words):
        assert main([word.replace("RUN_ID", "u" * 32) for word in words]) == DONE
    assert remaining() == {"accounts"}


def test_everything_is_removed_as_the_page_says(place: Path) -> None:
    (command,) = re.findall(r"```sh\n(.*?)```", PAGE.read_text(), re.DOTALL)
    subprocess.run(["sh", "-c", command], cwd=place, check=True)
    assert list(place.iterdir()) == []
    assert (place.parent / "outside" / "file").exists()
