"""Whatever happened to a journal's files: what is damaged is named in a line, and everything that is intact arrives."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import shutil
import subprocess
import sys
import time
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from experiments import studies
from experiments.cli import main as command_line
from experiments.run.journal_runs import cell_results, stored
from tests.conftest import ROOT, wait_for
from tracking import journal
from tracking.errors import WrongCall
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
MANY = 10_000


def records(place: str) -> list[Record]:
    """A line each, named after its number where it is a metric's."""
    points = [Metrics("r1", (Point(f"m{line}", line + 0.5, 0, 1_000 + line),)) for line in METRICS]
    return [
        RunOpened("c1", 1_000, place, "campaign", {"kind": "campaign"}),
        RunOpened(
            "r1", 2_000, place, "cell", {"kind": "cell", "campaign": "run:c1", "cell": "block-001"}
        ),
        *points,
        Tags("r1", {"note": "kept"}),
        RunClosed("r1", 9_000, "ok"),
        RunClosed("c1", 9_500, "ok"),
    ]


def checked(text: str) -> bytes:
    """A line as the journal writes it, of any JSON object."""
    body = text.encode()[:-1]
    return b'%s,"crc32":"%08x"}\n' % (body, zlib.crc32(body))


def flipped(line: bytes, at: int) -> bytes:
    return line[:at] + bytes([line[at] ^ 1]) + line[at + 1 :]


def unlike(name: str, **changed: object) -> bytes:
    """A record with a right checksum and a field as nobody writes it; `...` removes it."""
    fields = {**json.loads(to_line(records("x")[5])), "record": name, **changed}
    return checked(json.dumps({key: value for key, value in fields.items() if value is not ...}))


Lines = list[bytes]


@dataclass(frozen=True)
class Case:
    """what: done to the lines of a journal. lost: which of them do not arrive. said: a pattern of what is said of it."""

    what: Callable[[Lines], Lines]
    lost: frozenset[str] = frozenset()
    said: str = ""
    code: int = 0


def at_5(change: Callable[[bytes], bytes]) -> Callable[[Lines], Lines]:
    return lambda lines: [*lines[:5], change(lines[5]), *lines[6:]]


def swapped(lines: Lines) -> Lines:
    lines[5], lines[9] = lines[9], lines[5]
    return lines


