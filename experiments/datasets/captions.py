"""Image captioning data: a folder in a known format, or `scenes`, becomes arrays in the cache, once."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from array import array
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from experiments.datasets.files import new_folder, replace_text
from experiments.datasets.layouts import SPLITS, CaptionRow, Layout, Skipped, Split, find
from experiments.datasets.tokens import END, START, Vocabulary, words
from tracking import plain
from tracking.errors import WrongCall

Progress = Callable[[str, int, int | None], None]

TRAINING_SHARE = 0.85
FULLY_DECODED_IMAGES = 2_000
# The longest caption is the width of an array of all captions.
MAX_WORDS = 1_000

# Part of every digest: raise it when the same files would give other arrays.
_INDEX_VERSION = 2
_PROGRESS_ROWS = 1_000
_FILES = (
    "tokens.npy",
    "caption_image.npy",
    "images.json",
    "split.npy",
    "vocabulary.json",
    "meta.json",
)


@dataclass(frozen=True, eq=False)
class CaptionData:
    """Captions as word ids, and the images they belong to.

    tokens: int32 (captions, length), with both marks, padded with 0; the captions of an image lie together.
    caption_image: int32 (captions,), ascending; an index into `images`, which are paths below `source`.
    split: int8 (images,), an index into SPLITS. digest: of the data set's bytes; folder: where it lies in the cache.
    dropped: rows not used, by reason. broken: (path, reason) of images that were left out.
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
    broken: tuple[tuple[str, str], ...]

    @classmethod
    def open(cls, folder: Path) -> CaptionData:
        """What `index` wrote; the arrays stay on disk until they are read."""
        meta = json.loads((folder / "meta.json").read_text(encoding="utf-8"))
        return cls(
            name=meta["name"],
            format=meta["format"],
            source=meta["source"],
            digest=meta["digest"],
            folder=folder,
            length=meta["length"],
            vocabulary=Vocabulary.load(folder / "vocabulary.json"),
            tokens=np.load(folder / "tokens.npy", mmap_mode="r"),
            caption_image=np.load(folder / "caption_image.npy", mmap_mode="r"),
            images=json.loads((folder / "images.json").read_text(encoding="utf-8")),
            split=np.load(folder / "split.npy", mmap_mode="r"),
            dropped=meta["dropped"],
            broken=tuple((path, reason) for path, reason in meta["broken"]),
        )

    def captions_of(self, split: Split, without: Collection[int] = ()) -> NDArray[np.int64]:
        """Indices of a split's captions; `without`: images that turned out unreadable later."""
        return np.flatnonzero(np.isin(self.caption_image, self.images_of(split, without)))

    def images_of(self, split: Split, without: Collection[int] = ()) -> NDArray[np.int64]:
        images = np.flatnonzero(self.split == SPLITS.index(split))
        return np.setdiff1d(images, np.fromiter(without, np.int64, len(without)))

    def references(self, image: int) -> list[str]:
        """All captions of an image, as the words that were kept."""
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
    """The data set `source` ("scenes", or a folder) from the cache, where it is put if it is not there yet.

    images, side: number of scenes and their pixels.
    The vocabulary is of all splits' captions, as in the study. The split is the data set's own; where it lacks training or
    validation, or `own_split` is False, 85 % of the images are for training, shuffled by `seed`.
    Raises WrongCall for an unknown folder, unreadable files, or more than the share `max_broken` of images broken.
    """
    scenes = source == "scenes"
    folder = (
        _scenes_folder(cache, images, side, seed)
        if scenes
        else Path(source).expanduser().absolute()
    )
    layout, module = find(folder)
    if scenes:
        layout = replace(
            layout, name="scenes", format=f"handwritten digits, {side}x{side} pixels, seed {seed}"
        )
    split_seed = 0 if layout.own_split and own_split else seed
    report = progress or (lambda _stage, _done, _total: None)
    digest = _digest(layout, split_seed, own_split, report)
    target = cache.absolute() / "captions" / digest
    data = _kept(target, layout)
    if data is None:
        shutil.rmtree(target, ignore_errors=True)
        # Opened before the work, which takes minutes on a large data set: an unwritable cache is said at once.
        with new_folder(target) as partial:
            _build(
                partial,
                layout,
                module,
                digest,
                np.random.default_rng(split_seed),
                own_split,
                max_broken,
                report,
            )
        data = CaptionData.open(target)
    _check_broken(data.broken, len(data.images) + len(data.broken), max_broken, layout.folder)
    return data


def _scenes_folder(cache: Path, images: int, side: int, seed: int) -> Path:
    from experiments.datasets import scenes

    folder = cache.absolute() / "scenes" / f"{images}x{side}-seed{seed}-v{scenes.VERSION}"
    scenes.write(folder, images=images, seed=seed, side=side)
    return folder


