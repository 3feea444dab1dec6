from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from numpy.typing import NDArray

from experiments.datasets.caption_batches import (
    FORMULATIONS,
    Formulation,
    check_batch_size,
    epoch,
)
from experiments.datasets.captions import CaptionData
from experiments.datasets.synthetic import synthetic
from models.contract import Batch
from tracking.errors import UsageError

Pair = tuple[float, tuple[int, ...], int]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> CaptionData:
    return synthetic(
        vocabulary=50,
        length=17,
        captions=107,
        images=20,
        seed=4,
        cache=tmp_path_factory.mktemp("cache"),
    )


def _pairs(batch: Batch) -> list[Pair]:
    """(image, words so far, next word) of every prediction that counts; an image is known by its first feature."""
    image_features, tokens, positions = batch.inputs
    words = tokens.shape[1]
    counted = [number for number, weight in enumerate(batch.weights) if weight]
    pairs = []
    for number in counted:
        row, last = divmod(int(positions[number]), words)
        pairs.append(
            (
                float(image_features[row, 0]),
                tuple(tokens[row, : last + 1].tolist()),
                int(batch.targets[number]),
            )
        )
    return pairs


def _expected(
    data: CaptionData, captions: NDArray[np.int64], drawn: NDArray[np.float32]
) -> Counter[Pair]:
    expected: Counter[Pair] = Counter()
    for caption in captions:
        ids = [int(word) for word in data.tokens[caption] if word]
        image = float(drawn[data.caption_image[caption], 0])
        expected.update((image, tuple(ids[: i + 1]), ids[i + 1]) for i in range(len(ids) - 1))
    return expected


@pytest.mark.parametrize("formulation", FORMULATIONS)
def test_every_pair_once(data: CaptionData, formulation: Formulation) -> None:
    drawn = np.load(data.folder / "features.npy")
    captions = data.captions_of("validation")
    batches = epoch(
        data, drawn, split="validation", batch_size=8, formulation=formulation, drop_last=False
    )
    assert Counter(pair for batch in batches for pair in _pairs(batch)) == _expected(
        data, captions, drawn
    )


@pytest.mark.parametrize("formulation", FORMULATIONS)
def test_shapes_types_and_padding(data: CaptionData, formulation: Formulation) -> None:
    for batch in epoch(
        data,
        np.load(data.folder / "features.npy"),
        split="train",
        batch_size=16,
        formulation=formulation,
        drop_last=False,
    ):
        image_features, tokens, positions = batch.inputs
        assert [array.dtype for array in (*batch.inputs, batch.targets, batch.weights)] == [
            "f4",
            "i4",
            "i4",
            "i4",
            "f4",
        ]
        predictions = len(positions)
        assert predictions % 64 == 0
        assert batch.targets.shape == batch.weights.shape == (predictions,)
        assert len(image_features) == len(tokens)
        assert positions.min() >= 0
        assert positions.max() < tokens.size
        assert set(np.unique(batch.weights)) <= {0.0, 1.0}
        assert predictions - batch.weights.sum() < 64
        assert np.all(batch.targets[batch.weights == 0] == 0)
        assert np.all(batch.targets[batch.weights == 1] > 0)
        assert data.vocabulary.end not in tokens
        if formulation == "prefix":
            assert tokens.shape == (predictions, data.length)
            np.testing.assert_array_equal(positions // data.length, np.arange(predictions))
        else:
            assert len(tokens) == 16
            assert tokens.shape[1] % 8 == 0 or tokens.shape[1] == data.length


def test_last_batch_is_dropped_or_filled(data: CaptionData) -> None:
    captions = data.captions_of("train")
    assert len(captions) % 16 != 0
    dropped = list(
        epoch(
            data,
            np.load(data.folder / "features.npy"),
            split="train",
            batch_size=16,
            formulation="sequence",
        )
    )
    filled = list(
        epoch(
            data,
            np.load(data.folder / "features.npy"),
            split="train",
            batch_size=16,
            formulation="sequence",
            drop_last=False,
        )
    )
    assert len(dropped) == len(captions) // 16
    assert len(filled) == len(dropped) + 1
    assert np.count_nonzero(filled[-1].inputs[1].any(axis=1)) == len(captions) % 16


def test_batch_larger_than_the_data(data: CaptionData) -> None:
    captions = len(data.captions_of("train"))
    with pytest.raises(UsageError) as caught:
        next(
            epoch(
                data,
                np.load(data.folder / "features.npy"),
                split="train",
                batch_size=512,
                formulation="prefix",
            )
        )
    assert (
        str(caught.value)
        == f"batch_size 512 is more than the {captions} training captions of synthetic; at most {captions}"
    )
    with pytest.raises(UsageError, match="at least 1"):
        check_batch_size(data, "train", captions, 0)
    check_batch_size(data, "train", captions, captions)
