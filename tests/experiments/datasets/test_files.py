"""Foreign text and JSON are read within bounds; folders appear whole or not at all."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from experiments.datasets import files
from experiments.datasets.files import json_arrays, lines, new_folder
from tracking.errors import UsageError


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"items": [1, 2', "is no complete JSON"),
        ("", "is no complete JSON"),
        ('{"other": [' + "[" * 100_000 + "]}", "is no complete JSON"),
        ('{"items": [' + "9" * 5_000 + "]}", "is no complete JSON"),
    ],
)
def test_broken_json_and_bombs_are_refused(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "file.json"
    path.write_text(text)
    with pytest.raises(UsageError, match=f"{path}: {message}"):
        json_arrays(path, "items")


def test_large_json_is_refused_before_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file.json"
    path.write_text(json.dumps({"items": [1]}))
    assert json_arrays(path, "items", "missing") == [[1], []]
    monkeypatch.setattr(files, "MAX_JSON_BYTES", 5)
    with pytest.raises(UsageError, match="at most 5 are read"):
        json_arrays(path, "items")


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16"])
def test_byte_order_marks_are_dropped(tmp_path: Path, encoding: str) -> None:
    path = tmp_path / "file"
    path.write_bytes('{"items":\r\n["café 🐕"]}'.encode(encoding))
    assert json_arrays(path, "items") == [["café 🐕"]]
    assert list(lines(path)) == ['{"items":', '["café 🐕"]}']


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"image\ncaf\xe9", ", line 2: byte 0xe9 is not UTF-8; save the file as UTF-8"),
        (b"\xef\xbb\xbfcaf\xe9", ", line 1: byte 0xe9 is not UTF-8"),
        (b"\xed\xa0\x80", ", line 1: byte 0xed is not UTF-8"),
        (b"\xff\xfea\0\n\0\0\xd8 \0", ": is no text file: 'utf-16"),
        (b"image\n" + b"x" * 5_000_000, ", line 2: has more than 1,048,576 characters"),
    ],
)
def test_other_bytes_and_endless_lines_are_refused(
    tmp_path: Path, content: bytes, message: str
) -> None:
    path = tmp_path / "captions.txt"
    path.write_bytes(content)
    with pytest.raises(UsageError) as error:
        list(lines(path))
    assert str(error.value).startswith(f"{path}{message}")


def test_new_folder_of_the_faster_process_stays(tmp_path: Path) -> None:
    target = tmp_path / "deep" / "target"
    with new_folder(target) as slower:
        with new_folder(target) as faster:
            (faster / "which").write_text("faster")
        (slower / "which").write_text("slower")
    assert (target / "which").read_text() == "faster"
    assert [path.name for path in target.parent.iterdir()] == ["target"]


def test_new_folder_is_missing_after_an_error(tmp_path: Path) -> None:
    def interrupted() -> None:
        with new_folder(tmp_path / "target") as partial:
            (partial / "file").write_text("half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert list(tmp_path.iterdir()) == []