def _digest(layout: Layout, split_seed: int, own_split: bool, progress: Progress) -> str:
    """Of the caption files' bytes and the images' names and sizes; reads no image."""
    # The fourth was a limit of images; without it, recorded digests would be other ones.
    digest = hashlib.sha256(
        json.dumps([_INDEX_VERSION, layout.name, split_seed, None, own_split]).encode()
    )
    try:
        for path in layout.caption_files:
            with path.open("rb") as file:
                digest.update(hashlib.file_digest(file, "sha256").digest())
        for done, (name, size) in enumerate(_images_below(layout)):
            digest.update(f"{name}\0{size}\0".encode(errors="surrogateescape"))
            if done % _PROGRESS_ROWS == 0:
                progress("listing images", done, None)
    except OSError as error:
        raise WrongCall(f"cannot read {error.filename}: {error.strerror}") from error
    return digest.hexdigest()[:32]


def _images_below(layout: Layout) -> Iterator[tuple[str, int]]:
    for top in layout.image_folders:
        for folder, folders, names in os.walk(top):
            folders.sort()
            for name in sorted(names):
                path = Path(folder, name)
                # A link to nowhere is a missing image, found later.
                size = path.stat().st_size if path.exists() else -1
                yield path.relative_to(layout.folder).as_posix(), size


def _kept(target: Path, layout: Layout) -> CaptionData | None:
    """The data from the cache, or None where it is not there or damaged."""
    if not all((target / name).is_file() for name in _FILES):
        return None
    try:
        _remember_source(target, layout)
        return CaptionData.open(target)
    except (ValueError, KeyError, TypeError, EOFError):
        return None


def _remember_source(target: Path, layout: Layout) -> None:
    """The same bytes may have moved since they were indexed."""
    meta = json.loads((target / "meta.json").read_text(encoding="utf-8"))
    if meta["source"] == str(layout.folder):
        return
    replace_text(target / "meta.json", json.dumps({**meta, "source": str(layout.folder)}))


@dataclass(frozen=True)
class _Images:
    """What the first pass over the rows finds: numbers by path (in order of appearance), and the split that the rows name."""

    numbers: dict[str, int]
    named_split: NDArray[np.int8]
    dropped: Counter[str]


def _build(
    folder: Path,
    layout: Layout,
    module: ModuleType,
    digest: str,
    rng: np.random.Generator,
    own_split: bool,
    max_broken: float,
    progress: Progress,
) -> None:
    found = _find_images(layout, module, progress)
    paths = list(found.numbers)
    broken = _broken_images(layout, paths, progress)
    _check_broken(list(broken.items()), len(paths), max_broken, layout.folder)
    images = [path for path in paths if path not in broken]
    named = found.named_split[[found.numbers[path] for path in images]]
    split = _split(named if own_split else np.full_like(named, -1), rng, layout)
    captions = _Captions.read(layout, module, images, progress)
    vocabulary = captions.write(folder)
    meta = {
        "name": layout.name,
        "format": layout.format,
        "source": str(layout.folder),
        "digest": digest,
        "length": captions.longest,
        "dropped": dict(found.dropped + captions.dropped),
        "broken": list(broken.items()),
    }
    save_rest(folder, captions.owners[captions.order], images, split, vocabulary, meta)


def save_rest(
    folder: Path,
    caption_image: NDArray[np.int32],
    images: Sequence[str],
    split: NDArray[np.int8],
    vocabulary: Vocabulary,
    meta: Mapping[str, Any],
) -> None:
    """What `CaptionData.open` reads, all but the tokens."""
    np.save(folder / "caption_image.npy", caption_image)
    np.save(folder / "split.npy", split)
    vocabulary.save(folder / "vocabulary.json")
    (folder / "images.json").write_text(json.dumps(images), encoding="utf-8")
    (folder / "meta.json").write_text(json.dumps(meta), encoding="utf-8")


def _find_images(layout: Layout, module: ModuleType, progress: Progress) -> _Images:
    numbers: dict[str, int] = {}
    named_split = array("b")
    dropped: Counter[str] = Counter()
    for row in _rows(layout, module, "reading captions", progress):
        if isinstance(row, Skipped):
            dropped[row.reason] += 1
        elif row.image not in numbers:
            numbers[row.image] = len(numbers)
            named_split.append(-1 if row.split is None else SPLITS.index(row.split))
    if not numbers:
        why = "".join(f"; {count} x {reason}" for reason, count in dropped.most_common(1))
        raise WrongCall(
            f"{layout.caption_files[0]} has no readable row; a row is {layout.row_example}{why}"
        )
    return _Images(numbers, np.array(named_split, np.int8), dropped)


