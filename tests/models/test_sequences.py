"""Networks of sequences: outputs by plain loops, losses by enumeration."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import models
from models.contract import Array, Weights
from models.gnmt import spec as gnmt
from models.tacotron2 import spec as tacotron2
from tests.models.children import probed, result_of, side
from tests.models.plain import cell, convolution, lstm, norm, sigmoid


def recognised(weights: Weights, features: Array, length: int) -> Array:
    """Return Deep Speech 2's logits (frames, symbols) of an utterance."""
    x = features[None, :length].astype(float)
    for index, strides in enumerate(((2, 2), (1, 2))):
        x = convolution(weights[f"convolutions.{index}.weight"], x, strides)
        x = np.clip(norm(weights, f"norms.{index}", x.transpose(1, 2, 0)), 0, 20).transpose(2, 0, 1)
    sequence = x.transpose(1, 2, 0).reshape(x.shape[1], -1)
    for index in range(2):
        both = [
            lstm(weights, f"lstms.{index}", sequence, direction) for direction in ("", "_reverse")
        ]
        sequence = norm(weights, f"sequence_norms.{index}", both[0] + both[1])
    return sequence @ weights["symbols.weight"].T + weights["symbols.bias"]


def translated(weights: Weights, source: Array, length: int, target: Array) -> Array:
    """Return GNMT's logits of a pair of sentences, word by word."""
    memory = weights["embedding.weight"][source[:length]]
    memory = np.concatenate(
        [lstm(weights, "encoder.0", memory, direction) for direction in ("", "_reverse")], axis=1
    )
    memory = lstm(weights, "encoder.1", memory)
    memory = memory + lstm(weights, "encoder.2", memory)
    x = lstm(weights, "decoder.0", weights["embedding.weight"][target[:length]])
    context = []
    for asking in x:
        scores = np.array(
            [
                weights["score.weight"][0]
                @ np.tanh(weights["query.weight"] @ asking + weights["key.weight"] @ m)
                for m in memory
            ]
        )
        shares = np.exp(scores) / np.exp(scores).sum()
        context.append(sum(share * m for share, m in zip(shares, memory, strict=True)))
    x = lstm(weights, "decoder.1", np.hstack([x, context]))
    x = x + lstm(weights, "decoder.2", np.hstack([x, context]))
    return np.array([weights["words.weight"] @ item + weights["words.bias"] for item in x])


