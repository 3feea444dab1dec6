"""Image captions: a folder in a known format, or `scenes`, becomes arrays in the cache, once."""

from __future__ import annotations

import hashlib
import json
import os
from array import array
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from experiments.datasets.files import Progress, new_folder, open_arrays, reading, save_arrays
from experiments.datasets.layouts import SPLITS, Layout, SkipReason, Split, find
from experiments.datasets.tokens import END, START, Vocabulary, words
from tracking import plain
from tracking.errors import ErrorCode, UsageError

TRAINING_SHARE = 0.85
FULLY_DECODED_IMAGES = 2_000
# The longest caption is the width of an array of all captions.
MAX_WORDS = 1_000

# Part of every digest: raise it when the same files would give other arrays.
_INDEX_VERSION = 2
_PROGRESS_ROWS = 1_000


@dataclass(frozen=True, eq=False)
class CaptionData:
    """Captions as word ids, and the images they belong to.

    tokens: int32 (captions, length), with both marks, padded with 0; an image's captions are
        adjacent.
    caption_image: int32 (captions,), ascending; an index into `images`, paths below `source`.
    split: int8 (images,), an index into SPLITS.
    digest: of the data set's bytes.
    dropped: rows not used, by reason.
    broken: (path, reason) of images that were left out.
    """

    name: str
    format: str
    source: str
    digest: str
    folder: Path
    length: int
    vocabulary: Vocabulary
    tokens: NDArray[np.int32]
    caption_image: NDArray[np.int32]
    images: Sequence[str]
    split: NDArray[np.int8]
    dropped: dict[str, int]
    broken: list[tuple[str, str]]

    @classmethod
    def open(cls, folder: Path) -> CaptionData:
        """Open a data set of the cache; the arrays stay on disk until they are read."""
        about, arrays = open_arrays(folder, "tokens", "caption_image", "split")
        about["vocabulary"] = Vocabulary(tuple(about["vocabulary"]))
        return cls(folder=folder, **arrays, **about)

    def captions_of(self, split: Split, without: Collection[int] = ()) -> NDArray[np.int64]:
        """Return the captions of a split.

        Args:
            split: Name of the split.
            without: Images that turned out unreadable later.

        Returns:
            Rows of `tokens`, int64, ascending.
        """
        return np.flatnonzero(np.isin(self.caption_image, self.images_of(split, without)))

    def images_of(self, split: Split, without: Collection[int] = ()) -> NDArray[np.int64]:
        """Return the images of a split.

        Args:
            split: Name of the split.
            without: Images that turned out unreadable later.

        Returns:
            Indices into `images`, int64, ascending.
        """
        images = np.flatnonzero(self.split == SPLITS.index(split))
        return np.setdiff1d(images, np.fromiter(without, np.int64, len(without)))

    def references(self, image: int) -> list[str]:
        """Return all captions of an image as text, in words of the vocabulary.

        Args:
            image: Index into `images`.
        """
        first, last = np.searchsorted(self.caption_image, [image, image + 1])
        return [self.vocabulary.decode(ids.tolist()) for ids in self.tokens[first:last]]


