from __future__ import annotations

import json
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from experiments.datasets import coco, files
from experiments.datasets.files import json_items, lines, new_folder
from tracking.errors import WrongCall

_JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4)
    ),
    max_leaves=10,
)


@settings(max_examples=150, deadline=None)
@given(
    before=_JSON,
    items=st.lists(_JSON, max_size=6),
    indent=st.sampled_from([None, 2]),
    window=st.integers(1, 40),
)
def test_streamed_as_json_reads_it(
    tmp_path_factory: Any, before: Any, items: list[Any], indent: int | None, window: int
) -> None:
    """Whatever lies before the array, and wherever the window cuts the text."""
    path = tmp_path_factory.mktemp("json") / "file.json"
    path.write_text(json.dumps({"before": before, "items": items, "after": [1, 2]}, indent=indent))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(files, "_WINDOW_CHARACTERS", window)
        assert list(json_items(path, "items")) == items
        assert list(json_items(path, "absent")) == []


@pytest.mark.parametrize(
    "text",
    ['{"items": [1, 2', '{"items": [1 2]}', "[1, 2]", "", "no JSON", '{"items": [nonsense]}'],
)
def test_broken_json_is_told(tmp_path: Path, text: str) -> None:
    path = tmp_path / "file.json"
    path.write_text(text)
    with pytest.raises(
        WrongCall, match=rf"{path} is no complete JSON: .* at character \d+; fetch the file again"
    ):
        list(json_items(path, "items"))


@pytest.mark.parametrize(
    "encoding", ["utf-8-sig", "utf-16-le", "utf-16-be", "utf-32-le", "utf-32-be"]
)
def test_byte_order_marks(tmp_path: Path, encoding: str) -> None:
    path = tmp_path / "file"
    mark = "" if encoding == "utf-8-sig" else "\ufeff"
    path.write_bytes(f'{mark}{{"items":\r\n["café 🐕"]}}'.encode(encoding))
    assert list(json_items(path, "items")) == ["café 🐕"]
    assert list(lines(path)) == ['{"items":', '["café 🐕"]}']


@pytest.mark.parametrize("window", [4, 1 << 20])
@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'{"items":\n["caf\xe9"]}', "line 2: byte 0xe9 is not UTF-8; save the file as UTF-8"),
        (b'\xef\xbb\xbf{"items": ["caf\xe9"]}', "line 1: byte 0xe9 is not UTF-8"),
        (b'{"items": []}\n\xc3', "line 2: byte 0xc3 is not UTF-8"),
        (b'{"items": ["\xed\xa0\x80"]}', "line 1: byte 0xed is not UTF-8"),
        (
            b"\xff\xfe" + '{"items":\n[]}'.encode("utf-16-le") + b"\x00\xd8\x20\x00",
            "line 2: byte 0x00 is not UTF-16",
        ),
    ],
)
def test_bytes_of_no_encoding_are_refused_with_their_line(
    tmp_path: Path, content: bytes, message: str, window: int
) -> None:
    path = tmp_path / "file.json"
    path.write_bytes(content)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(files, "_WINDOW_CHARACTERS", window)
        for read in (lambda: list(json_items(path, "items")), lambda: list(lines(path))):
            with pytest.raises(WrongCall) as caught:
                read()
            assert f"{path}, {message}" in str(caught.value)


def test_a_line_without_an_end_is_not_read_whole(tmp_path: Path) -> None:
    path = tmp_path / "captions.txt"
    path.write_bytes(b"image,caption\n" + b"x" * 5_000_000)
    with pytest.raises(
        WrongCall, match=r"captions\.txt, line 2 has more than 1,048,576 characters"
    ):
        list(lines(path))


@pytest.mark.parametrize(
    ("value", "message"),
    [("[" * 100_000, "is nested too deeply"), ("9" * 5_000, "has a number of thousands of digits")],
)
@pytest.mark.parametrize("key", ["items", "other"])
def test_bombs_in_json_are_one_line(tmp_path: Path, value: str, message: str, key: str) -> None:
    path = tmp_path / "file.json"
    path.write_text(f'{{"{key}": [{value}]}}')
    with pytest.raises(
        WrongCall, match=rf"{path} is no complete JSON: it {message} at character \d+"
    ):
        list(json_items(path, "items"))


def test_a_large_annotation_file_is_never_in_memory_whole(tmp_path: Path) -> None:
    """12 MB of annotations, three times as much when decoded; held are the image names, one window and its decoded rest."""
    (tmp_path / "annotations").mkdir()
    (tmp_path / "train2017").mkdir()
    path = tmp_path / "annotations" / "captions_train2017.json"
    images, captions = 5_000, 96_000
    with path.open("w") as file:
        file.write('{"images": [')
        file.write(
            ", ".join(
                json.dumps({"id": number, "file_name": f"{number:012d}.jpg"})
                for number in range(images)
            )
        )
        file.write('], "annotations": [')
        for number in range(captions):
            text = f"caption {number} " + "of some words that fill the file " * 2
            file.write(
                (", " if number else "")
                + json.dumps({"image_id": number % images, "id": number, "caption": text})
            )
        file.write("]}")
    assert path.stat().st_size > 11e6
    layout = coco.detect(tmp_path)
    assert layout is not None
    tracemalloc.start()
    rows = sum(1 for _ in coco.rows(layout))
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert rows == captions
    assert peak_bytes < 7e6


def test_new_folder_of_the_faster_process_stays(tmp_path: Path) -> None:
    target = tmp_path / "deep" / "target"
    with new_folder(target) as slower:
        with new_folder(target) as faster:
            (faster / "which").write_text("faster")
        (slower / "which").write_text("slower")
    assert (target / "which").read_text() == "faster"
    assert [path.name for path in target.parent.iterdir()] == ["target"]


def test_new_folder_is_not_there_after_an_error(tmp_path: Path) -> None:
    def interrupted() -> None:
        with new_folder(tmp_path / "target") as partial:
            (partial / "file").write_text("half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert list(tmp_path.iterdir()) == []
