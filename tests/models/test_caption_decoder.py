"""Caption decoder on PyTorch: its outputs, and its search against naive ones.

The contract suite proves that each framework finds the same captions.
`python -m tests.models.test_caption_decoder` runs the checks in the process that it starts.
"""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

import numpy as np

from models.caption_decoder.decoding import decode
from models.contract import Batch, Framework
from models.frameworks import open_framework
from tests.models.children import run_in
from tests.models.framework_checks import (
    END,
    START,
    TIGHT,
    lively_network,
    relative,
    small_network,
)


def test_decoder_equals_plain_loops() -> None:
    run_in("pytorch", "-m", __name__)


def check_prefixes_equal_sequences(framework: Framework) -> None:
    """Compare one row for each prefix with one row for each caption."""
    network, _, batch = small_network(framework)
    features, tokens, _ = batch.inputs
    length = tokens.shape[1]
    positions = np.flatnonzero(tokens).astype(np.int32)
    rows, last = np.divmod(positions, length)
    prefixes = np.where(np.arange(length) <= last[:, None], tokens[rows], 0).astype(np.int32)
    at = (np.arange(len(rows)) * length + last).astype(np.int32)
    targets, weights = batch.targets[: len(rows)], batch.weights[: len(rows)]
    by_sequence = Batch((features, tokens, positions), targets, weights)
    by_prefix = Batch((features[rows], prefixes, at), targets, weights)
    np.testing.assert_allclose(
        framework.evaluate(network, by_prefix), framework.evaluate(network, by_sequence), rtol=TIGHT
    )
    assert (
        relative(framework.gradients(network, by_sequence), framework.gradients(network, by_prefix))
        < TIGHT
    )


def next_log_probabilities(framework: Framework, network: Any, features: Any, words: Any) -> Any:
    """Naively: log p of every next word after `words`, the whole prefix run again."""
    rows, length = words.shape
    logits = framework.infer(
        network, (features, words, (np.arange(1, rows + 1) * length - 1).astype(np.int32))
    )
    return (
        logits
        - np.log(np.exp(logits - logits.max(1, keepdims=True)).sum(1, keepdims=True))
        - logits.max(1, keepdims=True)
    )


def naive_greedy(framework: Framework, network: Any, features: Any, words: int) -> Any:
    tokens = np.full((len(features), 1), START, np.int32)
    for _ in range(words):
        best = (
            next_log_probabilities(framework, network, features, tokens).argmax(1).astype(np.int32)
        )
        tokens = np.concatenate([tokens, best[:, None]], 1)
    return tokens[:, 1:]


def check_greedy_is_the_argmax_loop(framework: Framework) -> None:
    network, features = lively_network(framework)
    naive = naive_greedy(framework, network, features, 6)
    never = 0
    assert never not in naive
    assert len(np.unique(naive)) > 4
    captions = decode(framework, network, features, start=START, end=never, words=6, beams=1)
    assert captions.dtype == np.int32
    np.testing.assert_array_equal(captions, naive)


def check_finished_captions_are_filled_with_end(framework: Framework) -> None:
    network, features = lively_network(framework)
    end = int(naive_greedy(framework, network, features, 6)[0, 2])
    for beams in (1, 3):
        captions = decode(framework, network, features, start=START, end=end, words=6, beams=beams)
        finished = np.cumsum(captions == end, axis=1) > 0
        assert finished.any()
        assert (captions[finished] == end).all()


def check_beams_find_the_best_pair(framework: Framework) -> None:
    """Search with a beam for each word, exact for two words, and compare with all pairs."""
    network, features = lively_network(framework)
    vocabulary = 61
    first = next_log_probabilities(framework, network, features, np.full((6, 1), START, np.int32))
    pairs = np.array([[START, word] for word in range(vocabulary)], np.int32)
    for image in range(len(features)):
        second = next_log_probabilities(
            framework, network, np.repeat(features[image : image + 1], vocabulary, 0), pairs
        )
        second[END] = np.where(
            np.arange(vocabulary) == END, 0, -np.inf
        )  # what has ended stays ended, for free
        best = np.unravel_index((first[image][:, None] + second).argmax(), second.shape)
        results = decode(
            framework,
            network,
            features[image : image + 1],
            start=START,
            end=END,
            words=2,
            beams=vocabulary,
        )
        np.testing.assert_array_equal(results[0], best)


def check_decoding_keeps_the_state(framework: Framework) -> None:
    """Take one LSTM step a word; the naive loop runs earlier words again."""
    network, features = lively_network(framework)
    with patch.object(network, "advance", wraps=network.advance) as advance:
        decode(framework, network, features, start=START, end=0, words=20, beams=1)
    assert advance.call_count == 20


if __name__ == "__main__":
    opened = open_framework("pytorch", device="cpu", threads=1, precision="float64", seed=0)
    for name, check in list(globals().items()):
        if name.startswith("check_"):
            check(opened)
