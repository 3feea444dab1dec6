"""Every setting of every command and experiment, given what nobody should: one line, exit code 2, at once."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
import time
import typing
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from experiments import studies
from experiments.cli import entries
from experiments.cli.arguments import options
from experiments.config import memory, settings
from experiments.datasets.synthetic import synthetic
from experiments.studies import grid
from experiments.sweep import goals, space
from tests.conftest import ROOT, Place
from tracking.errors import UsageError

KINDS: dict[str, tuple[type[Any], Mapping[str, Any]]] = {
    name: (entries.load(name).settings, entries.load(name).presets) for name in entries.available()
}


def _of(*kinds: type) -> list[tuple[str, dataclasses.Field[Any]]]:
    """Every setting that holds one of these types, or several of one, with an entry that has it; an inherited one once."""
    found: dict[int, tuple[str, dataclasses.Field[Any]]] = {}
    for name, (kind, _) in KINDS.items():
        hints = typing.get_type_hints(kind)
        for field in settings.for_users(kind):
            if (typing.get_args(hints[field.name]) or (hints[field.name],))[0] in kinds:
                found.setdefault(id(field), (name, field))
    return list(found.values())


NUMBERS, TEXTS = _of(int, float), _of(str)
HOSTILE_NUMBERS = (
    *(
        "1e400",
        "-1e400",
        "nan",
        "inf",
        "-inf",
        "1e999999999",
        "9" * 400,
        "-" + "9" * 400,
        "9" * 4_000,
        "9" * 5_000,
        "9" * 100_000,
    ),
    *(str(2**63), str(2**64), str(-(2**63)), "-1", "1e19", "99999999999999999999%"),
    *(
        "１２",
        "١٢",
        "²",
        "½",
        "1٫5",
        "0x10",
        "1,,x",
        "--1",
        "1 2",
        "true",
        "None",
        "\x1b[31m1",
        "1\0",
        "\ud800",
        "[1]",
    ),
)
HOSTILE_TEXTS = (
    "a\0b",
    "\x1b[2J",
    "\x9b31m",
    "\u202egnp",
    "\u2066a",
    "\ud800",
    "\x7f",
    "x" * 5_000,
    "x" * 1_000_000,
)


def _refused(name: str, given: dict[str, str]) -> None:
    kind, presets = KINDS[name]
    began = time.monotonic()
    with pytest.raises(UsageError) as caught:
        settings.parse(kind, presets, given)
    assert time.monotonic() - began < 2
    message = str(caught.value)
    assert message.isprintable()
    assert next(iter(given)) in message
    assert len(message) < 400


PATHS = ("x" * 300, "a/" * 2_040, "~nobody-here/x", "é" * 200 + ".pth", "circle/x")


def test_every_number_has_bounds_and_keeps_them() -> None:
    assert len(NUMBERS) > 60
    for name, field in NUMBERS:
        assert None not in (field.metadata["minimum"], field.metadata["maximum"]), field.name
        for text in HOSTILE_NUMBERS:
            _refused(name, {field.name: text})


def test_texts_paths_and_truth_values_are_what_they_can_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "circle").symlink_to(tmp_path / "circle")
    for name, field in TEXTS:
        for text in (*HOSTILE_TEXTS, *(PATHS if field.metadata["path"] else ())):
            _refused(name, {field.name: text})
    for name, field in _of(bool):
        for text in ("", "2", "-1", "tru", "\x1b[2J", "x" * 5_000):
            _refused(name, {field.name: text})


def test_what_every_preset_says_is_within_the_bounds() -> None:
    for kind, presets in KINDS.values():
        for name in presets:
            settings.parse(kind, presets, {"preset": name})


_VALUES = (
    *(
        "1e400",
        "-1e400",
        "NaN",
        "Infinity",
        "9" * 400,
        "9" * 5_000,
        "-1",
        "1.5",
        "null",
        "{}",
        "[[1]]",
        "true",
        '"\\u0000"',
    ),
    *('"\\ud800"', '"１２"', '"\\u001b[2J"', "[" * 50_000, json.dumps("9" * 5_000)),
)


@pytest.mark.parametrize("value", _VALUES, ids=lambda text: text[:12])
def test_a_file_of_settings_is_held_to_the_same(tmp_path: Path, value: str) -> None:
    path = tmp_path / "settings.json"
    for name, field in ((name, field) for name, field in _of(int) if name in studies.available()):
        path.write_text(f'{{"{field.name}": {value}}}')
        with pytest.raises(UsageError) as caught:
            settings.parse(*KINDS[name], {"settings": str(path)})
        assert str(caught.value).isprintable()
        assert len(str(caught.value)) < 400


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'{"epochs": 2, "epochs": 3}', "epochs is given twice"),
        (b'{"epochs": 2', "is not JSON"),
        (b'{"\\u001b[2J": 2}', "there is no setting"),
        (b'{"' + b"x" * 60_000 + b'": 2}', "there is no setting"),
        (b'{"team": "caf\xe9"}', "is not JSON"),
        (b"\xff\xfe\0", "is not JSON"),
        (b"", "is not JSON"),
        (b" " * 70_000, "more than 65,536 bytes"),
    ],
)
def test_a_damaged_file_of_settings_is_one_line(
    tmp_path: Path, content: bytes, message: str
) -> None:
    path = tmp_path / "settings.json"
    path.write_bytes(content)
    with pytest.raises(UsageError, match=message) as caught:
        settings.parse(*KINDS["captioning"], {"settings": str(path)})
    assert str(caught.value).isprintable()


@pytest.mark.parametrize(
    "text",
    [
        "9" * 400,
        "9" * 400 + "GB",
        "0." + "0" * 400 + "1GB",
        "0.5",
        "１GB",
        "1e5",
        "-1GB",
        "9e999GB",
    ],
)
def test_a_memory_limit_is_a_size_that_there_is(text: str) -> None:
    with pytest.raises(UsageError, match="is not a size"):
        memory.size(text)
    with pytest.raises(UsageError, match="is not a size"):
        goals.constraints(f"memory<{text.replace('-', '')}x", ())


@pytest.mark.parametrize(
    "text",
    [
        f"batch_size=1..{'9' * 400}",
        f"batch_size=1..{2**63}:log",
        f"batch_size=1..64:{'9' * 400}",
        "batch_size=１..４",
        "dropout=0..1e400",
        "dropout=0..0.5:1e-320",
        "dropout=0..0.5:nan",
        "dropout=nan..0.5",
        f"batch_size=1|{'9' * 5_000}",
        "learning_rate=1e-400..1:log",
    ],
)
def test_what_is_searched_is_held_to_the_same(text: str) -> None:
    kind, presets = KINDS["captioning"]
    with pytest.raises(UsageError):
        space.check(settings.parse(kind, presets, {}), space.parse(text, kind))


def test_synthetic_captions_are_estimated_before_they_are_drawn(tmp_path: Path) -> None:
    began = time.monotonic()
    with pytest.raises(
        UsageError, match=r"captions of 1000 words take [\d,.]+ GB of memory, and this machine has"
    ):
        synthetic(
            vocabulary=1_000_000,
            length=1_000,
            captions=10**12,
            images=1_024,
            seed=0,
            cache=tmp_path,
        )
    assert time.monotonic() - began < 1
    assert list(tmp_path.iterdir()) == []


def test_more_cells_than_a_campaign_can_hold_are_refused() -> None:
    sizes = ",".join(map(str, range(1, 257)))
    kind, presets = KINDS["grid"]
    asked = settings.parse(
        kind, presets, {"batch_sizes": sizes, "image_sizes": sizes, "blocks": "10000"}
    )
    with pytest.raises(UsageError, match="cells are asked for"):
        grid.treatments(asked)
    with pytest.raises(UsageError, match="batch_sizes names 300 values; at most 256"):
        settings.parse(kind, presets, {"batch_sizes": ",".join(map(str, range(1, 301)))})


def test_names_that_are_given_are_quoted_in_part_and_as_they_are() -> None:
    for arguments in (["x" * 100_000], ["--" + "y\x1b" * 100_000], ["--a=1", "--a=2"], ["\x1b[2J"]):
        with pytest.raises(UsageError) as caught:
            options(arguments)
        assert str(caught.value).isprintable()
        assert len(str(caught.value)) < 500


SAMPLE = (
    ("captioning", "--memory_limit=" + "9" * 400),
    ("captioning", "--data=" + "x" * 3_000),
    ("captioning", "--team=\x1b[2J\x1b]0;owned\x07"),
    ("captioning", "--data=synthetic", "--batch_size=1000000", "--steps_per_epoch=10000000"),
    ("calibrate", f"--vocabulary={2**63}"),
    ("grid", "--batch_sizes=1,１２"),
    ("compare", "--margin=inf"),
    ("\x1b[31mcaptioning",),
)


def test_the_command_line_says_one_line_and_ends_with_2(place: Place) -> None:
    """A sample, as a person would give it; the others are held to the same by the tests above."""

    def ask(arguments: tuple[str, ...]) -> subprocess.CompletedProcess[str]:
        return place.call(sys.executable, "-m", "experiments", *arguments)

    with ThreadPoolExecutor(2) as pool:
        for arguments, done in zip(SAMPLE, pool.map(ask, SAMPLE), strict=True):
            assert done.returncode == 2, (arguments, done.stdout, done.stderr)
            assert done.stderr.startswith("evenhand: ")
            assert done.stderr.removesuffix("\n").isprintable(), done.stderr
    assert not list((place.folder / ".evenhand" / "journal").glob("*/records.jsonl"))


def test_output_that_knows_no_unicode_is_no_traceback(place: Place) -> None:
    environment = {**place.environment, "PYTHONIOENCODING": "ascii", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "experiments", "--help"]
    done = subprocess.run(
        command, env=environment, cwd=place.folder, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0
    assert "Traceback" not in done.stderr