def _rows(
    layout: Layout, module: ModuleType, stage: str, progress: Progress
) -> Iterator[CaptionRow | Skipped]:
    for done, row in enumerate(module.rows(layout)):
        if done % _PROGRESS_ROWS == 0:
            progress(stage, done, None)
        yield row


def _broken_images(layout: Layout, paths: Sequence[str], progress: Progress) -> dict[str, str]:
    """Reasons by path. Large data sets have their images' headers read only; the rest shows when features are extracted."""
    from experiments.datasets.images import problem

    broken: dict[str, str] = {}
    for done, path in enumerate(paths):
        reason = problem(layout.folder / path, decode=len(paths) <= FULLY_DECODED_IMAGES)
        if reason is not None:
            broken[path] = reason
        progress("checking images", done + 1, len(paths))
    return broken


def _check_broken(
    broken: Sequence[tuple[str, str]], total: int, max_broken: float, folder: Path
) -> None:
    if len(broken) > max_broken * total:
        path, reason = map(plain.short, broken[0])
        raise WrongCall(
            f"{len(broken)} of {total} images of {folder} cannot be used, the first is {path}: {reason}; "
            f"mend them, or allow a share of them with max_broken_images (now {max_broken:g})"
        )


def _split(named: NDArray[np.int8], rng: np.random.Generator, layout: Layout) -> NDArray[np.int8]:
    """An index into SPLITS per image. Images without a name count as the data set's training images."""
    train, validation, _test = range(len(SPLITS))
    split = np.where(named < 0, train, named).astype(np.int8)
    if np.any(split == train) and np.any(split == validation):
        return split
    pool = np.flatnonzero(split <= validation)
    if len(pool) < 2:
        raise WrongCall(
            f"{layout.folder} has {len(pool)} images for training and validation; at least 2 are needed"
        )
    training = min(max(round(TRAINING_SHARE * len(pool)), 1), len(pool) - 1)
    shuffled = rng.permutation(pool)
    split[shuffled[:training]], split[shuffled[training:]] = train, validation
    return split


@dataclass(frozen=True)
class _Captions:
    """Word numbers by first appearance, one caption after the other; `owners` are the captions' images."""

    numbers: dict[str, int]
    words: NDArray[np.int32]
    lengths: NDArray[np.int32]
    owners: NDArray[np.int32]
    dropped: Counter[str]

    @classmethod
    def read(
        cls, layout: Layout, module: ModuleType, images: Iterable[str], progress: Progress
    ) -> _Captions:
        numbers: dict[str, int] = {}
        flat, lengths, owners = array("i"), array("i"), array("i")
        dropped: Counter[str] = Counter()
        image_numbers = {path: number for number, path in enumerate(images)}
        for row in _rows(layout, module, "indexing captions", progress):
            if isinstance(row, Skipped) or row.image not in image_numbers:
                continue
            found = words(row.text)
            if not found:
                dropped["caption without a word"] += 1
                continue
            if len(found) > MAX_WORDS:
                dropped[f"caption of more than {MAX_WORDS:,} words"] += 1
                continue
            flat.extend(numbers.setdefault(word, len(numbers)) for word in found)
            lengths.append(len(found))
            owners.append(image_numbers[row.image])
        if not lengths:
            raise WrongCall(
                f"no image of {layout.folder} has a caption with a word in it; see {layout.caption_files[0]}"
            )
        return cls(
            numbers,
            np.array(flat, np.int32),
            np.array(lengths, np.int32),
            np.array(owners, np.int32),
            dropped,
        )

    @property
    def longest(self) -> int:
        """L: words of the longest caption, with both marks."""
        return int(self.lengths.max()) + 2

    @cached_property
    def order(self) -> NDArray[np.int64]:
        """The captions of an image together, otherwise as they were read."""
        return np.argsort(self.owners, kind="stable")

    def write(self, folder: Path) -> Vocabulary:
        """`tokens.npy`, in `order`; returns the vocabulary that its ids are of."""
        seen = np.bincount(self.words, minlength=len(self.numbers))
        counts = {word: int(seen[number]) for word, number in self.numbers.items()}
        vocabulary = Vocabulary.of({**counts, START: len(self.lengths), END: len(self.lengths)})
        ids = np.array([vocabulary.ids[word] for word in self.numbers], np.int32)[self.words]
        starts = np.cumsum(self.lengths) - self.lengths
        tokens: Any = np.lib.format.open_memmap(
            folder / "tokens.npy", "w+", np.int32, (len(self.lengths), self.longest)
        )
        for row, caption in enumerate(self.order):
            start, length = starts[caption], self.lengths[caption]
            tokens[row, 0] = vocabulary.start
            tokens[row, 1 : length + 1] = ids[start : start + length]
            tokens[row, length + 1] = vocabulary.end
        tokens.flush()
        return vocabulary
