"""Training batches of captions, in two formulations of the same (words so far, next word) pairs.

`prefix`: a row for every beginning of a caption, as in the captioning study. `sequence`: a row for
each caption, a prediction at every word. Numbers of rows and predictions are rounded up with
weight 0, so that few shapes occur and compiled steps are reused.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from experiments.datasets import filled
from experiments.datasets.captions import CaptionData
from models.contract import Batch

FORMULATIONS = ("prefix", "sequence")

_PREDICTIONS_MULTIPLE = 64
_WORDS_MULTIPLE = 8


def epoch(
    data: CaptionData,
    features: NDArray[np.float32],
    captions: NDArray[np.int64],
    *,
    batch_size: int,
    formulation: str,
    steps: int | None = None,
    drop_last: bool = True,
) -> Iterator[Batch]:
    """Yield batches of `batch_size` captions.

    Their inputs are features float32 (rows, n), tokens int32 (rows, words) and positions int32
    (predictions,). A position is row * words + word, where the output predicts the target.

    Args:
        features: (images, n).
        captions: Rows of `tokens` to go through, in order.
        steps: Largest number of batches.
        drop_last: Leave out a last batch that is not full; otherwise it is filled with weight 0.
    """
    available = len(captions) // batch_size if drop_last else -(-len(captions) // batch_size)
    for step in range(available if steps is None else min(steps, available)):
        chosen = captions[step * batch_size : (step + 1) * batch_size]
        images = features[data.caption_image[chosen]]
        yield _batch(data.tokens[chosen], images, batch_size, formulation)


def _batch(
    tokens: NDArray[np.int32], features: NDArray[np.float32], batch_size: int, formulation: str
) -> Batch:
    """Return a row for each prediction, as long as the data set's longest, or for each caption.

    Captions are as long as the longest in the batch, rounded up.
    """
    caption, last = np.nonzero(tokens[:, 1:])  # each word but the first is predicted
    predictions, length = _up(len(caption), _PREDICTIONS_MULTIPLE), tokens.shape[1]
    if formulation == "prefix":
        rows, features = predictions, features[caption]
        inputs = np.where(np.arange(length) <= last[:, None], tokens[caption], 0)
        positions = np.arange(rows) * length
        positions[: len(last)] += last
    else:
        rows, length = batch_size, min(_up(int(last.max()) + 1, _WORDS_MULTIPLE), length)
        # The end mark is predicted only: it is no input.
        inputs = tokens[:, :length].copy()
        inputs[np.arange(length) >= np.count_nonzero(tokens, axis=1)[:, None] - 1] = 0
        positions = filled(caption * length + last, predictions)
    return Batch(
        inputs=(filled(features, rows), filled(inputs, rows), positions.astype(np.int32)),
        targets=filled(tokens[caption, last + 1], predictions),
        weights=filled(np.ones(len(caption), np.float32), predictions),
    )


def _up(count: int, multiple: int) -> int:
    return -(-count // multiple) * multiple
