"""Input pipeline of tf.data, tf.io and tf.image over images on disk, also under Keras."""

from __future__ import annotations

import os
from collections.abc import Iterator
from math import prod
from typing import Any

import numpy as np
import tensorflow as tf

from models.contract import Batch, ErrorCode, ImageFiles, ModelError
from models.devices import CPU


class Reader:
    """Operations on one picture, traced once a training; each epoch is another data set."""

    def __init__(
        self, files: ImageFiles, workers: int, device: str, *, channels_last: bool
    ) -> None:
        assert channels_last  # TensorFlow has no other layout
        stored = np.load(files.images, mmap_mode="r")
        self._shape, self._offset, self._pad = stored.shape[1:], stored.offset, files.pad
        self._mean, self._deviation = files.mean, files.deviation
        self._parallel, self._device = max(1, workers), device
        with tf.device("CPU:0"):  # the file itself, mapped into memory
            shape = (stored.offset + stored.nbytes,)
            self._stored = tf.raw_ops.ImmutableConst(
                dtype=tf.uint8, shape=shape, memory_region_name=files.images
            )
        self._weights = tf.ones(files.batch_size)
        self._picture = tf.function(self._read, autograph=False)

    def epoch(self, files: ImageFiles) -> Iterator[Batch]:
        """Yield whole batches, on the device. Raise ModelError naming a damaged file."""
        loaded = iter(self.dataset(files))
        for number in range(len(files.rows) // files.batch_size):
            try:
                pixels, labels = next(loaded)
            except (tf.errors.InvalidArgumentError, tf.errors.NotFoundError):
                _name_damaged(files.files[number * files.batch_size :][: files.batch_size])
                raise
            yield Batch((pixels,), labels, self._weights, uniform_weights=True)

    def dataset(self, files: ImageFiles) -> Any:
        """Return a data set of batches (pixels, labels)."""
        columns = (
            files.rows,
            files.files,
            files.orientations,
            files.shifts.astype(np.int32),
            files.mirrored,
            files.labels,
        )
        pictures = tf.data.Dataset.from_tensor_slices(columns)
        images = pictures.map(self._picture, num_parallel_calls=self._parallel, deterministic=True)
        batches = images.batch(files.batch_size, drop_remainder=True)
        if self._device != CPU:
            return batches.apply(tf.data.experimental.prefetch_to_device("/GPU:0"))
        return batches.prefetch(tf.data.AUTOTUNE)

    def _read(
        self, row: Any, file: Any, orientation: Any, shift: Any, mirrored: Any, label: Any
    ) -> tuple[Any, Any]:
        side, _, channels = self._shape
        image = tf.cond(
            file == b"", lambda: self._stored_image(row), lambda: self._decode(file, orientation)
        )
        padded = tf.pad(image, ((self._pad, self._pad), (self._pad, self._pad), (0, 0)))
        moved = tf.slice(padded, tf.concat([shift, [0]], 0), (side, side, channels))
        moved = tf.cond(mirrored, lambda: tf.reverse(moved, [1]), lambda: moved)
        return (moved / 255 - self._mean) / self._deviation, label

    def _stored_image(self, row: Any) -> Any:
        size = prod(self._shape)
        image = tf.slice(self._stored, [self._offset + row * size], [size])
        return tf.cast(tf.reshape(image, self._shape), tf.float32)

    def _decode(self, file: Any, orientation: Any) -> Any:
        # reads PNG too; the accurate transform is that of torchvision and Pillow, bit by bit
        image = tf.io.decode_jpeg(tf.io.read_file(file), channels=3, dct_method="INTEGER_ACCURATE")
        # EXIF's orientations: from 5 on rows and columns are exchanged
        image = tf.cond(orientation >= 5, lambda: tf.transpose(image, (1, 0, 2)), lambda: image)
        image.set_shape((None, None, 3))
        for axis, flipped in ((1, (2, 3, 6, 7)), (0, (3, 4, 7, 8))):
            is_flipped = tf.reduce_any(orientation == tf.constant(flipped, tf.int8))
            image = tf.cond(
                is_flipped,
                lambda image=image, axis=axis: tf.reverse(image, [axis]),
                lambda image=image: image,
            )
        image = tf.image.resize(image, self._shape[:2], antialias=True)
        return tf.image.rgb_to_grayscale(image) if self._shape[2] == 1 else image


def _name_damaged(paths: Any) -> None:
    for path in filter(None, map(bytes, paths)):
        try:
            tf.io.decode_jpeg(tf.io.read_file(path), channels=3)
        except (tf.errors.InvalidArgumentError, tf.errors.NotFoundError) as error:
            reason = error.message.splitlines()[0]
            text = f"{os.fsdecode(path)}: cannot be decoded by TensorFlow: {reason}"
            raise ModelError(ErrorCode.UNREADABLE, f"{text}; mend or remove it") from None
