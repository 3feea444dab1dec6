"""Damaged files and texts of settings: accepted within their bounds, or refused."""

from __future__ import annotations

import dataclasses
import json
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from experiments.config import settings
from experiments.sweep import space
from tests.experiments.test_hostile_settings import ENTRIES
from tests.fuzz.corpus import Target, check, whole
from tracking import plain
from tracking.errors import UsageError

MANY = 500


def check_values(values: Any) -> None:
    """Assert that values are within their bounds and free of control characters."""
    settings.check(values)
    for field in settings.for_users(values):
        value = getattr(values, field.name)
        for item in value if isinstance(value, tuple) else (value,):
            if isinstance(item, str):
                assert not plain.CONTROLS.search(item)
                item.encode()
            elif not isinstance(item, bool):
                assert field.metadata["minimum"] <= item <= field.metadata["maximum"]


def write(name: str, folder: Path) -> list[Target]:
    """Write all settings of an experiment into a file."""
    kind, presets = ENTRIES[name]
    values = dataclasses.asdict(settings.parse(kind, presets, {}))
    names = {field.name for field in settings.for_users(kind)} - {"settings"}
    stored = {key: values[key] for key in names if values[key] not in (None, "")}
    (folder / "settings.json").write_text(json.dumps(stored))
    return whole([folder / "settings.json"])


def read(name: str, _: Path, path: Path) -> None:
    check_values(settings.parse(*ENTRIES[name], {"settings": str(path)}))


EXPERIMENTS = [name for name, (_, presets) in ENTRIES.items() if presets]
SLOW = [pytest.param(name, MANY, marks=pytest.mark.slow) for name in EXPERIMENTS]


@pytest.mark.parametrize(
    ("name", "count"),
    [("captioning", 150), ("grid", 150), *SLOW],
)
def test_damaged_files_of_settings_are_read_or_refused(name: str, count: int) -> None:
    check(partial(write, name), partial(read, name), count, grown_bytes=64 << 20)


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
    | st.text(min_size=1).map(lambda text: text * 4_000)
)
SETTINGS = st.sampled_from(
    [
        (name, field.name)
        for name, (kind, _) in ENTRIES.items()
        for field in settings.for_users(kind)
        if field.name != "settings"
    ]
)


@hypothesis_settings(max_examples=100, deadline=None)
@given(SETTINGS, TEXTS)
def test_any_text_of_a_setting_is_accepted_or_refused(setting: tuple[str, str], text: str) -> None:
    kind, presets = ENTRIES[setting[0]]
    with suppress(UsageError):
        check_values(settings.parse(kind, presets, {setting[1]: text}))


PARTS = (
    st.sampled_from(["batch_size", "dropout", "framework", "seed", "epoch", "\x1b"]),
    NUMBERS | st.text(max_size=5),
)


@hypothesis_settings(max_examples=60, deadline=None)
@given(
    st.tuples(*PARTS, PARTS[1], PARTS[1] | st.just("log")), st.sampled_from(["..", "|", ":", ""])
)
def test_any_text_of_a_search_is_accepted_or_refused(
    parts: tuple[str, str, str, str], between: str
) -> None:
    """Assert that an accepted search has a bounded number of values."""
    name, low, high, scale = parts
    kind, presets = ENTRIES["captioning"]
    with suppress(UsageError):
        dimensions = space.parse(f"{name}={low}{between}{high}:{scale}", kind)
        base = settings.parse(kind, presets, {})
        for dimension in dimensions:
            for value in dimension.extremes:
                settings.check(space.settled(base, (dimension,), {dimension.name: value}))
            assert len(dimension.grid()) <= 10 * space.MAX_GRID
