"""GNMT: its size by hand, its outputs by plain loops, its random sentences."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from models.contract import Array, ModelError, Weights
from models.gnmt import spec as gnmt
from models.testing import check_initial_weights, check_sizes
from tests.models.children import run_in
from tests.models.plain import FORWARD, lstm

W, V = 1_024, 32_000
FIRST, ENCODER = 2 * 4 * W * (2 * W + 1), 4 * W * (3 * W + 1) + 6 * 4 * W * (2 * W + 1)
DECODER, ATTENTION = 4 * W * (2 * W + 1) + 7 * 4 * W * (3 * W + 1), 2 * W * W + W


def test_the_papers_size_and_initial_weights() -> None:
    check_sizes("gnmt", (V * W + FIRST + ENCODER + DECODER + ATTENTION + W * V + V, 0))
    check_initial_weights("gnmt")


def translated(weights: Weights, source: Array, target: Array) -> Array:
    """Logits of one pair of sentences without padding, word by word."""
    memory = weights["embedding.weight"][source]
    memory = np.concatenate([lstm(weights, "encoder.0", memory, direction) for direction in ("", "_reverse")], axis=1)
    memory = lstm(weights, "encoder.1", memory)
    memory = memory + lstm(weights, "encoder.2", memory)
    x = lstm(weights, "decoder.0", weights["embedding.weight"][target])
    context = []
    for asking in x:
        scores = np.array(
            [weights["score.weight"][0] @ np.tanh(weights["query.weight"] @ asking + weights["key.weight"] @ m) for m in memory]
        )
        shares = np.exp(scores) / np.exp(scores).sum()
        context.append(sum(share * m for share, m in zip(shares, memory, strict=True)))
    x = lstm(weights, "decoder.1", np.hstack([x, context]))
    x = x + lstm(weights, "decoder.2", np.hstack([x, context]))
    return np.array([weights["words.weight"] @ one + weights["words.bias"] for one in x])


def test_its_outputs_are_those_of_plain_loops(tmp_path: Path) -> None:
    """PyTorch's; that the other frameworks' are equal to them is what the gate says."""
    run_in("pytorch", "-c", FORWARD, "gnmt", "pytorch", str(tmp_path / "found.npz"))
    with np.load(tmp_path / "found.npz") as file:
        weights = {name.removeprefix("weights/"): file[name] for name in file if name.startswith("weights/")}
        source, lengths, target = (file[f"inputs/{at}"] for at in range(3))
        outputs = file["outputs"].reshape(*target.shape, -1)
    for row, length in enumerate(lengths):
        wanted = translated(weights, source[row, :length], target[row, :length])
        np.testing.assert_allclose(outputs[row, :length], wanted, rtol=1e-10, atol=1e-12)


def test_random_sentences_end_in_padding_and_teach_the_next_word() -> None:
    rng = np.random.default_rng(0)
    drawn = gnmt.lengths("paper", 500, rng)
    assert 3 <= drawn.min() < drawn.max() <= 50
    found = gnmt.batch(gnmt.SIZES["tiny"], np.array([4, 2]), rng)
    source, lengths, target = found.inputs
    said = found.targets.reshape(target.shape)
    assert list(lengths) == [4, 2]
    assert (source[1, 2:] == gnmt.PADDING).all()
    assert (target[:, 0] == gnmt.START).all()
    np.testing.assert_array_equal(target[:, 1:], said[:, :-1])
    np.testing.assert_array_equal(found.weights.reshape(target.shape), [[1, 1, 1, 1], [1, 1, 0, 0]])


def test_nonsense_sizes_are_refused() -> None:
    with pytest.raises(ModelError, match="gnmt: layers must be at least 2, not 1"):
        gnmt.Spec(layers=1)
    with pytest.raises(ModelError, match=r"dropout must be in \[0, 1\)"):
        gnmt.Spec(dropout=1.0)
