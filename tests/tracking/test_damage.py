"""Damaged journals: each damaged line is named, and all that is intact arrives."""

from __future__ import annotations

import gc
import json
import re
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

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
CELL, END, LINES = 1, 13, 15
CAMPAIGN = {"study": "captioning", "run": "c1", "run_id": "abc", "settings": {"epochs": 25}}
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
    """Change of a journal's lines, the lines that are lost, and the number of reported ones."""

    change: Callable[[Lines], Lines]
    lost: frozenset[int] = frozenset()
    reported: int = 0


def at_5(change: Callable[[bytes], bytes], *lost: int, reported: int = 1) -> Case:
    return Case(
        lambda lines: [*lines[:5], change(lines[5]), *lines[6:]], frozenset(lost or {5}), reported
    )


def insert(*records: Record) -> Case:
    """Insert records that no server takes, or not as a whole."""
    added = b"".join(checked(to_line(record)) for record in records)
    return at_5(lambda line: line + added, LINES, reported=len(records))


UNKNOWN_END = '{"record":"RunClosed","run":"r1","time_ms":1,"outcome":"\\u001b[31m"}'
ALL = frozenset(range(LINES))
CASES = {
    "a flipped digit": at_5(lambda line: line.replace(b"5.5", b"7.5")),
    "zeros for a line": at_5(lambda line: bytes(len(line) - 1) + b"\n"),
    "a record glued to a torn one": at_5(lambda line: line[:40], 5, 6),
    "an unknown record": at_5(lambda _: metrics_line(record="Surprise")),
    "an unknown field": at_5(lambda _: metrics_line(more="x")),
    "a missing field": at_5(lambda _: metrics_line(run=...)),
    "an unknown outcome": at_5(lambda _: checked(UNKNOWN_END)),
    "invalid UTF-8": at_5(lambda line: line.replace(b"m5", b"\xff\xfe")),
    "a huge line": at_5(lambda line: b"x" * 5_000 + b"\n" + line, LINES, reported=2),
    "a line twice": at_5(lambda line: line + line, LINES, reported=0),
    "lines out of order": Case(lambda lines: [*lines[:2], *reversed(lines[2:12]), *lines[12:]]),
    "cut in the last line": Case(lambda lines: [*lines[:-1], lines[-1][:-1]], frozenset({14})),
    "empty": Case(lambda _: [], ALL),
    "another file": Case(lambda _: [b"\x7fELF\n" * 200], ALL, 200),
}
REFUSED = {
    "an experiment with half of a character": insert(RunOpened("r5", 1, "half \ud800", "other")),
    "halves of characters": insert(
        Tags("r1", {"a": "\udc80", "\ud800": "b"}), Artifact("r1", "\ud800")
    ),
    "keys and numbers that no server takes": insert(
        Metrics("r1", (Point("a(b)", 1, 0, 1),)), Metrics("r1", (Point("ok", 1, 2**70, 1),))
    ),
}
NOT_OPENED = {
    "a run that is not opened": Case(lambda lines: [lines[0], *lines[2:]], ALL - {0, 14}, 12)
}


def write(folder: Path, experiment: str) -> Lines:
    records_of_campaign = Journal(folder)
    for record in records(experiment):
        records_of_campaign.append(record)
    records_of_campaign.close()
    return (folder / journal.RECORDS).read_bytes().splitlines(keepends=True)


def arrived(store: Store, experiment: str) -> frozenset[int]:
    """Return the lines that a server has."""
    runs = {run.name: run for run in store.runs(experiment)}
    lines = {{"campaign": 0, "cell": CELL}[name] for name in runs}
    ends = {"campaign": 14, "cell": END}
    lines |= {ends[name] for name, run in runs.items() if run.status == "FINISHED"}
    if cell := runs.get("cell"):
        lines |= {int(key[1:]) for key, value in cell.metrics.items() if f"m{value - 0.5:g}" == key}
        lines |= {12} if cell.tags.get("note") == "kept" else set()
    return frozenset(lines)