def along(kernel: Array, x: Array) -> Array:
    """A convolution (outputs, inputs, reach) of (steps, inputs), padded by half its reach."""
    reach = kernel.shape[2]
    x = np.pad(x, ((reach // 2, reach // 2), (0, 0)))
    return np.array(
        [np.einsum("oir,ri->o", kernel, x[at : at + reach]) for at in range(len(x) - reach + 1)]
    )


def spoken(weights: Weights, characters: Array, count: int, before: Array, frames: int) -> Array:
    """Return Tacotron 2's (frames, 2 · bins + 1) of a sentence, frame by frame."""
    memory = weights["embedding.weight"][characters[:count]]
    for index in range(3):
        memory = np.maximum(
            norm(weights, f"norms.{index}", along(weights[f"convolutions.{index}.weight"], memory)),
            0,
        )
    memory = np.concatenate(
        [lstm(weights, "encoder", memory, direction) for direction in ("", "_reverse")], axis=1
    )
    context, so_far = np.zeros(memory.shape[1]), np.zeros(len(memory))
    asking = speaking = (np.zeros(12), np.zeros(12))
    results = []
    for frame in before[:frames]:
        arguments = frame
        for index in range(2):
            arguments = np.maximum(weights[f"prenet.{index}.weight"] @ arguments, 0)
        asking = cell(weights, "asking", np.concatenate([arguments, context]), asking)
        places = along(weights["place.weight"], so_far[:, None]) @ weights["where.weight"].T
        hidden = np.tanh(
            weights["query.weight"] @ asking[0] + memory @ weights["key.weight"].T + places
        )
        shares = np.exp(hidden @ weights["score.weight"][0])
        shares /= shares.sum()
        context, so_far = shares @ memory, so_far + shares
        speaking = cell(weights, "speaking", asking[0], speaking)
        results.append(np.concatenate([speaking[0], context]))
    mel = np.array(results) @ weights["frame.weight"].T + weights["frame.bias"]
    stop = np.array(results) @ weights["stop.weight"].T + weights["stop.bias"]
    x = mel
    for index in range(5):
        x = norm(weights, f"postnet_norms.{index}", along(weights[f"postnet.{index}.weight"], x))
        x = x if index == 4 else np.tanh(x)
    return np.hstack([mel, mel + x, stop])


def loss(outputs: Array, targets: Array) -> float:
    """Return Tacotron 2's loss of a sentence: errors of both spectrograms, and of the end."""
    bins = targets.shape[1]
    last = np.arange(len(targets)) == len(targets) - 1
    text = np.where(last, sigmoid(outputs[:, -1]), 1 - sigmoid(outputs[:, -1]))
    squared = ((outputs[:, :bins] - targets) ** 2).mean() + (
        (outputs[:, bins:-1] - targets) ** 2
    ).mean()
    return float(squared - np.log(text).mean())


# Each takes one row of the inputs without padding: convolutions see zeros behind an end.
LOOPS: dict[str, tuple[Callable[..., Array], float]] = {
    "deepspeech2": (recognised, 1e-10),
    "gnmt": (translated, 1e-10),
    "tacotron2": (spoken, 1e-9),
}


CTC = """
import numpy as np
case = np.load(CASE)
logits, targets, frames, labels = (case[key] for key in ("logits", "targets", "frames", "labels"))
"""
TORCH_LOSS = """
import torch
from models.deepspeech2.pytorch import DeepSpeech2
given = torch.tensor(logits, requires_grad=True)
inputs = (None, torch.tensor(2 * frames))
losses = DeepSpeech2.example_losses(None, inputs, given, torch.tensor(targets))
losses.sum().backward()
result = {"torch": [losses.tolist(), given.grad.tolist()]}
"""
TENSORFLOW_LOSSES = """
import tensorflow as tf
from models.deepspeech2.ctc import LOSSES
result = {}
for name, loss in LOSSES.items():
    kind = "float64" if name in ("scan", "sparse") else "float32"
    given = tf.constant(logits.astype(kind))
    with tf.GradientTape() as tape:
        tape.watch(given)
        losses = loss(given, tf.constant(targets), tf.constant(frames), tf.constant(labels))
    result[name] = [losses.numpy().tolist(), tape.gradient(losses, given).numpy().tolist()]
"""


@pytest.mark.parametrize("model", LOOPS)
def test_outputs_are_those_of_plain_loops(model: str) -> None:
    """PyTorch's; the gate proves that the other frameworks' are equal to them."""
    _, batch, weights = probed(model)
    results = side("pytorch", model)
    outputs = results["forward/outputs"]
    outputs = outputs.reshape(len(batch.inputs[0]), -1, outputs.shape[-1])
    loops, tolerance = LOOPS[model]
    expected = [loops(weights, *row) for row in zip(*batch.inputs, strict=True)]
    for row, values in zip(outputs, expected, strict=True):
        np.testing.assert_allclose(row[: len(values)], values, rtol=tolerance, atol=tolerance / 100)
    if model == "tacotron2":
        pairs = zip(expected, batch.targets, strict=True)
        losses = [loss(values, targets[: len(values)]) for values, targets in pairs]
        mean = np.average(losses, weights=batch.weights)
        np.testing.assert_allclose(results["loss/mean"], mean, rtol=1e-9)


# By the type of an implementation: float64, TensorFlow's kernel, float32.
TOLERANCES = {"torch": 1e-12, "scan": 1e-12, "sparse": 1e-6, "dense": 1e-5, "keras": 1e-5}


def by_enumeration(logits: Array, targets: Array, frames: int) -> float:
    """Minus the logarithm of the summed probability of all paths that spell the targets."""
    likely = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    paths = itertools.product(range(logits.shape[1]), repeat=frames)
    transcript = tuple(symbol for symbol in targets.tolist() if symbol)
    total = 0.0
    for path in paths:  # runs of one symbol are one, blanks are nothing
        if tuple(symbol for symbol, _ in itertools.groupby(path) if symbol) == transcript:
            total += np.prod(likely[range(frames), path])
    return -float(np.log(total))


@pytest.fixture(scope="module")
def losses(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], Array, Array]:
    """Return losses and gradients by implementation, by enumeration, and by its differences.

    There are four transcripts; a letter twice needs a blank between.
    """
    logits = np.random.default_rng(0).standard_normal((4, 6, 3))
    targets = np.array([[1, 1, 0], [2, 0, 0], [1, 2, 1], [2, 2, 0]], np.int32)
    frames, labels = np.array([6, 2, 5, 3], np.int32), np.array([2, 1, 3, 2], np.int32)
    path = tmp_path_factory.mktemp("ctc") / "case.npz"
    np.savez(path, logits=logits, targets=targets, frames=frames, labels=labels)
    results = {
        name: values
        for framework, script in (("pytorch", TORCH_LOSS), ("tensorflow", TENSORFLOW_LOSSES))
        for name, values in result_of(framework, f"CASE = {str(path)!r}{CTC}{script}").items()
    }
    expected = [by_enumeration(*row) for row in zip(logits, targets, frames, strict=True)]
    slopes = np.zeros_like(logits)
    for at in np.ndindex(logits.shape):
        moved = np.stack([logits[at[0]]] * 2)
        moved[(slice(None), *at[1:])] += (1e-5, -1e-5)
        above, below = (by_enumeration(row, targets[at[0]], frames[at[0]]) for row in moved)
        slopes[at] = (above - below) / 2e-5
    return results, np.array(expected), slopes


@pytest.mark.parametrize("name", TOLERANCES)
def test_ctc_loss_sums_over_all_alignments(
    name: str, losses: tuple[dict[str, Any], Array, Array]
) -> None:
    results, expected, slopes = losses
    np.testing.assert_allclose(results[name][0], expected, rtol=TOLERANCES[name])
    # Central differences: right to the square of the step, and to the loss's rounding over it.
    np.testing.assert_allclose(results[name][1], slopes, atol=max(1e-8, TOLERANCES[name]))


@pytest.mark.parametrize(
    ("model", "least", "most"),
    [
        ("bert", 4, 128),
        ("deepspeech2", 100, 1_700),
        ("gnmt", 3, 50),
        ("tacotron2", 80, 800),
        ("caption_decoder", 2, 34),
    ],
)
def test_random_lengths_stay_within_their_bounds(model: str, least: int, most: int) -> None:
    drawn = models.spec(model).lengths("paper", 2_000, np.random.default_rng(0))
    assert least <= drawn.min() < np.median(drawn) < drawn.max() <= most


@pytest.mark.parametrize("model", ["bert", "deepspeech2", "gnmt", "tacotron2"])
def test_random_batches_are_padded_behind_their_ends(model: str) -> None:
    module, lengths = models.spec(model), np.array([18, 7, 12])
    batch = module.batch(module.sized("tiny"), lengths, np.random.default_rng(0))
    sequences, counts = batch.inputs[:2]
    assert counts.tolist() == (lengths // 6 if model == "tacotron2" else lengths).tolist()
    for row, count in zip(sequences, counts, strict=True):
        assert (row[count:] == 0).all()
        assert (row[:count] != 0).all()
    assert {array.dtype.name for array in batch.inputs} <= {"int32", "float32"}


def test_inputs_are_targets_shifted_by_a_step() -> None:
    rng, lengths = np.random.default_rng(0), np.array([18, 7])
    batch = gnmt.batch(gnmt.SIZES["tiny"], lengths, rng)
    target = batch.inputs[2]
    assert (target[:, 0] == gnmt.START).all()
    np.testing.assert_array_equal(target[:, 1:], batch.targets.reshape(target.shape)[:, :-1])
    np.testing.assert_array_equal(batch.weights.reshape(target.shape).sum(1), lengths)
    spoken = tacotron2.batch(tacotron2.SIZES["tiny"], lengths, rng)
    before = spoken.inputs[2]
    assert (before[:, 0] == 0).all()
    np.testing.assert_array_equal(before[:, 1:], spoken.targets[:, :-1])
    assert (spoken.targets[1, 7:] == 0).all()
