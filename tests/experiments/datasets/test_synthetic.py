from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from experiments.datasets.synthetic import synthetic
from tests.experiments.datasets.folders import refused
from tracking.errors import ErrorCode


@pytest.mark.parametrize(("vocabulary", "length"), [(8485, 34), (18313, 74), (26443, 49)])
def test_sizes_of_papers_are_drawn(tmp_path: Path, vocabulary: int, length: int) -> None:
    data = synthetic(
        vocabulary=vocabulary, length=length, captions=2_000, images=100, seed=1, cache=tmp_path
    )
    counts = np.count_nonzero(data.tokens, axis=1)
    assert data.vocabulary.size == vocabulary
    assert data.length == data.tokens.shape[1] == counts.max() == length
    assert 1 <= data.tokens.max() < vocabulary
    # 2,000 draws with a deviation of 3.5: the mean's standard error is 0.08.
    assert counts.mean() == pytest.approx(12, abs=0.5)
    assert np.all(data.tokens[:, 0] == data.vocabulary.start)
    assert np.all(data.tokens[np.arange(2_000), counts - 1] == data.vocabulary.end)
    assert np.all((data.tokens == data.vocabulary.end).sum(axis=1) == 1)
    features = np.load(data.folder / "features.npy")
    assert (features.shape, features.dtype) == ((100, 1920), np.float32)
    assert set(data.caption_image) == set(range(100))
    assert len(data.images_of("train")) == 85
    assert data.references(0)[0].startswith("w")


@pytest.mark.parametrize(
    "sizes",
    [
        {"vocabulary": 3, "length": 20, "captions": 50, "images": 10},
        {"vocabulary": 100, "length": 2, "captions": 50, "images": 10},
        {"vocabulary": 100, "length": 20, "captions": 5, "images": 10},
        {"vocabulary": 100, "length": 20, "captions": 5_000, "images": 3_000},
    ],
)
def test_impossible_sizes_are_refused(tmp_path: Path, sizes: dict[str, int]) -> None:
    with refused(ErrorCode.INVALID_VALUE):
        synthetic(**sizes, seed=0, cache=tmp_path)
