"""Deep Speech 2: its size by hand, its CTC losses against every alignment one by one, its random speech."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import numpy as np
import pytest

from models.contract import Array, ModelError, Weights
from models.deepspeech2 import spec as deepspeech2
from models.testing import check_initial_weights, check_sizes
from tests.models.children import run_in
from tests.models.plain import FORWARD, convolution, lstm, norm

CONVOLUTIONS = 32 * 11 * 41 + 32 * 32 * 11 * 21 + 2 * 2 * 32
FIRST, LATER = (2 * 4 * 800 * (inputs + 800 + 1) for inputs in (32 * 41, 800))
REST = 5 * 2 * 800 + 800 * 29 + 29

LOSSES = """
import json, sys
import numpy as np
case = np.load(sys.argv[2])
logits, targets, frames, labels = (case[name] for name in ("logits", "targets", "frames", "labels"))
found = {}
if sys.argv[1] == "pytorch":
    import torch
    from models.deepspeech2.pytorch import DeepSpeech2
    given = torch.tensor(logits, requires_grad=True)
    losses = DeepSpeech2.example_losses(None, (None, torch.tensor(2 * frames)), given, torch.tensor(targets))
    losses.sum().backward()
    found["torch"] = [losses.tolist(), given.grad.tolist()]
else:
    import os
    os.environ["KERAS_BACKEND"] = "tensorflow"
    import tensorflow as tf
    from models.deepspeech2.ctc import LOSSES
    for name, loss in LOSSES.items():
        kind = "float64" if name in ("scan", "sparse") else "float32"
        given = tf.constant(logits.astype(kind))
        with tf.GradientTape() as tape:
            tape.watch(given)
            losses = loss(given, tf.constant(targets), tf.constant(frames), tf.constant(labels))
        found[name] = [losses.numpy().tolist(), tape.gradient(losses, given).numpy().tolist()]
