"""What TensorFlow brings for a CTC loss.

Logits (n, frames, symbols), targets (n, labels) padded with the blank; frames and labels (n,): how many of each are a row's.
"""

from __future__ import annotations

from typing import Any


def sparse(logits: Any, targets: Any, frames: Any, blank: int) -> Any:
    """(n,) by the kernel, to which labels are given as a sparse tensor."""
    import tensorflow as tf

    given = tf.sparse.from_dense(targets)
    return tf.nn.ctc_loss(given, logits, None, frames, logits_time_major=False, blank_index=blank)


def dense(logits: Any, targets: Any, frames: Any, labels: Any, blank: int) -> Any:
    """(n,) by operators, to which labels are given padded."""
    import tensorflow as tf

    return tf.nn.ctc_loss(targets, logits, labels, frames, logits_time_major=False, blank_index=blank)
