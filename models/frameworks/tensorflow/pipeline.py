"""tf.data over images on disk."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from models.contract import Batch, ImageFiles


def batches(files: ImageFiles, workers: int) -> Iterator[Batch]:
    """Batches as NumPy views of tf.data's own memory."""
    images = np.load(files.images, mmap_mode="r")
    side, channels, pad = images.shape[1], images.shape[3], files.pad

    def picture(row: Any, shift: Any, mirrored: Any, label: Any) -> tuple[Any, Any]:
        image = tf.numpy_function(lambda at: images[at], [row], tf.uint8, stateful=False)
        image.set_shape((side, side, channels))
        padded = tf.pad(image, ((pad, pad), (pad, pad), (0, 0)))
        moved = tf.slice(padded, tf.concat([shift, [0]], 0), (side, side, channels))
        moved = tf.cond(mirrored, lambda: tf.reverse(moved, [1]), lambda: moved)
        return (tf.cast(moved, tf.float32) / 255 - files.mean) / files.deviation, label

    drawn = (files.rows, files.shifts.astype(np.int32), files.mirrored, files.labels)
    wanted = tf.data.Dataset.from_tensor_slices(drawn).map(picture, num_parallel_calls=max(1, workers), deterministic=True)
    wanted = wanted.batch(files.batch_size, drop_remainder=True).prefetch(tf.data.AUTOTUNE)
    weights = np.ones(files.batch_size, np.float32)
    for pixels, labels in wanted.as_numpy_iterator():
        yield Batch((pixels,), labels, weights)