M5, M6 = frozenset({"m5"}), frozenset({"m6"})
RUN = ALL - {"campaign", "campaign ended"}
LINE_6 = r"records\.jsonl line 6: "
CASES = {
    "a flipped byte": Case(at_5(lambda line: flipped(line, 3)), M5, LINE_6 + "its checksum", 1),
    "a flipped digit": Case(
        at_5(lambda line: line.replace(b"5.5", b"7.5")), M5, LINE_6 + "its checksum is another", 1
    ),
    "a flipped checksum": Case(at_5(lambda line: flipped(line, len(line) - 5)), M5, LINE_6, 1),
    "a flipped brace": Case(at_5(lambda line: flipped(line, len(line) - 2)), M5, LINE_6, 1),
    "a flipped newline": Case(at_5(lambda line: line[:-1] + b"x"), frozenset(), LINE_6, 1),
    "a newline in the middle": Case(
        at_5(lambda line: line[:20] + b"\n" + line[21:]), M5, LINE_6, 1
    ),
    "zeros for a line": Case(at_5(lambda line: bytes(len(line) - 1) + b"\n"), M5, LINE_6, 1),
    "zeros over two lines": Case(
        lambda lines: [*lines[:5], lines[5][:30] + bytes(60) + lines[6][-20:], *lines[7:]],
        M5 | M6,
        LINE_6,
        1,
    ),
    "zeros before a line": Case(at_5(lambda line: bytes(4_096) + line), frozenset(), LINE_6, 1),
    "a record glued to a torn one": Case(at_5(lambda line: line[:40]), M5, LINE_6, 1),
    "an unknown record": Case(
        at_5(lambda _: unlike("Surprise")), M5, LINE_6 + "it is no record that is known", 1
    ),
    "an unknown field": Case(
        at_5(lambda _: unlike("Metrics", more="x")), M5, LINE_6 + "Metrics has no field 'more'", 1
    ),
    "a missing field": Case(
        at_5(lambda _: unlike("Metrics", run=...)), M5, LINE_6 + "Metrics lacks a field", 1
    ),
    "a field of another type": Case(at_5(lambda _: unlike("Metrics", points=5)), M5, LINE_6, 1),
    "a value that is no number": Case(
        at_5(
            lambda _: unlike(
                "Metrics", points=[{"key": "m5", "value": "5.5", "step": 0, "time_ms": 1}]
            )
        ),
        M5,
        LINE_6,
        1,
    ),
    "an unknown outcome": Case(
        at_5(
            lambda _: checked(
                '{"record":"RunClosed","run":"r1","time_ms":1,"outcome":"\\u001b[31m"}'
            )
        ),
        M5,
        LINE_6,
        1,
    ),
    "a list": Case(at_5(lambda _: b"[1, 2]\n"), M5, LINE_6, 1),
    "an empty line": Case(at_5(lambda _: b"\n"), M5, LINE_6 + "it has no checksum", 1),
    "nested deeply": Case(at_5(lambda _: checked("[" * 200_000 + "}")), M5, LINE_6 + "it is n", 1),
    "an endless number": Case(
        at_5(lambda _: checked('{"record":' + "9" * 10_000 + "}")), M5, LINE_6 + "it is not JSON", 1
    ),
    "invalid UTF-8": Case(at_5(lambda line: line.replace(b"m5", b"\xff\xfe")), M5, LINE_6, 1),
    "a huge line": Case(
        at_5(lambda line: b"x" * (40 * 2**20) + b"\n" + line),
        frozenset(),
        LINE_6 + "it is longer than",
        1,
    ),
    "zeros of many blocks before a line": Case(
        at_5(lambda line: bytes(40 * 2**20) + line), frozenset(), LINE_6 + "it is longer than", 1
    ),
    "line ends of another system": Case(
        lambda lines: [line[:-1] + b"\r\n" for line in lines], frozenset(), "line 1: .*more", 1
    ),
    "no checksum": Case(
        at_5(lambda line: re.sub(rb',"crc32":"\w+"}', b"}", line)),
        M5,
        LINE_6 + "it has no checksum",
        1,
    ),
    "a line twice": Case(at_5(lambda line: line + line)),
    "lines out of order": Case(swapped),
    "cut behind a line": Case(lambda lines: lines[:-1], frozenset({"campaign ended"})),
    "cut in the last line": Case(
        lambda lines: [*lines[:-1], lines[-1][:30]], frozenset({"campaign ended"})
    ),
    "cut in the first line": Case(lambda lines: [lines[0][:7]], ALL),
    "cut before the last newline": Case(lambda lines: [*lines[:-1], lines[-1][:-1]]),
    "the last newline flipped": Case(
        lambda lines: [*lines[:-1], lines[-1][:-1] + b"x"], frozenset(), "line 15: ", 1
    ),
    "zeros behind the end": Case(lambda lines: [*lines, bytes(512)], frozenset(), "line 16: ", 1),
    "empty": Case(lambda _: [], ALL),
    "another file": Case(lambda _: [bytes(range(256)) * 200], ALL, r"line 1: .*and \d+ more", 1),
    "another file without a newline": Case(
        lambda _: [b"\x7fELF" * 200], ALL, "line 1: it is no record", 1
    ),
    "a run that nobody opened": Case(
        lambda lines: [lines[0], *lines[2:]], RUN, "refused: .* of r1: the run is not", 1
    ),
    "a run with a quote": Case(
        at_5(lambda line: line + checked(to_line(Tags("x' OR '1'='1", {"a": "b"})))),
        frozenset(),
        "is no id of a run",
        1,
    ),
    "an experiment with half of a character": Case(
        lambda lines: [
            *lines[:5],
            checked(to_line(RunOpened("r5", 1_000, "half \ud800", "other", {"kind": "campaign"}))),
            checked(to_line(Tags("r5", {"a": "b"}))),
            *lines[5:],
        ],
        frozenset(),
        r"refused: RunOpened of r5: the experiment's name 'half \\ud800' .* refused: Tags of r5: the run is not",
        1,
    ),
    "halves of characters in names and values": Case(
        at_5(
            lambda line: (
                line
                + checked(to_line(Tags("r1", {"a": "\udc80", "\ud800": "b"})))
                + checked(to_line(Artifact("r1", "\ud800")))
            )
        ),
        frozenset(),
        r"refused: Tags of r1: '\\ud800' is no name.* refused: Artifact of r1: '\\ud800' cannot be read",
        1,
    ),
    "keys and numbers that no server takes": Case(
        at_5(
            lambda line: (
                line
                + checked(
                    to_line(Metrics("r1", (Point("a(b)", 1, 0, 1), Point("ok", 1, 2**70, 1))))
                )
            )
        ),
        frozenset(),
        r"'a\(b\)' is no name",
        1,
    ),
}


