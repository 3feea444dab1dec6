"""Tacotron 2: its size by hand, its outputs and losses by plain loops, its random speech."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from models.contract import Array, ModelError, Weights
from models.tacotron2 import spec as tacotron2
from models.testing import check_initial_weights, check_sizes
from tests.models.children import run_python
from tests.models.plain import FORWARD, cell, lstm, norm, sigmoid

ENCODER = 148 * 512 + 3 * (512 * 512 * 5 + 2 * 512) + 2 * 4 * 256 * (512 + 256 + 1)
DECODER = 80 * 256 + 256 * 256 + 4 * 1_024 * (256 + 512 + 1_024 + 1) + 4 * 1_024 * (2 * 1_024 + 1)
ATTENTION = 128 * (1_024 + 512 + 32 + 1) + 32 * 31
OUTPUTS = (1_024 + 512 + 1) * 81 + 5 * (2 * 80 * 512 + 3 * 512 * 512) + 2 * (4 * 512 + 80)


def test_the_papers_size_and_initial_weights() -> None:
    check_sizes("tacotron2", (ENCODER + DECODER + ATTENTION + OUTPUTS, 2 * (3 * 512 + 4 * 512 + 80)))
    check_initial_weights("tacotron2")


def along(kernel: Array, x: Array) -> Array:
    """A convolution (outputs, inputs, reach) of (steps, inputs), padded by half its reach."""
    reach = kernel.shape[2]
    x = np.pad(x, ((reach // 2, reach // 2), (0, 0)))
    return np.array([np.einsum("oir,ri->o", kernel, x[at : at + reach]) for at in range(len(x) - reach + 1)])


def spoken(weights: Weights, characters: Array, before: Array) -> Array:
    """(frames, 2 · bins + 1) of one sentence without padding, frame by frame."""
    memory = weights["embedding.weight"][characters]
    for index in range(3):
        memory = np.maximum(norm(weights, f"norms.{index}", along(weights[f"convolutions.{index}.weight"], memory)), 0)
    memory = np.concatenate([lstm(weights, "encoder", memory, direction) for direction in ("", "_reverse")], axis=1)
    context, so_far = np.zeros(memory.shape[1]), np.zeros(len(memory))
    asking = speaking = (np.zeros(12), np.zeros(12))
    found = []
    for frame in before:
        given = frame
        for index in range(2):
            given = np.maximum(weights[f"prenet.{index}.weight"] @ given, 0)
        asking = cell(weights, "asking", np.concatenate([given, context]), asking)
        places = along(weights["place.weight"], so_far[:, None]) @ weights["where.weight"].T
        hidden = np.tanh(weights["query.weight"] @ asking[0] + memory @ weights["key.weight"].T + places)
        shares = np.exp(hidden @ weights["score.weight"][0])
        shares /= shares.sum()
        context, so_far = shares @ memory, so_far + shares
        speaking = cell(weights, "speaking", asking[0], speaking)
        found.append(np.concatenate([speaking[0], context]))
    mel = np.array(found) @ weights["frame.weight"].T + weights["frame.bias"]
    stop = np.array(found) @ weights["stop.weight"].T + weights["stop.bias"]
    x = mel
    for index in range(5):
        x = norm(weights, f"postnet_norms.{index}", along(weights[f"postnet.{index}.weight"], x))
        x = x if index == 4 else np.tanh(x)
    return np.hstack([mel, mel + x, stop])


def loss(outputs: Array, targets: Array) -> float:
    """Of one sentence: mean squared errors of both spectrograms, and the cross-entropy of the end."""
    bins = targets.shape[1]
    last = np.arange(len(targets)) == len(targets) - 1
    said = np.where(last, sigmoid(outputs[:, -1]), 1 - sigmoid(outputs[:, -1]))
    squared = ((outputs[:, :bins] - targets) ** 2).mean() + ((outputs[:, bins:-1] - targets) ** 2).mean()
    return float(squared - np.log(said).mean())


def test_its_outputs_and_its_loss_are_those_of_plain_loops(tmp_path: Path) -> None:
    run_python("-c", FORWARD, "tacotron2", "pytorch", str(tmp_path / "found.npz"))
    with np.load(tmp_path / "found.npz") as file:
        weights = {name.removeprefix("weights/"): file[name] for name in file if name.startswith("weights/")}
        characters, counts, before, frames = (file[f"inputs/{at}"] for at in range(4))
        outputs, targets, mean, rows = file["outputs"], file["targets"], float(file["loss"]), file["row_weights"]
    losses = []
    for row, (count, most) in enumerate(zip(counts, frames, strict=True)):
        wanted = spoken(weights, characters[row, :count], before[row, :most])
        # the convolutions behind a shorter sentence's end see frames of zero, as they do at its end here
        np.testing.assert_allclose(outputs[row, :most], wanted, rtol=1e-9, atol=1e-11)
        losses.append(loss(wanted, targets[row, :most]))
    np.testing.assert_allclose(mean, np.average(losses, weights=rows), rtol=1e-9)


def test_random_speech_ends_in_padding_and_teaches_the_next_frame() -> None:
    rng = np.random.default_rng(0)
    drawn = tacotron2.lengths("paper", 500, rng)
    assert 80 <= drawn.min() < drawn.max() <= 800
    found = tacotron2.batch(tacotron2.SIZES["tiny"], np.array([18, 7]), rng)
    characters, counts, before, frames = found.inputs
    assert list(counts) == [3, 1]
    assert list(frames) == [18, 7]
    assert (characters[1, 1:] == tacotron2.PADDING).all()
    assert (before[:, 0] == 0).all()
    np.testing.assert_array_equal(before[:, 1:], found.targets[:, :-1])
    assert (found.targets[1, 7:] == 0).all()


def test_nonsense_sizes_are_refused() -> None:
    with pytest.raises(ModelError, match="tacotron2: bins must be at least 1, not 0"):
        tacotron2.Spec(bins=0)
    with pytest.raises(ModelError, match="reach odd"):
        tacotron2.Spec(reach=4)
