"""Bounds and encodings of foreign text and JSON; folders that appear whole or not at all."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from experiments.datasets import files
from experiments.datasets.files import json_arrays, lines, new_folder
from tests.experiments.datasets.folders import refused
from tracking.errors import ErrorCode


@pytest.mark.parametrize(
    "text",
    [
        '{"items": [1, 2',
        "",
        '{"other": [' + "[" * 100_000 + "]}",
        '{"items": [' + "9" * 5_000 + "]}",
    ],
    ids=["cut", "empty", "nested", "digits"],
)
def test_broken_json_and_bombs_are_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "file.json").write_text(text)
    with refused(ErrorCode.UNREADABLE):
        json_arrays(tmp_path / "file.json", "items")


def test_large_json_is_refused_before_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file.json"
    path.write_text(json.dumps({"items": [1]}))
    assert json_arrays(path, "items", "missing") == [[1], []]
    monkeypatch.setattr(files, "MAX_JSON_BYTES", 5)
    with refused(ErrorCode.TOO_LARGE):
        json_arrays(path, "items")


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16"])
def test_byte_order_marks_are_dropped(tmp_path: Path, encoding: str) -> None:
    path = tmp_path / "file"
    path.write_bytes('{"items":\r\n["café 🐕"]}'.encode(encoding))
    assert json_arrays(path, "items") == [["café 🐕"]]
    assert list(lines(path)) == ['{"items":', '["café 🐕"]}']


@pytest.mark.parametrize(
    ("content", "code", "values"),
    [
        (b"image\ncaf\xe9", ErrorCode.UNREADABLE, ["line 2", "0xe9", "UTF-8"]),
        (b"\xef\xbb\xbfcaf\xe9", ErrorCode.UNREADABLE, ["line 1", "0xe9"]),
        (b"\xed\xa0\x80", ErrorCode.UNREADABLE, ["line 1", "0xed"]),
        (b"\xff\xfea\0\n\0\0\xd8 \0", ErrorCode.UNREADABLE, []),
        (b"image\n" + b"x" * 1_100_000, ErrorCode.TOO_LARGE, ["line 2", "1,048,576"]),
    ],
)
def test_other_bytes_and_endless_lines_are_refused(
    tmp_path: Path, content: bytes, code: ErrorCode, values: list[str]
) -> None:
    (tmp_path / "captions.txt").write_bytes(content)
    with refused(code, str(tmp_path), *values):
        list(lines(tmp_path / "captions.txt"))


def test_new_folder_of_the_faster_process_stays(tmp_path: Path) -> None:
    target = tmp_path / "deep" / "target"
    with new_folder(target) as slower:
        with new_folder(target) as faster:
            (faster / "which").write_text("faster")
        (slower / "which").write_text("slower")
    assert (target / "which").read_text() == "faster"
    assert [path.name for path in target.parent.iterdir()] == ["target"]


def test_new_folder_is_missing_after_an_error(tmp_path: Path) -> None:
    def interrupt() -> None:
        with new_folder(tmp_path / "target") as partial:
            (partial / "file").write_text("half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupt()
    assert list(tmp_path.iterdir()) == []
