"""Damaged journals: each damaged line is named, and all that is intact arrives."""

from __future__ import annotations

import dataclasses
import gc
import json
import re
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from experiments import studies
from experiments.cli import main as command_line
from experiments.run.journal_runs import cell_results, stored
from tests.conftest import wait_for
from tracking import journal
from tracking.errors import ErrorCode, UsageError
from tracking.journal import Journal
from tracking.records import (
    Artifact,
    Metrics,
    Point,
    Record,
    RunClosed,
    RunOpened,
    RunOutcome,
    Tags,
    to_line,
)
from tracking.store import Store
from tracking.upload import Uploader

METRICS = range(2, 12)
ALL = frozenset(
    {"campaign", "cell", *(f"m{line}" for line in METRICS), "note", "cell ended", "campaign ended"}
)
CAMPAIGN = {
    "study": "captioning",
    "run": "c1",
    "run_id": "abc",
    "experiment": "captioning",
    "settings": {"epochs": 25},
}
Lines = list[bytes]


def records(experiment: str) -> list[Record]:
    """Return one record per line; metrics are named after their line."""
    points = [Metrics("r1", (Point(f"m{line}", line + 0.5, 0, 1_000 + line),)) for line in METRICS]
    tags = {"kind": "cell", "campaign": "run:c1", "cell": "block-001"}
    return [
        RunOpened("c1", 1_000, experiment, "campaign", {"kind": "campaign"}),
        RunOpened("r1", 2_000, experiment, "cell", tags),
        *points,
        Tags("r1", {"note": "kept"}),
        RunClosed("r1", 9_000, "ok"),
        RunClosed("c1", 9_500, "ok"),
    ]


def checked(text: str) -> bytes:
    """Return a line with its checksum, of any JSON object."""
    body = text.encode()[:-1]
    return b'%s,"crc32":"%08x"}\n' % (body, zlib.crc32(body))


def metrics_line(**changes: object) -> bytes:
    """Return a metrics record with a right checksum and changed fields; `...` removes one."""
    fields = {**json.loads(to_line(records("x")[5])), **changes}
    return checked(json.dumps({key: value for key, value in fields.items() if value is not ...}))


@dataclass(frozen=True)
class Case:
    """Change of a journal's lines, the parts that are lost, and the number of reported lines."""

    change: Callable[[Lines], Lines]
    lost: frozenset[str] = frozenset()
    reported: int = 1


def at_5(change: Callable[[bytes], bytes], *lost: str, reported: int = 1) -> Case:
    def edit(lines: Lines) -> Lines:
        return [*lines[:5], change(lines[5]), *lines[6:]]

    return Case(edit, frozenset(lost or {"m5"}), reported)


def insert(*records: Record) -> Case:
    """Insert records that no server takes, or not as a whole."""
    added = b"".join(checked(to_line(record)) for record in records)
    return at_5(lambda line: line + added, "none", reported=len(records))


UNKNOWN_END = '{"record":"RunClosed","run":"r1","time_ms":1,"outcome":"\\u001b[31m"}'
CASES = {
    "a flipped digit": at_5(lambda line: line.replace(b"5.5", b"7.5")),
    "zeros for a line": at_5(lambda line: bytes(len(line) - 1) + b"\n"),
    "a record glued to a torn one": at_5(lambda line: line[:40], "m5", "m6"),
    "an unknown record": at_5(lambda _: metrics_line(record="Surprise")),
    "an unknown field": at_5(lambda _: metrics_line(more="x")),
    "a missing field": at_5(lambda _: metrics_line(run=...)),
    "an unknown outcome": at_5(lambda _: checked(UNKNOWN_END)),
    "invalid UTF-8": at_5(lambda line: line.replace(b"m5", b"\xff\xfe")),
    "a huge line": at_5(lambda line: b"x" * (40 * 2**20) + b"\n" + line, "none", reported=2),
    "a line twice": at_5(lambda line: line + line, "none", reported=0),
    "lines out of order": Case(
        lambda lines: [*lines[:2], *reversed(lines[2:12]), *lines[12:]], reported=0
    ),
    "cut in the last line": Case(
        lambda lines: [*lines[:-1], lines[-1][:-1]], frozenset({"campaign ended"}), 0
    ),
    "empty": Case(lambda _: [], ALL, 0),
    "another file": Case(lambda _: [b"\x7fELF\n" * 200], ALL, 200),
}
REFUSED = {
    "a run that is not opened": Case(
        lambda lines: [lines[0], *lines[2:]], ALL - {"campaign", "campaign ended"}, 12
    ),
    "an experiment with half of a character": insert(RunOpened("r5", 1, "half \ud800", "other")),
    "halves of characters": insert(
        Tags("r1", {"a": "\udc80", "\ud800": "b"}), Artifact("r1", "\ud800")
    ),
    "keys and numbers that no server takes": insert(
        Metrics("r1", (Point("a(b)", 1, 0, 1),)), Metrics("r1", (Point("ok", 1, 2**70, 1),))
    ),
}


