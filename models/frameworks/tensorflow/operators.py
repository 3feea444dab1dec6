"""Operators of TensorFlow that Keras lacks: a scan, CTC losses, LSTMs over whole sequences.

CTC: logits (n, frames, symbols), targets (n, labels) padded with the blank; frames and labels (n,):
the valid ones of a row; returns (n,). LSTM, in float32 only: steps (n, T, inputs), a cell of Keras,
whose gates are in the order i f g o; returns the states (n, T, width).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def scan(*arguments: Any) -> Any:
    import tensorflow as tf

    return tf.scan(*arguments)


def ctc_sparse(logits: Any, targets: Any, frames: Any, _: Any, *, blank: int) -> Any:
    """Return the losses of the kernel, with labels as a sparse tensor."""
    import tensorflow as tf

    labels = tf.sparse.from_dense(targets)
    return tf.nn.ctc_loss(labels, logits, None, frames, logits_time_major=False, blank_index=blank)


def ctc_dense(logits: Any, targets: Any, frames: Any, labels: Any, *, blank: int) -> Any:
    """Return the losses of a composition of operators, with padded labels."""
    import tensorflow as tf

    return tf.nn.ctc_loss(
        targets, logits, labels, frames, logits_time_major=False, blank_index=blank
    )


def block(steps: Any, cell: Any) -> Any:
    """Return the states of BlockLSTM, whose gates are in the order i g f o."""
    import tensorflow as tf

    def reorder(array: Any) -> Any:
        i, f, g, o = tf.split(array, 4, axis=-1)
        return tf.concat([i, g, f, o], axis=-1)

    return _run_block(tf.raw_ops.BlockLSTM, steps, cell, reorder, forget_bias=0.0, cell_clip=-1.0)


def block_v2(steps: Any, cell: Any) -> Any:
    """Return the states of BlockLSTMV2, in Keras' order of gates.

    Its gradient takes them for those of BlockLSTM, and is wrong.
    """
    import tensorflow as tf

    return _run_block(tf.raw_ops.BlockLSTMV2, steps, cell, tf.convert_to_tensor)


def _run_block(
    operator: Any, steps: Any, cell: Any, reorder: Callable[[Any], Any], **options: float
) -> Any:
    """Call the operator: time first, a state of zeros, no peepholes."""
    import tensorflow as tf

    n, longest = tf.unstack(tf.shape(steps)[:2])
    state, peephole = tf.zeros((n, cell.units), steps.dtype), tf.zeros((cell.units,), steps.dtype)
    states = operator(
        x=tf.transpose(steps, (1, 0, 2)),
        cs_prev=state,
        h_prev=state,
        w=reorder(tf.concat([cell.kernel, cell.recurrent_kernel], axis=0)),
        b=reorder(cell.bias),
        wci=peephole,
        wcf=peephole,
        wco=peephole,
        seq_len_max=tf.cast(longest, tf.int64),
        use_peephole=False,
        **options,
    ).h
    return tf.transpose(states, (1, 0, 2))
