"""Operators that TensorFlow brings and Keras does not pass on: a scan, CTC losses, LSTMs over whole sequences.

CTC: logits (n, frames, symbols), targets (n, labels) padded with the blank; frames and labels (n,): how many of each
are a row's; returns (n,). LSTM, in float32 only: steps (n, T, inputs), weights and bias as Keras has them, gates in
the order i f g o; returns the states (n, T, width).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

LSTMS = ("block", "block-v2")


def scan(step: Callable[[Any, Any], Any], first: Any, given: Any) -> Any:
    """Return the state after each step for each of `given`, along their first axis."""
    import tensorflow as tf

    return tf.scan(step, given, first)


def ctc_sparse(logits: Any, targets: Any, frames: Any, _: Any, *, blank: int) -> Any:
    """Return the losses of the kernel, to which labels are given as a sparse tensor."""
    import tensorflow as tf

    labels = tf.sparse.from_dense(targets)
    return tf.nn.ctc_loss(labels, logits, None, frames, logits_time_major=False, blank_index=blank)


def ctc_dense(logits: Any, targets: Any, frames: Any, labels: Any, *, blank: int) -> Any:
    """Return the losses of a composition of operators, to which labels are given padded."""
    import tensorflow as tf

    return tf.nn.ctc_loss(
        targets, logits, labels, frames, logits_time_major=False, blank_index=blank
    )


def block(steps: Any, kernel: Any, recurrent_kernel: Any, bias: Any) -> Any:
    """BlockLSTM, whose gates are in the order i g f o."""
    import tensorflow as tf

    def ordered(array: Any) -> Any:
        i, f, g, o = tf.split(array, 4, axis=-1)
        return tf.concat([i, g, f, o], axis=-1)

    weights = ordered(tf.concat([kernel, recurrent_kernel], axis=0))
    given = _given(steps, recurrent_kernel, weights, ordered(bias))
    return tf.transpose(tf.raw_ops.BlockLSTM(**given, forget_bias=0.0, cell_clip=-1.0).h, (1, 0, 2))


def block_v2(steps: Any, kernel: Any, recurrent_kernel: Any, bias: Any) -> Any:
    """BlockLSTMV2, whose gates are in Keras' order. Its gradient takes them for those of BlockLSTM, and is wrong."""
    import tensorflow as tf

    given = _given(
        steps,
        recurrent_kernel,
        tf.concat([kernel, recurrent_kernel], axis=0),
        tf.convert_to_tensor(bias),
    )
    return tf.transpose(tf.raw_ops.BlockLSTMV2(**given).h, (1, 0, 2))


def _given(steps: Any, recurrent_kernel: Any, weights: Any, bias: Any) -> dict[str, Any]:
    """Arguments of both: time first, a state of zeros, no peepholes."""
    import tensorflow as tf

    n, most = tf.unstack(tf.shape(steps)[:2])
    width = recurrent_kernel.shape[0]
    state, peephole = tf.zeros((n, width), steps.dtype), tf.zeros((width,), steps.dtype)
    given = {
        "x": tf.transpose(steps, (1, 0, 2)),
        "cs_prev": state,
        "h_prev": state,
        "w": weights,
        "b": bias,
    }
    given |= {"wci": peephole, "wcf": peephole, "wco": peephole}
    return {**given, "seq_len_max": tf.cast(most, tf.int64), "use_peephole": False}