def call(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    code = command_line.main(arguments)
    output = "".join(capsys.readouterr())
    assert all(character.isprintable() for character in output if character != "\n")
    return code, output


@pytest.mark.parametrize(
    "names", [tuple(NOT_OPENED), ("a flipped digit", "cut in the last line", *REFUSED)]
)
def test_replay_sends_intact_lines_and_names_what_is_refused_or_damaged(
    names: Sequence[str], store: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cases = {name: {**CASES, **REFUSED, **NOT_OPENED}[name] for name in names}
    for number, (name, case) in enumerate(cases.items()):
        folder = tmp_path / "journals" / str(number)
        (folder / journal.RECORDS).write_bytes(b"".join(case.change(write(folder, name))))
    refused = sum(case.reported for name, case in cases.items() if name not in CASES)
    for _ in range(2):  # the second time changes nothing
        code, output = call(capsys, "replay", f"--journal={tmp_path / 'journals'}")
        assert (code, output.count("refused: ")) == (1, min(refused, journal.NAMED)), output
        assert (f"and {refused - journal.NAMED} more" in output) == (refused > journal.NAMED)
        assert (f"0/{journal.RECORDS} byte" in output) == ("a flipped digit" in names)
        arrivals = {name: arrived(store, name) for name in cases}
        assert arrivals == {name: ALL - case.lost for name, case in cases.items()}


@pytest.mark.parametrize("name", CASES)
def test_resume_reads_intact_lines_and_appends(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal, "LONGEST_LINE_BYTES", 4_096)
    case, damaged = CASES[name], dict[int, str]()
    lines = case.change(write(tmp_path, "x"))
    (tmp_path / journal.RECORDS).write_bytes(b"".join(lines))
    before = list(journal.read_all(tmp_path, damaged))
    intact = {to_line(record) for line, record in enumerate(records("x")) if line not in case.lost}
    assert set(map(to_line, before)) == intact
    assert len(damaged) == case.reported
    if case.lost == {5}:
        assert list(damaged) == [sum(map(len, lines[:5]))]
    resumed = Journal(tmp_path)
    resumed.append(RunClosed("r9", 1, "failed"))
    assert list(journal.read_all(tmp_path)) == [*before, RunClosed("r9", 1, "failed")]
    outcomes = {result.outcome for result in cell_results(tmp_path).values()}
    assert outcomes == (set() if END in case.lost else {RunOutcome.OK})
    assert [run.name for run in stored(tmp_path)] == ([] if CELL in case.lost else ["cell"])
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
    journal.write_campaign(Journal(tmp_path / "c").folder, CAMPAIGN)
    (tmp_path / "c" / journal.RECORDS).unlink()
    for words in (
        ["captioning", "--resume=c", f"--journal={tmp_path}"],
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
def test_mark_of_delivery_counts_if_it_is_intact_and_of_this_server(
    text: bytes, tmp_path: Path
) -> None:
    size = sum(map(len, write(tmp_path, "x")))
    journal.mark_delivered(tmp_path, size, "http://me:secret@host:5000/")
    assert "secret" not in (tmp_path / journal.DELIVERED).read_text()
    assert journal.delivered(tmp_path, "http://host:5000") == size
    assert journal.delivered(tmp_path, "http://another:5000") == 0
    (tmp_path / journal.DELIVERED).write_bytes(text.replace(b"URI", b"http://host:5000"))
    assert journal.delivered(tmp_path, "http://host:5000") == 0


def test_uploader_that_begins_in_the_middle_names_earlier_damage(
    store: Store, tmp_path: Path
) -> None:
    folder = tmp_path / "journal"
    lines = write(folder, "middle")
    assert store.apply(records("middle")[:5], folder) == []
    lines[3] = lines[3].replace(b"3.5", b"4.5")
    (folder / journal.RECORDS).write_bytes(b"".join(lines))
    journal.mark_delivered(folder, sum(map(len, lines[:5])), store.uri)
    uploader = Uploader(Journal(folder), Store(store.uri), store.run_id("c1") or "")
    uploader.start()
    wait_for(lambda: uploader.up_to_date, 30)
    assert uploader.finish(30)
    assert (list(uploader.damaged), uploader.refused) == ([sum(map(len, lines[:3]))], [])
    assert arrived(store, "middle") == ALL


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
def test_damaged_description_is_one_line_and_others_are_readable(
    change: Callable[[bytes], bytes], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("older", "newest"):
        journal.write_campaign(Journal(tmp_path / name).folder, CAMPAIGN)
    path = tmp_path / "newest" / journal.CAMPAIGN
    path.write_bytes(change(path.read_bytes()))
    gc.collect()  # finalisers of earlier objects print messages at the recursion limit
    code, output = call(capsys, "captioning", "--resume=last", f"--journal={tmp_path}")
    assert code == 2
    assert re.fullmatch(rf"evenhand: {path} .* replay --journal {tmp_path}/newest\n", output)
    ((older, description),) = journal.descriptions(tmp_path, "older")
    assert (older.name, description) == ("older", CAMPAIGN)
    with pytest.raises(UsageError) as error:
        journal.descriptions(tmp_path, "newest")
    assert error.value.code is ErrorCode.UNREADABLE
