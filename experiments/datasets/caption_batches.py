"""Training batches of captions, in two formulations of the same (words so far, next word) pairs.

`prefix`: a row for every beginning of a caption, as in the captioning study. `sequence`: a row for
each caption, a prediction at every word. Numbers of rows and predictions are rounded up with
weight 0, so that few shapes occur and compiled steps are reused.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from experiments.datasets.captions import CaptionData
from experiments.datasets.layouts import Split
from models.contract import Batch

FORMULATIONS = ("prefix", "sequence")

_T = TypeVar("_T", bound=np.generic)

_PREDICTIONS_MULTIPLE = 64
_WORDS_MULTIPLE = 8


def steps_per_epoch(captions: int, batch_size: int) -> int:
    """Return the number of whole batches in an epoch; a last smaller one is dropped."""
    return captions // batch_size


def epoch(
    data: CaptionData,
    features: NDArray[np.float32],
    *,
    split: Split,
    batch_size: int,
    formulation: str,
    order: NDArray[np.int64] | None = None,
    steps: int | None = None,
    drop_last: bool = True,
) -> Iterator[Batch]:
    """Yield batches of `batch_size` captions.

    Their inputs are features float32 (rows, n), tokens int32 (rows, words) and positions int32
    (predictions,). A position is row * words + word, where the output predicts the target.

    Args:
        features: (images, n).
        order: Captions to go through; by default the split's, in file order.
        steps: Largest number of batches.
        drop_last: Leave out a last batch that is not full; otherwise it is filled with weight 0.
    """
    captions = data.captions_of(split) if order is None else order
    make = {"prefix": _prefix_batch, "sequence": _sequence_batch}[formulation]
    full = steps_per_epoch(len(captions), batch_size)
    available = full if drop_last else -(-len(captions) // batch_size)
    for step in range(available if steps is None else min(steps, available)):
        chosen = captions[step * batch_size : (step + 1) * batch_size]
        yield make(data.tokens[chosen], features[data.caption_image[chosen]], batch_size)


def _prefix_batch(
    tokens: NDArray[np.int32], features: NDArray[np.float32], batch_size: int
) -> Batch:
    """Return as many rows as predictions; `words` is always the data set's length."""
    del batch_size  # rows are prefixes
    caption, last = np.nonzero(tokens[:, 1:])  # each word but the first is predicted
    rows = _up(len(caption), _PREDICTIONS_MULTIPLE)
    length = tokens.shape[1]
    prefixes = np.where(np.arange(length) <= last[:, None], tokens[caption], 0)
    positions = np.arange(rows) * length
    positions[: len(last)] += last
    return Batch(
        inputs=(
            _filled(features[caption], rows),
            _filled(prefixes, rows),
            positions.astype(np.int32),
        ),
        targets=_filled(tokens[caption, last + 1], rows),
        weights=_filled(np.ones(len(caption), np.float32), rows),
    )


def _sequence_batch(
    tokens: NDArray[np.int32], features: NDArray[np.float32], batch_size: int
) -> Batch:
    """Return a row for each caption; `words` is the longest in the batch, rounded up."""
    caption, last = np.nonzero(tokens[:, 1:])
    length = min(_up(int(last.max()) + 1, _WORDS_MULTIPLE), tokens.shape[1])
    predictions = _up(len(caption), _PREDICTIONS_MULTIPLE)
    # The end mark is predicted only: it is no input.
    inputs = tokens[:, :length].copy()
    inputs[np.arange(length) >= np.count_nonzero(tokens, axis=1)[:, None] - 1] = 0
    positions = (caption * length + last).astype(np.int32)
    return Batch(
        inputs=(
            _filled(features, batch_size),
            _filled(inputs, batch_size),
            _filled(positions, predictions),
        ),
        targets=_filled(tokens[caption, last + 1], predictions),
        weights=_filled(np.ones(len(caption), np.float32), predictions),
    )


def _filled(values: NDArray[_T], rows: int) -> NDArray[_T]:
    filled = np.zeros((rows, *values.shape[1:]), values.dtype)
    filled[: len(values)] = values
    return filled


def _up(count: int, multiple: int) -> int:
    return -(-count // multiple) * multiple
