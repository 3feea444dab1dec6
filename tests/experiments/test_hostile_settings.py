"""Hostile values of settings of all commands and experiments: one line, exit code 2."""

import dataclasses
import time
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from experiments.cli import entries
from experiments.cli.codes import WRONG_CALL
from experiments.cli.main import main
from experiments.config import memory, settings
from experiments.datasets.synthetic import synthetic
from experiments.studies import grid
from experiments.sweep import goals
from tests.experiments.datasets.folders import refused
from tracking.errors import ErrorCode, UsageError

ENTRIES: dict[str, tuple[type[Any], Mapping[str, Any]]] = {
    name: (entries.load(name).settings, entries.load(name).presets) for name in entries.available()
}


def settings_of(*types: type) -> list[tuple[str, dataclasses.Field[Any]]]:
    """Return every setting of these types, with an entry that has it; an inherited one once."""
    unique: dict[int, tuple[str, dataclasses.Field[Any]]] = {}
    for name, (kind, _) in ENTRIES.items():
        hints = typing.get_type_hints(kind)
        for field in settings.for_users(kind):
            if (typing.get_args(hints[field.name]) or (hints[field.name],))[0] in types:
                unique.setdefault(id(field), (name, field))
    return list(unique.values())


NUMBERS, TEXTS = settings_of(int, float), settings_of(str)
HOSTILE_NUMBERS = (
    *("1e400", "-1e400", "1e999999999", "9" * 400, "-" + "9" * 400, "9" * 4_000, "9" * 100_000),
    *(str(2**63), str(2**64), str(-(2**63)), "-1", "1e19", "99999999999999999999%"),
    *("nan", "inf", "-inf", "²", "½", "0x10", "1,,x", "--1", "1 2"),
    *("true", "None", "\x1b[31m1", "1\0", "\ud800", "[1]"),
)
CONTROLS = ("a\0b", "\x1b[2J", "\x9b31m", "\u202egnp", "\u2066a", "\ud800", "\x7f")
PATHS = ("x" * 300, "a/" * 2_040, "~nobody-here/x", "é" * 200 + ".pth", "circle/x")


def assert_refused(entry: str, **values: str) -> None:
    began = time.monotonic()
    with pytest.raises(UsageError) as error:
        settings.parse(*ENTRIES[entry], values)
    assert time.monotonic() - began < 2
    message = str(error.value)
    assert message.isprintable()
    assert next(iter(values)) in message
    assert len(message) < 400


def test_every_number_has_bounds_and_keeps_them() -> None:
    assert len(NUMBERS) > 60
    for name, field in NUMBERS:
        assert None not in (field.metadata["minimum"], field.metadata["maximum"]), field.name
        for text in HOSTILE_NUMBERS:
            assert_refused(name, **{field.name: text})


def test_hostile_texts_paths_and_truth_values_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "circle").symlink_to(tmp_path / "circle")
    for name, field in TEXTS:
        for text in (*CONTROLS, *(PATHS if field.metadata["path"] else ())):
            assert_refused(name, **{field.name: text})
    for name, field in settings_of(bool):
        for text in ("", "2", "-1", "tru", "\x1b[2J", "x" * 5_000):
            assert_refused(name, **{field.name: text})


@pytest.mark.parametrize(
    ("content", "code"),
    [
        (b'{"epochs": 2', ErrorCode.UNREADABLE),
        (b'{"epochs": {"a": 1}}', ErrorCode.INVALID_VALUE),
        (b'{"epochs": 2, "epochs": 3}', ErrorCode.DUPLICATE),
        (b"[1]", ErrorCode.UNREADABLE),
        (b"[" * 50_000, ErrorCode.UNREADABLE),
        (b'{"epochs": "' + b"9" * 5_000 + b'"}', ErrorCode.INVALID_VALUE),
        (b'{"\\u001b[2J": 2}', ErrorCode.UNKNOWN_NAME),
        (b'{"' + b"x" * 60_000 + b'": 2}', ErrorCode.UNKNOWN_NAME),
        (b'{"team": "caf\xe9"}', ErrorCode.UNREADABLE),
        (b"\xff\xfe\0", ErrorCode.UNREADABLE),
        (b"", ErrorCode.UNREADABLE),
        (b" " * 70_000, ErrorCode.TOO_LARGE),
    ],
)
def test_damaged_file_is_one_line(tmp_path: Path, content: bytes, code: ErrorCode) -> None:
    path = tmp_path / "settings.json"
    path.write_bytes(content)
    with refused(code):
        settings.parse(*ENTRIES["captioning"], {"settings": str(path)})


NINES = "9" * 400
SIZES = (NINES, f"{NINES}GB", f"0.{'0' * 400}1GB", "0.5", "１GB", "1e5", "-1GB", "9e999GB")


@pytest.mark.parametrize("text", SIZES, ids=range(len(SIZES)))
def test_size_of_memory_has_bounds(text: str) -> None:
    with refused(ErrorCode.INVALID_VALUE):
        memory.size(text)
    with refused(ErrorCode.INVALID_VALUE):
        goals.constraints(f"memory<{text.replace('-', '')}x", ())


def test_memory_of_synthetic_captions_is_estimated_first(tmp_path: Path) -> None:
    sizes = {"vocabulary": 1_000_000, "length": 1_000, "captions": 10**12, "images": 1_024}
    began = time.monotonic()
    with refused(ErrorCode.TOO_LARGE, "GB"):
        synthetic(**sizes, seed=0, cache=tmp_path)
    assert time.monotonic() - began < 1
    assert list(tmp_path.iterdir()) == []


def test_too_many_cells_are_refused() -> None:
    sizes = ",".join(map(str, range(1, 257)))
    kind, presets = ENTRIES["grid"]
    texts = {"batch_sizes": sizes, "image_sizes": sizes, "blocks": "10000"}
    with pytest.raises(UsageError):
        grid.treatments(settings.parse(kind, presets, texts))
    with refused(ErrorCode.TOO_LARGE, "300"):
        settings.parse(kind, presets, {"batch_sizes": ",".join(map(str, range(1, 301)))})


@pytest.mark.parametrize(
    "words",
    [
        ["captioning", "x" * 100_000],
        ["captioning", "--" + "y\x1b" * 100_000],
        ["captioning", "--epochs=1", "--epochs=2"],
        ["captioning", "\x1b[2J"],
        ["captioning", "--team=\x1b[2J\x1b]0;owned\x07"],
        ["captioning", f"--vocabulary={2**63}"],
        ["\x1b[31mcaptioning"],
    ],
    ids=range(7),
)
def test_long_and_hostile_words_are_quoted_in_part_of_one_line(
    words: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(words) == WRONG_CALL
    line = capsys.readouterr().err
    assert line.startswith("evenhand: ")
    assert line.removesuffix("\n").isprintable()
    assert len(line) < 500
    assert not list(tmp_path.iterdir())
