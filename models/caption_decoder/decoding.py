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
    """Return captions of a batch of features in exactly `words` LSTM steps.

    Args:
        framework: Adapter of the network.
        network: Caption decoder.
        features: float32 (n, size).
        start: Token that begins a caption.
        end: Token that ends a caption, and fills it up.
        words: Tokens of a caption.
        beams: 1 is greedy; more keep the best sums of log-probabilities.

    Returns:
        int32 (n, words), without the start.
    """
    options = {"start": start, "end": end, "words": words, "beams": beams}
    search = _search(framework.architecture)
    return framework.apply(search, network, (features,), **options).astype(np.int32, copy=False)


@cache  # requests are timed: no folder is listed in one
def _search(architecture: str) -> Callable[..., Any]:
    return models.load("caption_decoder", architecture).search