json.dump(found, open(sys.argv[3], "w"))
"""
# The type that an implementation computes in: float64, TensorFlow's kernel with exponentials of its own, float32.
TOLERANCES = {"torch": 1e-12, "scan": 1e-12, "sparse": 1e-6, "dense": 1e-5, "keras": 1e-5}


def test_the_papers_size_and_initial_weights() -> None:
    check_sizes("deepspeech2", (CONVOLUTIONS + FIRST + 4 * LATER + REST, 2 * (2 * 32 + 5 * 800)))
    check_initial_weights("deepspeech2")


def spelled(alignment: tuple[int, ...]) -> tuple[int, ...]:
    """What a path of symbols says: runs of one symbol are one, blanks are nothing."""
    return tuple(symbol for symbol, _ in itertools.groupby(alignment) if symbol)


def by_enumeration(logits: Array, targets: Array, frames: int) -> float:
    """Minus the logarithm of the summed probability of all paths that spell the targets."""
    likely = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    paths = itertools.product(range(logits.shape[1]), repeat=frames)
    wanted = tuple(int(one) for one in targets if one)
    return -float(np.log(sum(np.prod([likely[t, s] for t, s in enumerate(path)]) for path in paths if spelled(path) == wanted)))


@pytest.fixture(scope="module")
def losses(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, list[Array]], list[float], Array]:
    """Losses and gradients by implementation; the losses by enumeration, and gradients by differences of these."""
    folder = tmp_path_factory.mktemp("ctc")
    rng = np.random.default_rng(0)
    logits = rng.standard_normal((4, 6, 3))
    targets = np.array([[1, 1, 0], [2, 0, 0], [1, 2, 1], [2, 2, 0]], np.int32)  # a letter twice needs a blank between
    frames, labels = np.array([6, 2, 5, 3], np.int32), np.array([2, 1, 3, 2], np.int32)
    np.savez(folder / "case.npz", logits=logits, targets=targets, frames=frames, labels=labels)
    found: dict[str, list[Array]] = {}
    for framework in ("pytorch", "tensorflow"):
        run_in(framework, "-c", LOSSES, framework, str(folder / "case.npz"), str(folder / "found.json"))
        found |= {name: [np.array(one) for one in both] for name, both in json.loads((folder / "found.json").read_text()).items()}
    wanted = [by_enumeration(*one) for one in zip(logits, targets, frames, strict=True)]
    slopes = np.zeros_like(logits)
    for at in np.ndindex(logits.shape):
        moved = [logits[at[0]].copy(), logits[at[0]].copy()]
        for one, step in zip(moved, (1e-5, -1e-5), strict=True):
            one[at[1:]] += step
        above, below = (by_enumeration(one, targets[at[0]], frames[at[0]]) for one in moved)
        slopes[at] = (above - below) / 2e-5
    return found, wanted, slopes


@pytest.mark.parametrize("name", TOLERANCES)
def test_a_ctc_loss_sums_over_every_alignment(name: str, losses: tuple[dict[str, list[Array]], list[float], Array]) -> None:
    found, wanted, slopes = losses
    np.testing.assert_allclose(found[name][0], wanted, rtol=TOLERANCES[name])
    # central differences of step 1e-5 are right to their square and to the rounding of the loss over the step
    np.testing.assert_allclose(found[name][1], slopes, atol=max(1e-8, TOLERANCES[name]))


def test_its_outputs_are_those_of_plain_loops(tmp_path: Path) -> None:
    run_in("pytorch", "-c", FORWARD, "deepspeech2", "pytorch", str(tmp_path / "found.npz"))
    with np.load(tmp_path / "found.npz") as file:
        weights = {name.removeprefix("weights/"): file[name] for name in file if name.startswith("weights/")}
        features, lengths, outputs = file["inputs/0"], file["inputs/1"], file["outputs"]
    for row, length in enumerate(lengths):
        frames, wanted = -(-length // 2), recognised(weights, features[row, :length])
        assert len(wanted) == frames
        np.testing.assert_allclose(outputs[row, :frames], wanted, rtol=1e-10, atol=1e-12)


def recognised(weights: Weights, features: Array) -> Array:
    """Logits (frames, symbols) of one utterance without padding."""
    x = features[None].astype(float)
    for index, strides in enumerate(((2, 2), (1, 2))):
        x = convolution(weights[f"convolutions.{index}.weight"], x, strides)
        x = np.clip(norm(weights, f"norms.{index}", x.transpose(1, 2, 0)), 0, 20).transpose(2, 0, 1)
    sequence = x.transpose(1, 2, 0).reshape(x.shape[1], -1)
    for index in range(2):
        both = [lstm(weights, f"lstms.{index}", sequence, direction) for direction in ("", "_reverse")]
        sequence = norm(weights, f"sequence_norms.{index}", both[0] + both[1])
    return sequence @ weights["symbols.weight"].T + weights["symbols.bias"]


def test_random_speech_has_room_for_its_transcript() -> None:
    rng = np.random.default_rng(0)
    for size, second in (("paper", 100), ("tiny", 10)):
        frames = deepspeech2.lengths(size, 500, rng)
        assert second <= frames.min() < frames.max() <= 17 * second
    small, found = deepspeech2.SIZES["tiny"], deepspeech2.batch(deepspeech2.SIZES["tiny"], np.array([40, 7, 100]), rng)
    features, lengths = found.inputs
    assert features.shape == (3, 100, small.features)
    assert (features[1, 7:] == 0).all()
    assert (features[1, :7] != 0).all()
    for row, labels in enumerate(found.targets):
        spoken = labels[labels > 0]
        repeats = int((np.diff(spoken) == 0).sum())  # each wants a blank between
        assert (labels[len(spoken) :] == 0).all()
        assert len(spoken) + repeats <= deepspeech2.frames_left(lengths[row])


def test_nonsense_sizes_are_refused() -> None:
    with pytest.raises(ModelError, match="deepspeech2: width must be at least 1, not 0"):
        deepspeech2.Spec(width=0)
    with pytest.raises(ModelError, match="no ctc 'warp'; have scan, sparse, dense, keras"):
        deepspeech2.Spec(ctc="warp")
