"""Damaged data sets of captions: each is read or refused, in bounded memory and time."""

from __future__ import annotations

import json
from contextlib import suppress
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from experiments.datasets.captions import index
from experiments.datasets.layouts import CaptionRow, SkipReason, find
from tests.experiments.datasets.folders import WRITERS, write_kaggle
from tests.fuzz.corpus import Target, check, whole
from tracking import plain
from tracking.errors import UsageError

QUICK, ALL = 40, 1_500
# A line and a picture of any size are refused, not read.
GROWN_BYTES = 128 << 20


def write_modes(folder: Path) -> list[Path]:
    """Write pictures of other formats and modes."""
    write_kaggle(folder)
    modes = {"JPEG": "CMYK", "GIF": "P", "TIFF": "I;16", "WEBP": "RGBA"}
    paths = [folder / "Images" / f"{number}.jpg" for number in range(len(modes))]
    grey = Image.fromarray(np.arange(63, dtype=np.uint8).reshape(7, 9))
    for path, (form, mode) in zip(paths, modes.items(), strict=True):
        grey.convert(mode).save(path, format=form)
    return paths


def write(name: str, folder: Path) -> list[Target]:
    return whole(FORMATS[name](folder))


def read(folder: Path, _: Path) -> None:
    with TemporaryDirectory() as cache:
        data = index(str(folder), cache=Path(cache), seed=0, max_broken=1.0)
    assert data.images
    for name in data.images:
        assert Path(data.source, name).resolve().is_relative_to(data.source), name
        assert not plain.CONTROLS.search(name), name
    assert 0 < data.tokens.max() < data.vocabulary.size
    for image in range(len(data.images)):
        assert "\0" not in " ".join(data.references(image)).encode().decode()
    assert all(reason.isprintable() for reason in (*data.dropped, *dict(data.broken).values()))


FORMATS = {**WRITERS, "pictures": write_modes}


@pytest.mark.parametrize("count", [QUICK, pytest.param(ALL, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", FORMATS)
def test_damaged_captions_are_read_or_refused(name: str, count: int) -> None:
    bounds = {"grown_bytes": GROWN_BYTES, "is_refused": name != "pictures"}
    check(partial(write, name), read, count, **bounds)


# ---- properties

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)
ANYTHING = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=9)
    | st.sampled_from(["../x", "/x", "1.jpg"]),
    lambda inside: (
        st.lists(inside, max_size=3) | st.dictionaries(st.text(max_size=3), inside, max_size=3)
    ),
    max_leaves=6,
)


def some(**parts: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Draw mostly an object with these keys, whose values have any type or are missing."""
    optional = {name: part | ANYTHING for name, part in parts.items()}
    right = st.fixed_dictionaries(parts)
    return st.one_of(right, right, st.fixed_dictionaries({}, optional=optional), ANYTHING)


IDS, NAMES = st.integers(0, 2), st.sampled_from(["0.jpg", "1.jpg", "../../1.jpg", "/1.jpg"])
COCO = some(
    images=st.lists(some(id=IDS, file_name=NAMES), max_size=4),
    annotations=st.lists(some(image_id=IDS, caption=TEXTS), max_size=4),
)
KARPATHY = some(
    images=st.lists(
        some(
            filename=NAMES,
            filepath=st.sampled_from(["", "train2014", "..", "/"]),
            split=st.sampled_from(["train", "val", "spare"]),
            sentences=st.lists(some(raw=TEXTS, tokens=st.lists(TEXTS, max_size=2)), max_size=3),
        ),
        max_size=4,
    )
)


def read_rows(folder: Path) -> list[CaptionRow | SkipReason]:
    """Return the rows of a data set, none of which leads out; none if it is refused."""
    rows: list[CaptionRow | SkipReason] = []
    with suppress(UsageError):
        layout, module = find(folder)
        rows.extend(module.rows(layout))
    for row in rows:
        if isinstance(row, CaptionRow):
            assert Path(folder, row.image).resolve().is_relative_to(folder)
            row.text.encode()
        else:
            assert isinstance(row, SkipReason)
    return rows


@settings(max_examples=50, deadline=None)
@given(st.data())
@pytest.mark.parametrize(
    ("content", "file", "images"),
    [
        (COCO, "annotations/captions_val2017.json", "val2017"),
        (KARPATHY, "dataset.json", "images"),
    ],
)
def test_json_of_any_shape_is_read_or_refused(
    tmp_path_factory: pytest.TempPathFactory,
    content: st.SearchStrategy[Any],
    file: str,
    images: str,
    data: st.DataObject,
) -> None:
    folder = tmp_path_factory.getbasetemp() / f"any-{images}"
    for path in (folder / images, (folder / file).parent):
        path.mkdir(parents=True, exist_ok=True)
    (folder / file).write_text(json.dumps(data.draw(content)))
    read_rows(folder)


@settings(max_examples=40, deadline=None)
@given(
    st.lists(
        st.text(
            st.characters(exclude_categories=["Cs", "Cc"], exclude_characters="\u2028\u2029"),
            min_size=1,
        ),
        max_size=3,
    ),
    st.sampled_from(["utf-8", "utf-8-sig", "utf-16"]),
)
def test_captions_come_out_as_they_went_in(
    tmp_path_factory: pytest.TempPathFactory, texts: list[str], encoding: str
) -> None:
    folder = tmp_path_factory.getbasetemp() / "whole"
    (folder / "Images").mkdir(parents=True, exist_ok=True)
    lines = ["image,caption", *('1.jpg,"' + text.replace('"', '""') + '"' for text in texts)]
    (folder / "captions.txt").write_bytes("\n".join(lines).encode(encoding))
    captions = [row.text for row in read_rows(folder) if isinstance(row, CaptionRow)]
    assert captions == [text.strip() for text in texts if text.strip()]