def index(
    source: str,
    *,
    cache: Path,
    seed: int,
    images: int = 400,
    side: int = 64,
    own_split: bool = True,
    max_broken: float = 0.01,
    progress: Progress | None = None,
) -> CaptionData:
    """Return the data set from the cache, where it is put if it is missing.

    The vocabulary is of all splits' captions, as in the study. The split is the data set's. If it
    lacks training or validation, or `own_split` is False, 85 % of the images are for training,
    shuffled by `seed`.

    Args:
        source: "scenes", or a folder.
        images: Number of scenes.
        side: Pixels of a side of a scene.
        max_broken: Largest share of images that may be broken.

    Raises:
        UsageError: The folder is unknown, its files are unreadable or too many images are broken.
    """
    report = progress or (lambda *_: None)
    if source == "scenes":
        from experiments.datasets import scenes

        name = f"{images}x{side}-seed{seed}-v{scenes.VERSION}"
        folder = cache.absolute() / "scenes" / name
        scenes.write(folder, images=images, seed=seed, side=side)
        layout, module = find(folder)
        text = f"handwritten digits, {side}x{side} pixels, seed {seed}"
        layout = replace(layout, name="scenes", format=text)
    else:
        layout, module = find(Path(source).expanduser().absolute())
    split_seed = 0 if layout.own_split and own_split else seed
    digest = _digest(layout, split_seed, own_split)
    # A data set that was moved has another entry, because its images are read from their files.
    place = hashlib.sha256(os.fsencode(layout.folder)).hexdigest()[:8]
    target = cache.absolute() / "caption_arrays" / f"{digest}-{place}"
    if not target.is_dir():
        # The folder is made first: a cache that cannot be written is refused at once.
        with new_folder(target) as partial:
            _build(partial, layout, module, digest, split_seed, own_split, report)
    data = CaptionData.open(target)
    total = len(data.images) + len(data.broken)
    if len(data.broken) > max_broken * total:
        path, reason = map(plain.short, data.broken[0])
        raise UsageError(
            ErrorCode.UNREADABLE,
            f"{len(data.broken)} of {total} images of {layout.folder} cannot be used, "
            f"the first is {path}: {reason}; mend them, or allow a share of them with "
            f"max_broken_images (now {max_broken:g})",
        )
    return data


def _digest(layout: Layout, split_seed: int, own_split: bool) -> str:
    """Digest the caption files' bytes and the images' names and sizes; no image is read."""
    # The fourth was a limit of images; without it, recorded digests would be other ones.
    digest = hashlib.sha256(
        json.dumps([_INDEX_VERSION, layout.name, split_seed, None, own_split]).encode()
    )
    with reading(layout.folder, "caption data set"):
        for path in layout.caption_files:
            with path.open("rb") as file:
                digest.update(hashlib.file_digest(file, "sha256").digest())
        for top in layout.image_folders:
            for folder, folders, names in os.walk(top):
                folders.sort()
                for path in (Path(folder, name) for name in sorted(names)):
                    # A link to nowhere is a missing image, which is counted later.
                    size = path.stat().st_size if path.exists() else -1
                    name = path.relative_to(layout.folder).as_posix()
                    digest.update(f"{name}\0{size}\0".encode(errors="surrogateescape"))
    return digest.hexdigest()[:32]


def _build(
    folder: Path,
    layout: Layout,
    module: ModuleType,
    digest: str,
    split_seed: int,
    own_split: bool,
    progress: Progress,
) -> None:
    rows = _read_rows(layout, module, progress)
    broken = _broken_images(layout, rows.images, progress)
    is_usable = np.array([path not in broken for path in rows.images])
    named = rows.named_split[is_usable]
    if not own_split:
        named = np.full_like(named, -1)
    split = _split(named, np.random.default_rng(split_seed), layout)
    is_used = is_usable[rows.owners]
    lengths = rows.lengths[is_used]
    if not len(lengths):
        first = f", the first that cannot be read: {next(iter(broken))}" if broken else ""
        raise UsageError(
            ErrorCode.TOO_FEW,
            f"no readable image of {layout.folder} has a caption with a word in it{first}; see "
            f"{layout.caption_files[0]}",
        )
    flat = rows.flat[np.repeat(is_used, rows.lengths)]
    owners = (np.cumsum(is_usable) - 1).astype(np.int32)[rows.owners[is_used]]
    order = np.argsort(owners, kind="stable")
    vocabulary = _write_tokens(folder, rows.words, flat, lengths, order)
    about = {
        "name": layout.name,
        "format": layout.format,
        "source": str(layout.folder),
        "digest": digest,
        "length": int(lengths.max()) + 2,
        "dropped": dict(rows.dropped),
        "broken": list(broken.items()),
        "images": [path for path in rows.images if path not in broken],
        "vocabulary": vocabulary.entries,
    }
    save_arrays(folder, about, caption_image=owners[order], split=split)


@dataclass(frozen=True)
class _Rows:
    """Rows of the caption files; `flat` has the words of all captions, one after the other."""

    images: list[str]
    named_split: NDArray[np.int8]
    words: list[str]
    flat: NDArray[np.int32]
    lengths: NDArray[np.int32]
    owners: NDArray[np.int32]
    dropped: Counter[str]


