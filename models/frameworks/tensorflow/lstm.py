"""What TensorFlow brings for an LSTM over whole sequences, as one operator; in float32 alone.

Steps (n, T, inputs), weights and bias as Keras has them, gates in the order i f g o; returns the states (n, T, width).
"""

from __future__ import annotations

from typing import Any

OPERATORS = ("block", "block-v2")


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

    given = _given(steps, recurrent_kernel, tf.concat([kernel, recurrent_kernel], axis=0), tf.convert_to_tensor(bias))
    return tf.transpose(tf.raw_ops.BlockLSTMV2(**given).h, (1, 0, 2))


def _given(steps: Any, recurrent_kernel: Any, weights: Any, bias: Any) -> dict[str, Any]:
    """Arguments of both: time first, a state of zeros, no peepholes."""
    import tensorflow as tf

    n, most = tf.unstack(tf.shape(steps)[:2])
    width = recurrent_kernel.shape[0]
    state, peephole = tf.zeros((n, width), steps.dtype), tf.zeros((width,), steps.dtype)
    given = {"x": tf.transpose(steps, (1, 0, 2)), "cs_prev": state, "h_prev": state, "w": weights, "b": bias}
    given |= {"wci": peephole, "wcf": peephole, "wco": peephole}
    return {**given, "seq_len_max": tf.cast(most, tf.int64), "use_peephole": False}
