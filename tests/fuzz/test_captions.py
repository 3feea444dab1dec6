"""Ten thousand damaged caption data sets: read, or one line; nothing outside of the folder, in bounded memory and time."""

from __future__ import annotations

import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from experiments.datasets.captions import CaptionData, index
from experiments.datasets.layouts import CaptionRow, Skipped, find
from tests.experiments.datasets.folders import picture
from tests.fuzz.corpus import Format, Target, check, outcome
from tracking import plain
from tracking.errors import UsageError

QUICK, ALL = 60, 10_000
# A line and a picture of any size are refused, not read.
GROWN_BYTES = 128 << 20
CAPTIONS = ("A brown dog , a big one , runs .", "Two cafés by the water .")
IMAGES = 4


def written(path: Path, content: bytes) -> Target:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return Target(path, content)


def names(folder: Path, below: str) -> list[str]:
    """Pictures in a folder, and their names."""
    for number in range(IMAGES):
        picture(folder / below / f"{number}.jpg", number, (9, 7))
    return [f"{number}.jpg" for number in range(IMAGES)]


def kaggle_text(folder: Path, separator: str = ",") -> str:
    rows = [f'{name}{separator}"{text}"' for name in names(folder, "Images") for text in CAPTIONS]
    return "\n".join([f"image{separator}caption", *rows]) + "\n"


def kaggle(folder: Path) -> list[Target]:
    return [written(folder / "captions.txt", kaggle_text(folder).encode())]


def excel(folder: Path) -> list[Target]:
    return [
        written(
            folder / "captions.txt", b"\xff\xfe" + kaggle_text(folder, "\t").encode("utf-16-le")
        )
    ]


def flickr8k(folder: Path) -> list[Target]:
    found = names(folder, "Flicker8k_Dataset")
    rows = [f"{name}#{turn}\t{text}\n" for name in found for turn, text in enumerate(CAPTIONS)]
    lists = {"train": found[:2], "dev": found[2:3], "test": found[3:]}
    targets = [written(folder / "Flickr8k.token.txt", "".join(rows).encode())]
    return targets + [
        written(folder / f"Flickr_8k.{part}Images.txt", "\n".join(own).encode())
        for part, own in lists.items()
    ]


def flickr30k(folder: Path) -> list[Target]:
    rows = [
        f"{name}| {turn}| {text}"
        for name in names(folder, "flickr30k_images")
        for turn, text in enumerate(CAPTIONS)
    ]
    return [
        written(
            folder / "results.csv",
            "\n".join(["image_name| comment_number| comment", *rows]).encode(),
        )
    ]


def coco(folder: Path) -> list[Target]:
    targets = []
    for part in ("train2017", "val2017"):
        files = [
            {"id": number, "file_name": name} for number, name in enumerate(names(folder, part))
        ]
        told = [
            {"image_id": one["id"], "id": 7, "caption": text} for one in files for text in CAPTIONS
        ]
        content = {"info": {"year": 2017}, "images": files, "annotations": told}
        targets.append(
            written(folder / "annotations" / f"captions_{part}.json", json.dumps(content).encode())
        )
    return targets


def karpathy(folder: Path) -> list[Target]:
    images = [
        {
            "filename": name,
            "split": split,
            "sentences": [{"raw": CAPTIONS[0]}, {"tokens": CAPTIONS[1].split()}],
        }
        for name, split in zip(
            names(folder, "images"), ("train", "restval", "val", "test"), strict=True
        )
    ]
    return [
        written(
            folder / "dataset_flickr8k.json",
            json.dumps({"images": images}, ensure_ascii=False).encode(),
        )
    ]


def conceptual(folder: Path) -> list[Target]:
    found = names(folder, "images")
    rows = [
        f"{text}\thttps://a.org/{number}/{name}?size=2"
        for number, name in enumerate(found)
        for text in CAPTIONS
    ]
    return [written(folder / "Train_GCC-training.tsv", "\n".join(rows).encode())]


def pictures(folder: Path) -> list[Target]:
    kaggle(folder)
    found = []
    for number, (form, mode) in enumerate(
        [("PNG", "RGB"), ("JPEG", "CMYK"), ("GIF", "P"), ("TIFF", "I;16"), ("WEBP", "RGBA")]
    ):
        path = folder / "Images" / f"{number % 2}.jpg"
        Image.fromarray(np.arange(63, dtype=np.uint8).reshape(7, 9)).convert(mode).save(
            path, format=form
        )
        found.append(Target(path, path.read_bytes()))
    return found