def _read_rows(layout: Layout, module: ModuleType, progress: Progress) -> _Rows:
    images: dict[str, int] = {}
    word_numbers: dict[str, int] = {}
    named_split, flat, lengths, owners = array("b"), array("i"), array("i"), array("i")
    dropped: Counter[str] = Counter()
    for done, row in enumerate(module.rows(layout)):
        if done % _PROGRESS_ROWS == 0:
            progress("reading captions", done, None)
        if isinstance(row, SkipReason):
            dropped[row] += 1
            continue
        if row.image not in images:
            images[row.image] = len(images)
            named_split.append(-1 if row.split is None else SPLITS.index(row.split))
        caption = words(row.text)
        if not caption:
            dropped[SkipReason.NO_WORD] += 1
        elif len(caption) > MAX_WORDS:
            dropped[SkipReason.TOO_LONG] += 1
        else:
            flat.extend(word_numbers.setdefault(word, len(word_numbers)) for word in caption)
            lengths.append(len(caption))
            owners.append(images[row.image])
    if not images:
        most = "".join(f"; {count} x {reason}" for reason, count in dropped.most_common(1))
        raise UsageError(
            ErrorCode.UNREADABLE,
            f"{layout.caption_files[0]} has no readable row; a row is {layout.row_example}{most}",
        )
    return _Rows(
        list(images),
        np.array(named_split, np.int8),
        list(word_numbers),
        np.array(flat, np.int32),
        np.array(lengths, np.int32),
        np.array(owners, np.int32),
        dropped,
    )


def _broken_images(layout: Layout, paths: Sequence[str], progress: Progress) -> dict[str, str]:
    """Return reasons by path.

    Of large data sets only the images' headers are read; further damage shows when features are
    extracted.
    """
    from experiments.datasets.images import problem

    broken: dict[str, str] = {}
    for done, path in enumerate(paths):
        reason = problem(layout.folder / path, decode=len(paths) <= FULLY_DECODED_IMAGES)
        if reason is not None:
            broken[path] = reason
        progress("checking images", done + 1, len(paths))
    return broken


def _split(named: NDArray[np.int8], rng: np.random.Generator, layout: Layout) -> NDArray[np.int8]:
    """Return an index into SPLITS per image; an image without a name is a training image."""
    train, validation, _test = range(len(SPLITS))
    split = np.where(named < 0, train, named).astype(np.int8)
    if np.any(split == train) and np.any(split == validation):
        return split
    pool = np.flatnonzero(split <= validation)
    if len(pool) < 2:
        raise UsageError(
            ErrorCode.TOO_FEW,
            f"{layout.folder} has {len(pool)} images for training and validation; at least 2 "
            "are needed",
        )
    training = min(max(round(TRAINING_SHARE * len(pool)), 1), len(pool) - 1)
    shuffled = rng.permutation(pool)
    split[shuffled[:training]], split[shuffled[training:]] = train, validation
    return split


def _write_tokens(
    folder: Path,
    entries: Sequence[str],
    flat: NDArray[np.int32],
    lengths: NDArray[np.int32],
    order: NDArray[np.int64],
) -> Vocabulary:
    """Write `tokens.npy`, captions in this order; return the vocabulary of its ids."""
    counts = np.bincount(flat, minlength=len(entries)).tolist()
    used = {word: count for word, count in zip(entries, counts, strict=True) if count}
    vocabulary = Vocabulary.from_counts({**used, START: len(lengths), END: len(lengths)})
    ids = np.array([vocabulary.ids.get(word, 0) for word in entries], np.int32)[flat]
    starts = np.cumsum(lengths) - lengths
    tokens: Any = np.lib.format.open_memmap(
        folder / "tokens.npy", "w+", np.int32, (len(lengths), int(lengths.max()) + 2)
    )
    for row, caption in enumerate(order):
        start, length = starts[caption], lengths[caption]
        tokens[row, 0] = vocabulary.start
        tokens[row, 1 : length + 1] = ids[start : start + length]
        tokens[row, length + 1] = vocabulary.end
    tokens.flush()
    return vocabulary
