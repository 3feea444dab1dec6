"""Journals keep whole records, in order, through kills, torn writes and full disks."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tracking import journal
from tracking.errors import ErrorCode, UsageError
from tracking.journal import Journal, JournalError
from tracking.records import (
    Artifact,
    DatasetUsed,
    Metrics,
    ModelSaved,
    Point,
    Record,
    RunClosed,
    RunOpened,
    Tags,
    from_line,
    to_line,
)

ONE_OF_EACH: list[Record] = [
    RunOpened("r", 1, "captioning", "name", {"kind": "cell"}, {"batch_size": "32"}),
    Tags("r", {"a": "b\nc"}),
    Metrics("r", (Point("train/loss", 0.1 + 0.2, 3, 17), Point("x", 1e-300, 0, 0))),
    Artifact("r", "cells/a/values.parquet", "raw"),
    DatasetUsed("r", "scenes", "d", "s", "{}", "{}", "training"),
    ModelSaved("r", "captioner", "cells/a/model", {"flavor": "keras", "data": "data"}),
    RunClosed("r", 2, "failed", "why – ünïcode"),
]


@pytest.mark.parametrize("record", ONE_OF_EACH, ids=lambda record: type(record).__name__)
def test_record_survives_the_line_bit_for_bit(record: Record) -> None:
    line = to_line(record)
    assert "\n" not in line
    assert from_line(line) == record


def test_second_writer_and_unwritable_folder_are_wrong_calls(tmp_path: Path) -> None:
    first = Journal(tmp_path)
    codes = {tmp_path: ErrorCode.IN_USE, Path("/proc/nothing"): ErrorCode.UNWRITABLE}
    for folder, code in codes.items():
        with pytest.raises(UsageError) as error:
            Journal(folder)
        assert error.value.code is code
    first.close()


@pytest.mark.parametrize("small_disk", ["64k"], indirect=True)
def test_full_disk_loses_nothing(small_disk: Path) -> None:
    records = Journal(small_disk)
    written: list[Record] = []

    def fill() -> None:
        for number in range(10_000):
            written.append(Tags("r", {"number": str(number), "filler": "x" * 500}))
            records.append(written[-1])

    with pytest.raises(JournalError) as error:
        fill()
    assert error.value.code is ErrorCode.UNWRITABLE
    on_disk = list(journal.read_all(small_disk))
    assert on_disk == written[: len(on_disk)]
    assert on_disk + records.waiting() == written
    subprocess.run(["mount", "-o", "remount,size=1m", str(small_disk)], check=True)
    written.append(ONE_OF_EACH[-1])
    records.append(ONE_OF_EACH[-1])
    assert list(journal.read_all(small_disk)) == written
    assert records.waiting() == []