def read(folder: Path, _: Path) -> None:
    with TemporaryDirectory() as cache:
        check_data(index(str(folder), cache=Path(cache), seed=0, max_broken=1.0))


def check_data(data: CaptionData) -> None:
    assert data.images
    for name in data.images:
        assert Path(data.source, name).resolve().is_relative_to(data.source), name
        assert not plain.CONTROLS.search(name), name
    assert 0 < data.tokens.max() < data.vocabulary.size
    for image in range(len(data.images)):
        assert "\0" not in " ".join(data.references(image)).encode().decode()
    assert all(reason.isprintable() for reason in data.dropped)
    assert all(reason.isprintable() for _, reason in data.broken)


FORMATS = {
    "Kaggle's Flickr8k": kaggle,
    "the same from Excel": excel,
    "Flickr8k": flickr8k,
    "Flickr30k": flickr30k,
    "COCO": coco,
    "Karpathy": karpathy,
    "Conceptual Captions": conceptual,
    "pictures": pictures,
}
COUNTS = [(QUICK, 0), pytest.param(-(-ALL // len(FORMATS)), 1, marks=pytest.mark.slow)]


@pytest.mark.parametrize(("count", "seed"), COUNTS)
@pytest.mark.parametrize("name", FORMATS)
def test_damaged_captions_are_read_or_refused(name: str, count: int, seed: int) -> None:
    form = Format(FORMATS[name], read, GROWN_BYTES, is_refused=name != "pictures")
    check(form, count, seed)


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
    """Mostly an object with these keys, each of its own type, of any other, or missing."""
    return ANYTHING | st.fixed_dictionaries(
        {}, optional={name: own | ANYTHING for name, own in parts.items()}
    )


IDS, NAMES = st.integers(0, 2), st.sampled_from(["0.jpg", "1.jpg", "../1.jpg", "/1.jpg"])
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


def rows(folder: Path) -> list[CaptionRow | Skipped]:
    """Every row of a data set, none of which leads out of it; none at all where it is refused in one line."""
    found: list[CaptionRow | Skipped] = []

    def all_of(_: bytes) -> None:
        layout, module = find(folder)
        found.extend(module.rows(layout))

    assert not outcome(all_of, [b""], (UsageError,)).wrong
    for row in found:
        assert isinstance(row, CaptionRow | Skipped)
        if isinstance(row, CaptionRow):
            assert Path(folder, row.image).resolve().is_relative_to(folder)
            row.text.encode()
        else:
            assert row.reason.isprintable()
            assert len(row.reason) < 200
    return found


@settings(max_examples=50, deadline=None)
@given(COCO)
def test_coco_of_any_shape(tmp_path_factory: pytest.TempPathFactory, content: Any) -> None:
    folder = tmp_path_factory.getbasetemp() / "coco"
    (folder / "val2017").mkdir(parents=True, exist_ok=True)
    written(folder / "annotations" / "captions_val2017.json", json.dumps(content).encode())
    rows(folder)


@settings(max_examples=50, deadline=None)
@given(KARPATHY)
def test_karpathys_files_of_any_shape(
    tmp_path_factory: pytest.TempPathFactory, content: Any
) -> None:
    folder = tmp_path_factory.getbasetemp() / "karpathy"
    (folder / "images").mkdir(parents=True, exist_ok=True)
    written(folder / "dataset.json", json.dumps(content).encode())
    rows(folder)


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
    """Whatever the encoding with a byte order mark, and whatever quotes and commas are in them."""
    folder = tmp_path_factory.getbasetemp() / "whole"
    (folder / "Images").mkdir(parents=True, exist_ok=True)
    lines = ["image,caption", *('1.jpg,"' + text.replace('"', '""') + '"' for text in texts)]
    (folder / "captions.txt").write_bytes("\n".join(lines).encode(encoding))
    assert [row.text for row in rows(folder) if isinstance(row, CaptionRow)] == [
        text.strip() for text in texts if text.strip()
    ]
