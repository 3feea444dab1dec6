"""Recorded speech from WAV files, by scipy's reader."""

from __future__ import annotations

import io
import warnings
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from experiments.datasets.labelled.checks import reading, refused

MIN_RATE, MAX_RATE = 16_000, 48_000
MIN_SECONDS, MAX_SECONDS = 0.1, 60
# What no utterance needs, and a file of sparse zeros may promise.
_MAX_BYTES = 64 << 20
_WANTED = "WAV file of 16, 24 or 32 bits PCM"


def read(path: Path) -> tuple[int, NDArray[np.float64]]:
    """Samples a second, and the samples, -1…1, of a recording with one channel. Raises WrongCall for any other."""
    with reading(path, _WANTED):
        size = path.stat().st_size
        if size > _MAX_BYTES:
            raise refused(path, f"has {size:,} bytes; at most {_MAX_BYTES:,}, one utterance")
        rate, found = _parsed(path)
    if found.ndim != 1:
        raise refused(path, f"has {found.shape[1]} channels; one is read: make it mono")
    if found.dtype.kind != "i" or found.dtype.itemsize not in (2, 4):
        bits, kind = (
            8 * found.dtype.itemsize,
            {"u": "unsigned PCM", "i": "PCM", "f": "floats"}[found.dtype.kind],
        )
        raise refused(path, f"has samples of {bits} bits, {kind}; make it 16 bits PCM")
    if not MIN_RATE <= rate <= MAX_RATE:
        raise refused(
            path, f"has {rate:,} samples a second; between {MIN_RATE:,} and {MAX_RATE:,} are read"
        )
    seconds = len(found) / rate
    if not MIN_SECONDS <= seconds <= MAX_SECONDS:
        raise refused(
            path,
            f"lasts {seconds:.3g} s; an utterance lasts between {MIN_SECONDS} and {MAX_SECONDS} s",
        )
    return rate, found / 2.0 ** (8 * found.dtype.itemsize - 1)


def _parsed(path: Path) -> tuple[int, NDArray[Any]]:
    """Raises ValueError for what ends before its header says. From memory: a header that promises gigabytes takes none."""
    from scipy.io import wavfile

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", wavfile.WavFileWarning)  # parts that are no sound
        warnings.filterwarnings("error", "Reached EOF|Incomplete chunk", wavfile.WavFileWarning)
        try:
            rate, samples = wavfile.read(io.BytesIO(path.read_bytes()))
        except wavfile.WavFileWarning as error:
            raise ValueError(f"it is cut off: {error}") from None
        except UnboundLocalError:
            raise ValueError("it has no sound in it") from None
    return int(rate), np.asarray(samples)
