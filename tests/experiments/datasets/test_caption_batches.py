from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from experiments.datasets.caption_batches import FORMULATIONS, epoch
from experiments.datasets.captions import CaptionData
from experiments.datasets.layouts import Split
from experiments.datasets.synthetic import synthetic
from models.contract import Batch

Pair = tuple[float, tuple[int, ...], int]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> CaptionData:
    cache = tmp_path_factory.mktemp("cache")
    return synthetic(vocabulary=50, length=17, captions=107, images=20, seed=4, cache=cache)


def batches(data: CaptionData, split: Split, size: int, **options: Any) -> Iterator[Batch]:
    features = np.load(data.folder / "features.npy")
    return epoch(data, features, data.captions_of(split), batch_size=size, **options)


def word_pairs(batch: Batch) -> Iterator[Pair]:
    """Yield (image's first feature, words so far, next word) of predictions that count."""
    features, tokens, positions = batch.inputs
    for number in np.flatnonzero(batch.weights):
        row, last = divmod(int(positions[number]), tokens.shape[1])
        words = tuple(tokens[row, : last + 1].tolist())
        yield float(features[row, 0]), words, int(batch.targets[number])


@pytest.mark.parametrize("formulation", FORMULATIONS)
def test_epoch_has_every_pair_once(data: CaptionData, formulation: str) -> None:
    features, expected = np.load(data.folder / "features.npy"), Counter[Pair]()
    for caption in data.captions_of("validation"):
        ids = [int(word) for word in data.tokens[caption] if word]
        image = float(features[data.caption_image[caption], 0])
        expected.update((image, tuple(ids[:end]), ids[end]) for end in range(1, len(ids)))
    epoch = batches(data, "validation", 8, formulation=formulation, drop_last=False)
    assert Counter(pair for batch in epoch for pair in word_pairs(batch)) == expected


@pytest.mark.parametrize("formulation", FORMULATIONS)
def test_batches_have_few_shapes_and_padding(data: CaptionData, formulation: str) -> None:
    for batch in batches(data, "train", 16, formulation=formulation, drop_last=False):
        features, tokens, positions = batch.inputs
        types = [array.dtype for array in (*batch.inputs, batch.targets, batch.weights)]
        assert types == ["f4", "i4", "i4", "i4", "f4"]
        predictions = len(positions)
        assert predictions % 64 == 0
        assert batch.targets.shape == batch.weights.shape == (predictions,)
        assert len(features) == len(tokens)
        assert 0 <= positions.min() <= positions.max() < tokens.size
        assert set(np.unique(batch.weights)) <= {0.0, 1.0}
        assert predictions - batch.weights.sum() < 64
        np.testing.assert_array_equal(batch.targets > 0, batch.weights == 1)
        assert data.vocabulary.end not in tokens
        if formulation == "prefix":
            assert tokens.shape == (predictions, data.length)
            np.testing.assert_array_equal(positions // data.length, np.arange(predictions))
        else:
            assert len(tokens) == 16
            assert tokens.shape[1] % 8 == 0 or tokens.shape[1] == data.length


def test_last_batch_is_dropped_or_filled(data: CaptionData) -> None:
    captions = len(data.captions_of("train"))
    whole = list(batches(data, "train", 16, formulation="sequence"))
    filled = list(batches(data, "train", 16, formulation="sequence", drop_last=False))
    assert (len(whole), len(filled)) == (captions // 16, captions // 16 + 1)
    assert np.count_nonzero(filled[-1].inputs[1].any(axis=1)) == captions % 16 > 0