@pytest.fixture(scope="module")
def uri(tmp_path_factory: pytest.TempPathFactory, empty_store: Path) -> str:
    return f"sqlite:///{shutil.copy(empty_store, tmp_path_factory.mktemp('damage') / 'mlflow.db')}"


@pytest.fixture
def store(uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    monkeypatch.chdir(tmp_path)
    return Store(uri)


def written(folder: Path, place: str) -> Lines:
    kept = Journal(folder)
    for record in records(place):
        kept.append(record)
    kept.close()
    return (folder / journal.RECORDS).read_bytes().splitlines(keepends=True)


def arrived(store: Store, place: str) -> frozenset[str]:
    found = {run.name: run for run in store.runs(place)}
    cell = found.get("cell")
    parts = {*found, *(f"{name} ended" for name, run in found.items() if run.status == "FINISHED")}
    parts |= set(cell.metrics) | (set(cell.tags) & {"note"}) if cell else set()
    assert not cell or all(value == int(key[1:]) + 0.5 for key, value in cell.metrics.items())
    return frozenset(parts)


def called(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    """Exit code and output of the command line, in this process: an exception of it is one of the test's."""
    code = command_line.main(arguments)
    output = "".join(capsys.readouterr())
    assert "Traceback" not in output
    assert all(one.isprintable() for one in output if one != "\n")
    return code, output


# What servers do not take.
BY_SERVERS = [name for name, case in CASES.items() if re.search("refused|no id|no name", case.said)]
# One of each way in which a journal is read; the others are judged without a server.
SENT = (
    "a flipped byte",
    "a record glued to a torn one",
    "line ends of another system",
    "cut in the first line",
    "another file without a newline",
    "a line twice",
    *BY_SERVERS,
)


@pytest.mark.parametrize("name", SENT)
def test_what_is_intact_arrives_and_what_is_not_is_named(
    name: str, store: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    case, place, folder = CASES[name], f"damage {list(CASES).index(name)}", tmp_path / "journal"
    (folder / journal.RECORDS).write_bytes(b"".join(case.what(written(folder, place))))
    for command in ("replay", "import"):  # the second time changes nothing
        code, output = called(capsys, command, f"--journal={folder}")
        assert code == case.code, output
        assert re.search(case.said, output.replace("\n", " ")), output
        assert len(output.splitlines()) < 16
        assert arrived(store, place) == ALL - case.lost


def parts(found: list[Record]) -> set[str]:
    names = {record.run: record.name for record in found if isinstance(record, RunOpened)}
    closed = {record.run for record in found if isinstance(record, RunClosed)}
    points = [
        point.key for record in found if isinstance(record, Metrics) for point in record.points
    ]
    texts = [key for record in found if isinstance(record, Tags) for key in record.values]
    ended = {f"{name} ended" for run, name in names.items() if run in closed}
    return ({*names.values(), *points, *texts} | ended) & ALL


@pytest.mark.parametrize("name", CASES)
def test_a_campaign_goes_on_with_what_is_intact(name: str, tmp_path: Path) -> None:
    """What `resume` reads: which cells ended, the runs for a report without a server; and it writes behind all that."""
    case, damaged = CASES[name], dict[int, journal.Damage]()
    (tmp_path / journal.RECORDS).write_bytes(b"".join(case.what(written(tmp_path, "x"))))
    before = list(journal.read_all(tmp_path, damaged))
    if name not in BY_SERVERS:
        assert parts(before) == ALL - case.lost
        assert re.search(
            case.said, " ".join(journal.named([str(line) for line in damaged.values()]))
        )
        assert bool(damaged) == bool(case.code)
    kept = Journal(tmp_path)
    kept.append(RunClosed("r9", 1, "failed"))
    assert list(journal.read_all(tmp_path)) == [*before, RunClosed("r9", 1, "failed")]
    ended = {one.outcome for one in cell_results(tmp_path).values()}
    assert ended == ({RunOutcome.OK} if {"cell", "cell ended"} <= ALL - case.lost else set())
    assert [run.name for run in stored(tmp_path)] == (["cell"] if "cell" not in case.lost else [])
    kept.close()


def test_several_journals_are_sent_though_one_cannot_be_read(
    store: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    written(tmp_path / "a", "several a")
    (tmp_path / "b" / journal.RECORDS).mkdir(parents=True)
    written(tmp_path / "c", "several c")
    code, output = called(capsys, "replay", f"--journal={tmp_path}")
    assert code == 1
    assert re.search(rf"! {tmp_path}/b/records\.jsonl cannot be read: Is a directory", output)
    assert "2 of 3 journals sent" in output
    assert arrived(store, "several a") == arrived(store, "several c") == ALL


@pytest.mark.timeout(60)
def test_a_pipe_among_journals_is_named_and_not_waited_for(
    store: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As the records, as the description, as what was delivered."""
    for name, piped in {
        "a": journal.RECORDS,
        "b": journal.CAMPAIGN,
        "c": journal.DELIVERED,
    }.items():
        written(tmp_path / name, f"piped {name}")
        (tmp_path / name / piped).unlink(missing_ok=True)
        os.mkfifo(tmp_path / name / piped)
    assert "delivered is damaged" in journal.delivered(tmp_path / "c", store.uri)[1]
    code, output = called(capsys, "replay", f"--journal={tmp_path}")
    assert code == 1
    assert re.search(
        rf"! {tmp_path}/a/records\.jsonl cannot be read: it is a pipe or a device", output
    )
    assert "2 of 3 journals sent" in output
    assert arrived(store, "piped b") == arrived(store, "piped c") == ALL
    with pytest.raises(WrongCall, match="it is a pipe or a device"):
        Journal(tmp_path / "a")
    code, output = called(capsys, "captioning", "--resume=b", f"--journal={tmp_path}")
    assert code == 2
    assert re.fullmatch(
        rf"evenhand: {tmp_path}/b/campaign.json is damaged: it cannot be read \(it is a pipe.*\n",
        output,
    )


@pytest.mark.usefixtures("store")
@pytest.mark.parametrize("command", ["resume", "extend", "replay"])
def test_missing_records_are_one_line_and_no_new_ones_are_begun(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = studies.load("lenet").settings(frameworks=("pytorch",))
    described = {**ASKED, "study": "lenet", "settings": dataclasses.asdict(settings)}
    journal.write_campaign(Journal(tmp_path / "c").folder, json.loads(json.dumps(described)))
    (tmp_path / "c" / journal.RECORDS).unlink()
    words = {
        "resume": ["lenet", "--resume=c", "--frameworks=pytorch", f"--journal={tmp_path}"],
        "extend": ["extend", "--run=c", f"--journal={tmp_path}"],
        "replay": ["replay", f"--journal={tmp_path}/c"],
    }[command]
    code, output = called(capsys, *words)
    assert code == 2, output
    assert re.fullmatch(rf"evenhand: .*{tmp_path}/c.*\n", output)
    assert not (tmp_path / "c" / journal.RECORDS).exists()


@pytest.mark.usefixtures("store")
def test_a_missing_file_is_a_wrong_call(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "empty").mkdir()
    for folder in ("empty", "none"):
        code, output = called(capsys, "replay", f"--journal={tmp_path}/{folder}")
        assert code == 2
        assert "evenhand: " in output


def test_a_journal_of_somebody_else_is_one_line(tmp_path: Path) -> None:
    written(tmp_path / "private", "private")
    (tmp_path / "private").chmod(0)
    # Once as the caller, which imports everything: Python may lie where the other user cannot enter.
    call = "main(['replay', f'--journal={sys.argv[1]}%s'])"
    lines = ["import contextlib, os, sys", "from experiments.cli.main import main"]
    lines += [
        "with contextlib.redirect_stderr(None):",
        f"    {call % '/none'}",
        "os.geteuid() or os.seteuid(65534)",
    ]
    code = "\n".join([*lines, f"sys.exit({call % ''})"])
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "private")],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert re.fullmatch(
        "evenhand: journal=.* cannot be read: Permission denied; give another folder\n", done.stderr
    )


# ---- what was delivered


@pytest.mark.parametrize(
    "text",
    [
        b"100000\nURI",
        b"-3\nURI",
        b"7\nURI",
        b"nonsense",
        b"\xff\xfe",
        b"",
        b"9" * 3_000 + b"\nURI",
        b"1e3",
        b"12\nhttp://elsewhere\n",
    ],
)
def test_a_damaged_mark_is_told_and_everything_is_sent_again(
    store: Store, tmp_path: Path, text: bytes
) -> None:
    """Beyond the end it was waited for two minutes, and the server was blamed."""
    place = f"delivered {text[:20]!r}"
    written(tmp_path / "journal", place)
    mark = text.replace(b"URI", journal._public(store.uri).encode())
    (tmp_path / "journal" / journal.DELIVERED).write_bytes(mark)
    kept, began = Journal(tmp_path / "journal"), time.monotonic()
    store.apply(records(place)[:1], tmp_path)
    uploader = Uploader(kept, store, store.run_id("c1") or "")
    assert (not uploader.doubt) == text.endswith(b"elsewhere\n")
    uploader.start()
    assert uploader.finish(60)
    assert time.monotonic() - began < 30
    assert arrived(store, place) == ALL
    assert journal.delivered(tmp_path / "journal", store.uri) == (kept.size, "")
    assert journal.delivered(tmp_path / "journal", "http://another:5000") == (0, "")


def test_a_mark_keeps_no_password(tmp_path: Path) -> None:
    size = sum(map(len, written(tmp_path, "x")))
    journal.mark_delivered(tmp_path, size, "http://me:secret@host:5000/")
    assert "secret" not in (tmp_path / journal.DELIVERED).read_text()
    assert journal.delivered(tmp_path, "http://host:5000") == (size, "")


def test_an_uploader_that_begins_in_the_middle_knows_its_runs_and_names_damage_before_it(
    store: Store, tmp_path: Path
) -> None:
    folder, place = tmp_path / "journal", "middle"
    lines = written(folder, place)
    assert store.apply(records(place)[:5], folder) == []
    lines[3] = flipped(lines[3], 40)
    (folder / journal.RECORDS).write_bytes(b"".join(lines))
    journal.mark_delivered(folder, sum(map(len, lines[:5])), store.uri)
    again = Store(store.uri)
    uploader = Uploader(Journal(folder), again, store.run_id("c1") or "")
    uploader.start()
    wait_for(lambda: uploader.up_to_date, 30)
    assert uploader.finish(30)
    assert [str(one) for one in uploader.damaged.values()] == [
        f"{folder}/records.jsonl line 4: its checksum is another; the line is set aside"
    ]
    assert uploader.refused == []
    assert arrived(store, place) == ALL


# ---- what was asked

ASKED = {
    "study": "captioning",
    "run": "c1",
    "run_id": "abc",
    "experiment": "captioning",
    "settings": {"epochs": 25},
}
DAMAGED = {
    "truncated": lambda text: text[:40],
    "empty": lambda _: b"",
    "zeros": lambda text: bytes(len(text)),
    "not JSON": lambda _: b"hello",
    "a list": lambda _: b"[]",
    "not UTF-8": lambda text: text.replace(b"captioning", b"\xff\xfe\xfd"),
    "nested deeply": lambda _: b"[" * 200_000,
    "a digit flipped": lambda text: text.replace(b"25", b"35"),
    "no study": lambda _: b'{"run": "c1"}',
    "no settings": lambda text: text.replace(b'"settings"', b'"sittings"'),
    "settings of another type": lambda _: json.dumps({**ASKED, "settings": 5}).encode(),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_a_damaged_description_is_one_line_and_its_records_arrive(
    name: str, store: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place, root = f"asked {name}", tmp_path / "journals"
    journal.write_campaign(Journal(root / "older").folder, ASKED)
    written(root / "newest", place)
    journal.write_campaign(root / "newest", ASKED)
    path = root / "newest" / journal.CAMPAIGN
    assert journal.read_campaign(root / "newest") == ASKED
    path.write_bytes(DAMAGED[name](path.read_bytes()))
    for wanted in ("last", "newest"):
        code, output = called(capsys, "captioning", f"--resume={wanted}", f"--journal={root}")
        assert code == 2
        assert re.fullmatch(
            rf"evenhand: {path} is damaged: .*, by replay --journal {root}/newest\n", output
        )
    assert [folder.name for folder, _ in journal.descriptions(root, "older")] == ["older"]
    with pytest.raises(WrongCall, match="is damaged"):
        journal.descriptions(root, "last")
    code, output = called(capsys, "replay", f"--journal={root}")
    assert code == 0, output
    assert arrived(store, place) == ALL


def test_damage_is_named_by_its_number_and_only_the_first_few(tmp_path: Path) -> None:
    (tmp_path / journal.RECORDS).write_bytes(b"x\n" * MANY)
    damaged: journal.Damages = {}
    assert list(journal.read_all(tmp_path, damaged)) == []
    assert len(damaged) == MANY
    assert (
        journal.named([str(one) for one in damaged.values()])[-1]
        == f"and {MANY - journal.NAMED:,} more"
    )