def write(folder: Path, experiment: str) -> Lines:
    records_of_campaign = Journal(folder)
    for record in records(experiment):
        records_of_campaign.append(record)
    records_of_campaign.close()
    return (folder / journal.RECORDS).read_bytes().splitlines(keepends=True)


def arrived(store: Store, experiment: str) -> frozenset[str]:
    runs = {run.name: run for run in store.runs(experiment)}
    cell = runs.get("cell")
    parts = {*runs, *(f"{name} ended" for name, run in runs.items() if run.status == "FINISHED")}
    if cell:
        parts |= set(cell.metrics) | (set(cell.tags) & {"note"})
        assert all(value == int(key[1:]) + 0.5 for key, value in cell.metrics.items())
    return frozenset(parts)


def call(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    code = command_line.main(arguments)
    output = "".join(capsys.readouterr())
    assert all(character.isprintable() for character in output if character != "\n")
    return code, output


@pytest.mark.parametrize(
    "name", ["a flipped digit", "a line twice", "cut in the last line", *REFUSED]
)
def test_replay_sends_intact_lines_and_names_damage(
    name: str, store: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    case = {**CASES, **REFUSED}[name]
    folder = tmp_path / "journal"
    (folder / journal.RECORDS).write_bytes(b"".join(case.change(write(folder, name))))
    for _ in range(2):  # the second time changes nothing
        code, output = call(capsys, "replay", f"--journal={folder}")
        assert code == bool(case.reported), output
        assert output.count("refused: ") == min(case.reported, 8) * (name in REFUSED), output
        assert arrived(store, name) == ALL - case.lost


@pytest.mark.parametrize("name", CASES)
def test_resume_reads_intact_lines_and_appends(name: str, tmp_path: Path) -> None:
    case, damaged = CASES[name], dict[int, str]()
    lines = case.change(write(tmp_path, "x"))
    (tmp_path / journal.RECORDS).write_bytes(b"".join(lines))
    before = list(journal.read_all(tmp_path, damaged))
    opened = {record.run: record.name for record in before if isinstance(record, RunOpened)}
    parts = set(opened.values())
    for record in before:
        match record:
            case Metrics():
                parts |= {point.key for point in record.points}
            case Tags():
                parts |= set(record.values)
            case RunClosed():
                parts.add(f"{opened[record.run]} ended")
    assert parts == ALL - CASES[name].lost
    assert len(damaged) == CASES[name].reported
    if "m5" in CASES[name].lost and len(CASES[name].lost) == 1:
        assert list(damaged) == [sum(map(len, lines[:5]))]
    resumed = Journal(tmp_path)
    resumed.append(RunClosed("r9", 1, "failed"))
    assert list(journal.read_all(tmp_path)) == [*before, RunClosed("r9", 1, "failed")]
    outcomes = {result.outcome for result in cell_results(tmp_path).values()}
    assert outcomes == ({RunOutcome.OK} if "cell ended" in parts else set())
    assert [run.name for run in stored(tmp_path)] == (["cell"] if "cell" in parts else [])
    resumed.close()


def test_folder_in_place_of_a_file_is_named(
    store: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path / "a", "folder a")
    for path in (tmp_path / "a" / journal.CAMPAIGN, tmp_path / "b" / journal.RECORDS):
        path.mkdir(parents=True)
    code, output = call(capsys, "replay", f"--journal={tmp_path}")
    assert code == 1
    assert [name for name in "ab" if f"{tmp_path}/{name}/{journal.RECORDS}" in output] == ["b"]
    assert arrived(store, "folder a") == ALL
    with pytest.raises(UsageError) as error:
        Journal(tmp_path / "b")
    assert error.value.code is ErrorCode.UNWRITABLE


@pytest.mark.usefixtures("store")
def test_missing_records_are_one_line_and_are_not_begun_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = dataclasses.asdict(studies.load("lenet").settings(frameworks=("pytorch",)))
    description = json.loads(json.dumps({**CAMPAIGN, "study": "lenet", "settings": settings}))
    journal.write_campaign(Journal(tmp_path / "c").folder, description)
    (tmp_path / "c" / journal.RECORDS).unlink()
    for words in (
        ["lenet", "--resume=c", "--frameworks=pytorch", f"--journal={tmp_path}"],
        ["replay", f"--journal={tmp_path}/c"],
        ["replay", f"--journal={tmp_path}/none"],
    ):
        code, output = call(capsys, *words)
        assert code == 2, output
        assert re.fullmatch(rf"evenhand: .*{tmp_path}.*\n", output)
    assert not (tmp_path / "c" / journal.RECORDS).exists()


@pytest.mark.parametrize(
    "text", [b"100000\nURI", b"-3\nURI", b"7\nURI", b"\xff\xfe", b"9" * 3_000 + b"\nURI", b""]
)
def test_damaged_mark_of_delivery_counts_as_none(text: bytes, tmp_path: Path) -> None:
    write(tmp_path, "x")
    (tmp_path / journal.DELIVERED).write_bytes(text.replace(b"URI", b"http://host:5000"))
    assert journal.delivered(tmp_path, "http://host:5000") == 0


def test_mark_of_delivery_has_no_password_and_belongs_to_one_server(tmp_path: Path) -> None:
    size = sum(map(len, write(tmp_path, "x")))
    journal.mark_delivered(tmp_path, size, "http://me:secret@host:5000/")
    assert "secret" not in (tmp_path / journal.DELIVERED).read_text()
    assert journal.delivered(tmp_path, "http://host:5000") == size
    assert journal.delivered(tmp_path, "http://another:5000") == 0


def test_uploader_that_begins_in_the_middle_names_earlier_damage(
    store: Store, tmp_path: Path
) -> None:
    folder, experiment = tmp_path / "journal", "middle"
    lines = write(folder, experiment)
    assert store.apply(records(experiment)[:5], folder) == []
    lines[3] = lines[3].replace(b"3.5", b"4.5")
    (folder / journal.RECORDS).write_bytes(b"".join(lines))
    journal.mark_delivered(folder, sum(map(len, lines[:5])), store.uri)
    uploader = Uploader(Journal(folder), Store(store.uri), store.run_id("c1") or "")
    uploader.start()
    wait_for(lambda: uploader.up_to_date, 30)
    assert uploader.finish(30)
    assert list(uploader.damaged) == [sum(map(len, lines[:3]))]
    assert uploader.refused == []
    assert arrived(store, experiment) == ALL


@pytest.mark.parametrize(
    "change",
    [
        lambda text: text[:40],
        lambda text: bytes(len(text)),
        lambda _: b"[]",
        lambda text: text.replace(b"captioning", b"\xff\xfe\xfd"),
        lambda _: b"[" * 200_000,
        lambda text: text.replace(b"25", b"35"),
        lambda _: b'{"run": "c1"}',
    ],
)
def test_damaged_description_is_one_line_and_its_records_arrive(
    change: Callable[[bytes], bytes],
    store: Store,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    root = tmp_path / "journals"
    journal.write_campaign(Journal(root / "older").folder, CAMPAIGN)
    write(root / "newest", "described")
    journal.write_campaign(root / "newest", CAMPAIGN)
    assert journal.read_campaign(root / "newest") == CAMPAIGN
    path = root / "newest" / journal.CAMPAIGN
    path.write_bytes(change(path.read_bytes()))
    gc.collect()  # finalisers of earlier objects print messages at the recursion limit
    code, output = call(capsys, "captioning", "--resume=last", f"--journal={root}")
    assert code == 2
    assert re.fullmatch(rf"evenhand: {path} .* replay --journal {root}/newest\n", output)
    assert [folder.name for folder, _ in journal.descriptions(root, "older")] == ["older"]
    with pytest.raises(UsageError) as error:
        journal.descriptions(root, "newest")
    assert error.value.code is ErrorCode.UNREADABLE
    code, output = call(capsys, "replay", f"--journal={root}")
    assert code == 0, output
    assert arrived(store, "described") == ALL
