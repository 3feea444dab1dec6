"""Small folders of recorded speech, in the layouts of LJSpeech and LibriSpeech."""

from __future__ import annotations

import wave
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

TEXTS = (
    "Hello, world",
    "it's ten o'clock",
    "a café",
    "who is there?",
    "nobody",
    "then who spoke",
    "the wind",
    "ah",
)


def write_wav(
    path: Path, samples: np.ndarray, rate: int = 16_000, *, width: int = 2, channels: int = 1
) -> Path:
    """Write integers of `width` bytes, little-endian; samples: (n,) or (n, channels)."""
    path.parent.mkdir(parents=True, exist_ok=True)
    wide = np.ascontiguousarray(samples, "<i8").view(np.uint8).reshape(-1, 8)
    with wave.open(str(path), "wb") as file:
        file.setnchannels(channels)
        file.setsampwidth(width)
        file.setframerate(rate)
        file.writeframes(wide[:, :width].tobytes())
    return path


def tone(hertz: float, seconds: float, rate: int = 16_000) -> np.ndarray:
    return np.round(
        20_000 * np.sin(2 * np.pi * hertz * np.arange(round(seconds * rate)) / rate)
    ).astype(np.int64)


def noise(seed: int, rate: int = 16_000) -> np.ndarray:
    """Return noise of 0.5 to 0.85 s, different for each seed."""
    rng = np.random.default_rng(seed)
    return rng.integers(-9_000, 9_000, round((0.5 + 0.05 * (seed % 8)) * rate))


def ljspeech(folder: Path, texts: Sequence[str] = TEXTS, rate: int = 16_000) -> Path:
    """Write rows of three fields, the last of which is spoken."""
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(len(texts)):
        write_wav(folder / "wavs" / f"LJ-{number:04}.wav", noise(number, rate), rate)
    rows = [f"LJ-{number:04}|as it is printed|{text}\n" for number, text in enumerate(texts)]
    (folder / "metadata.csv").write_text("".join(rows), encoding="utf-8")
    return folder


def librispeech(folder: Path, texts: Sequence[str] = TEXTS) -> Path:
    """Write two chapters, each with a transcript next to its recordings."""
    for chapter in range(2):
        chapter_folder = folder / "84" / f"12{chapter}"
        numbers = range(chapter, len(texts), 2)
        for number in numbers:
            write_wav(chapter_folder / f"84-12{chapter}-{number:04}.wav", noise(number))
        rows = [f"84-12{chapter}-{number:04} {texts[number].upper()}\n" for number in numbers]
        (chapter_folder / f"84-12{chapter}.trans.txt").write_text("".join(rows), encoding="utf-8")
    return folder


LAYOUTS: dict[str, Callable[[Path], Path]] = {"LJSpeech": ljspeech, "LibriSpeech": librispeech}
