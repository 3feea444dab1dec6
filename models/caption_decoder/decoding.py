"""Captions of pooled image features, in every framework."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

import models
from models.contract import Array, Framework


def decode(
    framework: Framework,
    network: Any,
    features: Array,
    *,
    start: int,
    end: int,
    words: int,
    beams: int,
) -> Array:
    """Captions of a batch of features, exactly `words` LSTM steps with the state kept.

    features: float32 (n, size). Returns int32 (n, words), without the start, finished captions filled with `end`.
    beams=1 is greedy; more keep the best sums of log-probabilities.
    """
    options = {"start": start, "end": end, "words": words, "beams": beams}
    return framework.apply(_search(framework.architecture), network, (features,), **options).astype(
        np.int32, copy=False
    )


@cache  # requests are timed: no folder is listed in one
def _search(architecture: str) -> Callable[..., Any]:
    search: Callable[..., Any] = models.load("caption_decoder", architecture).search
    return search
