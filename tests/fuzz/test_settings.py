"""Ten thousand damaged files and values of settings: taken within their bounds, or one line; never a traceback or minutes."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from experiments.config import settings
from experiments.sweep import goals, space
from tests.experiments.test_hostile_settings import KINDS
from tests.fuzz.corpus import Format, Target, check
from tracking import plain
from tracking.errors import UsageError

QUICK, ALL = 300, 10_000
GROWN_BYTES = 64 << 20


def check_values(found: Any) -> None:
    """Every value is within the bounds of its field and free of control characters."""
    settings.check(found)
    for field in dataclasses.fields(found):
        value = getattr(found, field.name)
        for one in value if isinstance(value, tuple) else (value,):
            if isinstance(one, str):
                assert not plain.CONTROLS.search(one)
                one.encode()
            elif not isinstance(one, bool):
                assert field.metadata["minimum"] <= one <= field.metadata["maximum"]


def write(name: str, folder: Path) -> list[Target]:
    """All of an experiment's settings in a file."""
    kind, presets = KINDS[name]
    whole = dataclasses.asdict(settings.parse(kind, presets, {}))
    names = {field.name for field in settings.for_users(kind)} - {"settings"}
    values = {
        key: value for key, value in whole.items() if value not in (None, "") and key in names
    }
    (folder / "settings.json").write_text(json.dumps(values))
    return [Target.whole(folder / "settings.json")]


def read(name: str, _: Path, path: Path) -> None:
    kind, presets = KINDS[name]
    check_values(settings.parse(kind, presets, {"settings": str(path)}))


EXPERIMENTS = [name for name, (_, presets) in KINDS.items() if presets]
MANY = -(-ALL // len(EXPERIMENTS))


@pytest.mark.parametrize(
    ("name", "count", "seed"),
    [
        ("captioning", QUICK, 0),
        ("grid", QUICK, 0),
        *(pytest.param(name, MANY, 1, marks=pytest.mark.slow) for name in EXPERIMENTS),
    ],
)
def test_damaged_files_of_settings_are_read_or_one_line(name: str, count: int, seed: int) -> None:
    check(Format(partial(write, name), partial(read, name), GROWN_BYTES), count, seed)


# ---- properties

NUMBERS = (
    st.integers().map(str)
    | st.floats().map(str)
    | st.from_regex(r"[+-]?[0-9]{1,400}(\.[0-9]{1,9})?(e[+-]?[0-9]{1,5})?%?")
)
TEXTS = (
    NUMBERS
    | st.text(max_size=20)
    | st.lists(NUMBERS, max_size=4).map(",".join)
    | st.text(min_size=1).map(lambda one: one * 4_000)
)
SETTINGS = st.sampled_from(
    [
        (name, field.name)
        for name, (kind, _) in KINDS.items()
        for field in dataclasses.fields(kind)
        if field.name != "settings"
    ]
)


def taken_or_one_line(attempt: Callable[[], object]) -> None:
    """The command line shows what does not print; here it is other exceptions that would be wrong."""
    try:
        attempt()
    except UsageError:
        pass


@hypothesis_settings(max_examples=100, deadline=None)
@given(SETTINGS, TEXTS)
def test_any_text_of_any_setting(setting: tuple[str, str], text: str) -> None:
    kind, presets = KINDS[setting[0]]
    taken_or_one_line(lambda: check_values(settings.parse(kind, presets, {setting[1]: text})))


PARTS = (
    st.sampled_from(["batch_size", "dropout", "framework", "seed", "epoch", "\x1b"]),
    NUMBERS | st.text(max_size=5),
)


@hypothesis_settings(max_examples=60, deadline=None)
@given(
    st.tuples(*PARTS, PARTS[1], PARTS[1] | st.just("log")), st.sampled_from(["..", "|", ":", ""])
)
def test_any_text_of_a_search(parts: tuple[str, str, str, str], between: str) -> None:
    """What is accepted has a number of values that can be tried, or is said to have none."""
    name, low, high, way = parts
    kind, presets = KINDS["captioning"]

    def search() -> None:
        found = space.parse(f"{name}={low}{between}{high}:{way}", kind)
        space.check(settings.parse(kind, presets, {}), found)
        for one in found:
            assert len(one.grid()) <= 10 * space.MAX_GRID

    taken_or_one_line(search)


@hypothesis_settings(max_examples=80, deadline=None)
@given(
    st.sampled_from(["memory", "loss", "latency"]),
    st.sampled_from("<>"),
    NUMBERS | st.text(max_size=6),
    st.text(max_size=3),
)
def test_any_text_of_a_bound(metric: str, sign: str, text: str, unit: str) -> None:
    taken_or_one_line(lambda: goals.constraints(f"{metric}{sign}{text}{unit}", ()))
