"""What networks of speech hear: logarithms of a recording's short-time spectrum, made once, in NumPy.

Sources: Amodei et al., Deep Speech 2, ICML 2016, and Hannun et al., Deep Speech, 2014, for windows of 20 ms every 10 ms;
Shen et al., Tacotron 2, ICASSP 2018, section 2.1: windows of 50 ms every 12.5 ms, Hann, mel bands between 125 Hz and 7.6 kHz,
magnitudes not below 0.01 before the logarithm.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

SPECTROGRAM_SECONDS = (0.020, 0.010)  # window, hop
MEL_SECONDS = (0.050, 0.0125)
MEL_HERTZ = (125.0, 7_600.0)
MEL_FLOOR = 0.01
FLOOR = 1e-5

Floats = NDArray[np.float64]


def log_spectrogram(samples: Floats, rate: int, bins: int) -> NDArray[np.float32]:
    """(frames, bins): bins 50 Hz apart, from 0 Hz, of mean 0 and deviation 1 over the utterance; silence is 0."""
    found = np.log(np.maximum(magnitudes(samples, rate, SPECTROGRAM_SECONDS)[:, :bins], FLOOR))
    deviation = max(found.std(), FLOOR)  # of silence it is what rounding leaves
    return np.asarray((found - found.mean()) / deviation, np.float32)


def log_mel(samples: Floats, rate: int, bins: int) -> NDArray[np.float32]:
    """(frames, bins): natural logarithms of the magnitudes in mel bands."""
    found = magnitudes(samples, rate, MEL_SECONDS)
    bands = mel_bands(bins, np.arange(found.shape[1]) * rate / window_samples(rate, MEL_SECONDS))
    return np.asarray(np.log(np.maximum(found @ bands.T, MEL_FLOOR)), np.float32)


def window_samples(rate: int, seconds: tuple[float, float]) -> int:
    return round(rate * seconds[0])


def magnitudes(samples: Floats, rate: int, seconds: tuple[float, float]) -> Floats:
    """(frames, window // 2 + 1) under Hann windows (periodic) that lie inside of the samples. seconds: of a window, and a hop."""
    window, hop = window_samples(rate, seconds), round(rate * seconds[1])
    hann = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(window) / window)
    frames = np.lib.stride_tricks.sliding_window_view(samples, window)[::hop]
    found: Floats = np.abs(np.fft.rfft(frames * hann, axis=1))
    return found


def mel_bands(bands: int, hertz: Floats) -> Floats:
    """(bands, frequencies): triangles of height 1 whose corners are equally far apart in mel, 2595 · log10(1 + f / 700)."""
    low, high = (2_595 * np.log10(1 + edge / 700) for edge in MEL_HERTZ)
    corners = 700 * (10 ** (np.linspace(low, high, bands + 2) / 2_595) - 1)
    before, middle, after = (corners[first : first + bands, None] for first in range(3))
    rising, falling = (hertz - before) / (middle - before), (after - hertz) / (after - middle)
    found: Floats = np.maximum(0, np.minimum(rising, falling))
    return found
