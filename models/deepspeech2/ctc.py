"""CTC losses on Keras' backends: one that is exact in float64, and Keras' and TensorFlow's own.

Source: Graves et al., Connectionist temporal classification, ICML 2006, section 4.1: the forward
variable in logarithms. Each takes logits (n, frames, symbols), targets (n, labels) padded with the
blank, frames (n,) and labels (n,) of each row, and returns (n,): minus the logarithm of the
probability.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from keras import ops

from models.deepspeech2.spec import BLANK
from models.frameworks.tensorflow import operators
from models.layers import NEVER
from models.layers.keras import scan as loop


def scan(logits: Any, targets: Any, frames: Any, labels: Any) -> Any:
    """Recur over the frames, in the type of the logits."""
    likely = ops.log_softmax(logits, axis=-1)
    states = _with_blanks(targets)
    emitted = ops.take_along_axis(
        likely, ops.repeat(states[:, None], ops.shape(likely)[1], axis=1), axis=2
    )
    other = ops.not_equal(states, _shifted(_shifted(states, BLANK), BLANK))
    skips = ops.logical_and(ops.not_equal(states, BLANK), other)
    at_start = ops.where(ops.arange(ops.shape(states)[1]) < 2, emitted[:, 0], NEVER)

    def step(alpha: Any, inputs: Any) -> Any:
        frame, now = inputs
        before = _shifted(alpha, NEVER)
        two_before = ops.where(skips, _shifted(before, NEVER), NEVER)
        moved = ops.logsumexp(ops.stack([alpha, before, two_before]), axis=0) + now
        return ops.where(ops.less(frame, frames)[:, None], moved, alpha)

    later = (
        ops.arange(1, ops.shape(likely)[1], dtype="int32"),
        ops.transpose(emitted[:, 1:], (1, 0, 2)),
    )
    alpha = loop(step, at_start, later)[-1]
    last = ops.take_along_axis(alpha, 2 * labels[:, None], axis=1)[:, 0]
    label = ops.take_along_axis(alpha, ops.maximum(2 * labels - 1, 0)[:, None], axis=1)[:, 0]
    return -ops.where(labels > 0, ops.logaddexp(last, label), last)


def keras(logits: Any, targets: Any, frames: Any, labels: Any) -> Any:
    """Call Keras' operator; it computes in float32 on TensorFlow."""
    return ops.ctc_loss(targets, logits, labels, frames, mask_index=BLANK)


LOSSES: dict[str, Callable[..., Any]] = {
    "scan": scan,
    "sparse": partial(operators.ctc_sparse, blank=BLANK),
    "dense": partial(operators.ctc_dense, blank=BLANK),
    "keras": keras,
}


def _with_blanks(targets: Any) -> Any:
    """Put a blank before, between and behind the labels, (n, 2 · labels + 1)."""
    blanks = ops.full_like(targets, BLANK)
    pairs = ops.reshape(ops.stack([blanks, targets], axis=2), (-1, 2 * ops.shape(targets)[1]))
    return ops.concatenate([pairs, blanks[:, :1]], axis=1)


def _shifted(values: Any, first: Any) -> Any:
    """Shift by one to the right, along the second axis."""
    return ops.concatenate([ops.full_like(values[:, :1], first), values[:, :-1]], axis=1)
