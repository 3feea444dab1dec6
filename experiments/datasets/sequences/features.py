"""Logarithms of a recording's short-time spectrum, in NumPy.

Sources: Amodei et al., Deep Speech 2, ICML 2016, and Hannun et al., Deep Speech, 2014, for windows
of 20 ms every 10 ms; Shen et al., Tacotron 2, ICASSP 2018, section 2.1: Hann windows of 50 ms every
12.5 ms, mel bands between 125 Hz and 7.6 kHz, magnitudes of at least 0.01 before the logarithm.
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
    """Return (frames, bins) of mean 0 and deviation 1; bins are 50 Hz apart, from 0 Hz on."""
    logs = np.log(np.maximum(magnitudes(samples, rate, SPECTROGRAM_SECONDS)[:, :bins], FLOOR))
    deviation = max(logs.std(), FLOOR)  # that of silence is a rounding error
    return np.asarray((logs - logs.mean()) / deviation, np.float32)


def log_mel(samples: Floats, rate: int, bins: int) -> NDArray[np.float32]:
    """Return (frames, bins): natural logarithms of the magnitudes in mel bands."""
    spectrum = magnitudes(samples, rate, MEL_SECONDS)
    window = round(rate * MEL_SECONDS[0])
    bands = mel_bands(bins, np.arange(spectrum.shape[1]) * rate / window)
    return np.asarray(np.log(np.maximum(spectrum @ bands.T, MEL_FLOOR)), np.float32)


def magnitudes(samples: Floats, rate: int, seconds: tuple[float, float]) -> Floats:
    """Return (frames, window // 2 + 1) of periodic Hann windows inside of the samples.

    Args:
        seconds: Duration of a window, and of a hop.
    """
    window, hop = (round(rate * duration) for duration in seconds)
    hann = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(window) / window)
    frames = np.lib.stride_tricks.sliding_window_view(samples, window)[::hop]
    spectrum: Floats = np.abs(np.fft.rfft(frames * hann, axis=1))
    return spectrum


def mel_bands(bands: int, hertz: Floats) -> Floats:
    """Return (bands, frequencies): triangles of height 1 with corners equally far apart in mel.

    A frequency f has 2595 · log10(1 + f / 700) mel.
    """
    low, high = (2_595 * np.log10(1 + edge / 700) for edge in MEL_HERTZ)
    corners = 700 * (10 ** (np.linspace(low, high, bands + 2) / 2_595) - 1)
    before, middle, after = (corners[first : first + bands, None] for first in range(3))
    rising, falling = (hertz - before) / (middle - before), (after - hertz) / (after - middle)
    triangles: Floats = np.maximum(0, np.minimum(rising, falling))
    return triangles
