"""Sentences and speech from small files in the real formats, and refused files."""

from __future__ import annotations

import math
import shutil
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from experiments.datasets.sequences import data, features, speech
from experiments.datasets.sequences.data import Sequences
from models.contract import DataRequirements
from tests.experiments.datasets.recordings import (
    LAYOUTS,
    TEXTS,
    ljspeech,
    noise,
    tone,
    write_wav,
)
from tracking.errors import ErrorCode, UsageError

LETTERS = "_ 'abcdefghijklmnopqrstuvwxyz"
SENTENCES = DataRequirements("sentences", {"vocabulary": 9}, longest=7)
PAIRS = DataRequirements("sentence_pairs", {"vocabulary": 9}, longest=5)
HEARD = DataRequirements("spectrograms", {"bins": 33})
SPOKEN = DataRequirements("mel_spectrograms", {"bins": 6, "characters": 20})


def prepared(source: Path, reads: DataRequirements, cache: Path) -> Sequences:
    options = {"any_length": False, "seed": 0, "cache": cache}
    return data.prepare(str(source), reads, progress=lambda *_: None, **options)  # type: ignore[arg-type]


def examples(sequences: Sequences) -> list[list[list[int]]]:
    """Return the parts of every example as lists."""
    rows: list[list[list[int]]] = []
    for row, lengths in enumerate(sequences.lengths):
        index = np.array([row])
        rows.append(
            [
                sequences.padded(part, index, lengths[[part]], lengths[part])[0].tolist()
                for part in range(len(lengths))
            ]
        )
    return rows


def refused(
    source: Path, reads: DataRequirements, cache: Path, code: ErrorCode, *values: str
) -> None:
    with pytest.raises(UsageError) as error:
        prepared(source, reads, cache)
    text = str(error.value)
    assert (error.value.code, text.isprintable()) == (code, True), text
    assert all(value in text for value in values), text
    assert not list((cache / "sequences").glob("*/about.json"))


# ---- features


def magnitude(samples: np.ndarray, start: int, window: int, frequency: int) -> float:
    """Return one value of a short-time Fourier transform by its definition."""
    real = imaginary = 0.0
    for n in range(window):
        weighted = samples[start + n] * math.sin(math.pi * n / window) ** 2  # Hann
        real += weighted * math.cos(2 * math.pi * frequency * n / window)
        imaginary -= weighted * math.sin(2 * math.pi * frequency * n / window)
    return math.hypot(real, imaginary)


def mel_corners(bands: int) -> list[float]:
    """Return frequencies, equally far apart in mel from 125 Hz to 7.6 kHz."""
    # 1127 · ln is 2595 · log10
    low, high = (1_127 * math.log(1 + hertz / 700) for hertz in (125, 7_600))
    step = (high - low) / (bands + 1)
    return [700 * (math.exp((low + number * step) / 1_127) - 1) for number in range(bands + 2)]


def test_spectrogram_is_the_fourier_transform_of_its_definition() -> None:
    rng, rate = np.random.default_rng(1), 16_000
    samples = rng.uniform(-1, 1, 700)
    spectrogram = features.log_spectrogram(samples, rate, 161)
    assert spectrogram.dtype == np.float32
    starts = (0, 160, 320)  # of windows of 320 samples
    rows = [[math.log(magnitude(samples, start, 320, k)) for k in range(161)] for start in starts]
    expected = (np.array(rows) - np.mean(rows)) / np.std(rows)
    # float32 has seven digits of values up to ten
    np.testing.assert_allclose(spectrogram, expected, atol=2e-6)


def test_mel_spectrogram_is_the_sum_over_triangles() -> None:
    rng, rate, bands = np.random.default_rng(2), 16_000, 20
    samples = rng.uniform(-1, 1, 1_000)
    spectrogram = features.log_mel(samples, rate, bands)
    assert spectrogram.shape == (2, bands)  # windows of 800 samples begin at 0 and 200
    corners = mel_corners(bands)
    for frame, start in enumerate((0, 200)):
        spectrum = [magnitude(samples, start, 800, k) for k in range(401)]
        for band in range(bands):
            low, middle, high = corners[band : band + 3]
            total = 0.0
            for k, value in enumerate(spectrum):
                hertz = k * rate / 800
                if low < hertz <= middle:
                    total += value * (hertz - low) / (middle - low)
                elif middle < hertz < high:
                    total += value * (high - hertz) / (high - middle)
            # the constant 1127 is rounded: corners move by 1e-5 of themselves
            assert spectrogram[frame, band] == pytest.approx(math.log(max(total, 0.01)), abs=1e-3)


# ---- recordings


@pytest.mark.parametrize(("width", "most"), [(2, 2**15), (3, 2**23), (4, 2**31)])
def test_samples_are_read_as_they_were_written(width: int, most: int, tmp_path: Path) -> None:
    written = np.random.default_rng(3).integers(-most, most, 4_000)
    path = write_wav(tmp_path / "a.wav", written, 22_050, width=width)
    rate, samples = speech.Utterance(path, "", "").samples()
    assert rate == 22_050
    np.testing.assert_array_equal(samples, written / most)


def _promising(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[4:8] = content[40:44] = struct.pack("<I", 2**32 - 9)
    path.write_bytes(content)


BROKEN: dict[str, tuple[Callable[[Path], object], str]] = {
    "cut off": (lambda path: path.write_bytes(path.read_bytes()[:-1_001]), ""),
    "no sound": (
        lambda path: path.write_bytes(path.read_bytes().replace(b"data", b"LIST")),
        "",
    ),
    "gigabytes promised": (_promising, ""),
    "empty": (lambda path: path.write_bytes(b""), ""),
    "another file": (lambda path: path.write_bytes(b"ID3" + bytes(400)), ""),
    "8 bits": (lambda path: write_wav(path, noise(0) // 256 + 128, width=1), "uint8"),
    "stereo": (lambda path: write_wav(path, np.stack([noise(0)] * 2, 1), channels=2), "2 channels"),
    "telephone": (lambda path: write_wav(path, noise(0), 8_000), "8,000"),
    "a click": (lambda path: write_wav(path, noise(0)[:800]), "0.05 s"),
}


@pytest.mark.parametrize("damage", BROKEN)
def test_unreadable_recordings_are_refused(damage: str, tmp_path: Path) -> None:
    folder, (spoil, value) = ljspeech(tmp_path / "speech"), BROKEN[damage]
    spoil(folder / "wavs" / "LJ-0003.wav")
    for reads in (HEARD, SPOKEN):
        refused(folder, reads, tmp_path, ErrorCode.UNREADABLE, "LJ-0003.wav", value)


# ---- layouts of speech


@pytest.mark.parametrize("layout", LAYOUTS)
def test_speech_is_read_with_its_text(layout: str, tmp_path: Path) -> None:
    sequences = prepared(LAYOUTS[layout](tmp_path / "speech"), HEARD, tmp_path)
    order = range(8) if layout == "LJSpeech" else [*range(0, 8, 2), *range(1, 8, 2)]
    texts = ["hello world", "it's ten o'clock", "a cafe", "who is there"]
    texts += ["nobody", "then who spoke", "the wind", "ah"]
    assert sequences.total == 8
    for number, (frames, symbols) in zip(order, examples(sequences), strict=True):
        assert "".join(LETTERS[symbol] for symbol in symbols) == texts[number]
        expected = features.log_spectrogram(noise(number) / 2**15, 16_000, 33)
        np.testing.assert_array_equal(np.array(frames, np.float32), expected)
        assert len(frames) == 1 + (len(noise(number)) - 320) // 160


@pytest.mark.parametrize(
    ("row", "code"),
    [
        ("LJ-9999|nobody spoke", ErrorCode.NOT_FOUND),
        ("../secret|words", ErrorCode.UNREADABLE),
        ("LJ-0001", ErrorCode.UNREADABLE),
        ("LJ-0001|a|b|c", ErrorCode.UNREADABLE),
        ("LJ-0001|", ErrorCode.UNREADABLE),
    ],
)
def test_malformed_transcripts_are_refused(row: str, code: ErrorCode, tmp_path: Path) -> None:
    folder = ljspeech(tmp_path / "speech")
    with (folder / "metadata.csv").open("a") as file:
        file.write(row + "\n")
    refused(folder, HEARD, tmp_path, code, "metadata.csv, line 9")


def test_transcript_must_fit_its_recording(tmp_path: Path) -> None:
    # 0.5 s are 49 frames, of which the convolutions leave 25; a blank is between two equal letters.
    fits = ljspeech(tmp_path / "fits", ["a" * 13, *TEXTS[1:]])
    assert prepared(fits, HEARD, tmp_path / "cache").total == 8
    for text, *values in (("a" * 14, "14 letters", "27 frames", "25"), ("αβγ", "0 letters")):
        folder = ljspeech(tmp_path / text, [text, *TEXTS[1:]])
        refused(folder, HEARD, tmp_path, ErrorCode.CONFLICT, "line 1", *values)


# ---- sentences


def write_text(path: Path, content: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content, encoding="utf-8")
    return path


def test_sentences_are_words_between_marks(tmp_path: Path) -> None:
    content = "The dog barks.\n\nthe DOG sleeps!\r\n \nThe end."
    file = write_text(tmp_path / "corpus.txt", content)
    sequences = prepared(file, SENTENCES, tmp_path)
    # 4 to 8: the (3), "." (2), dog (2), then the first words that occur once; others are 1
    expected = [[2, 4, 6, 8, 5, 3], [2, 4, 6, 1, 7, 3], [2, 4, 1, 5, 3]]
    assert [example for (example,) in examples(sequences)] == expected
    assert sequences.total == 3
    inside = write_text(tmp_path / "folder" / "lines.txt", file.read_text())
    assert prepared(inside.parent, SENTENCES, tmp_path).digest == sequences.digest


def test_pairs_of_sentences_share_a_vocabulary_and_have_an_end(tmp_path: Path) -> None:
    content = "Go.\tGeh.\tsomebody's, CC-BY\n\nGo go.\tGeh doch.\n"
    pairs = examples(prepared(write_text(tmp_path / "deu.txt", content), PAIRS, tmp_path))
    # 4 to 8: "." (4), go (3), geh (2), doch
    assert pairs == [[[5, 4, 2], [6, 4, 2]], [[5, 5, 4, 2], [6, 7, 4, 2]]]
    write_text(tmp_path / "two" / "train.en", "Go.\nGo go.\n")
    write_text(tmp_path / "two" / "train.de", "Geh.\nGeh doch.\n")
    turned = prepared(tmp_path / "two", PAIRS, tmp_path)  # by their names: from German
    assert examples(turned) == [[second, first] for first, second in pairs]


@pytest.mark.parametrize(
    ("content", "code", "value"),
    [
        ("short\none two three four five six\n", ErrorCode.TOO_LARGE, "line 2"),
        ("one\ttwo\n", ErrorCode.INVALID_VALUE, "line 1"),
        ("", ErrorCode.TOO_FEW, ""),
        (" \n\n", ErrorCode.TOO_FEW, ""),
    ],
)
def test_files_without_sentences_are_refused(
    content: str, code: ErrorCode, value: str, tmp_path: Path
) -> None:
    path = write_text(tmp_path / "corpus.txt", content)
    refused(path, SENTENCES, tmp_path, code, "corpus.txt", value)


@pytest.mark.parametrize(
    ("files", "code", "values"),
    [
        ({"pairs.tsv": "one\ttwo\nthree\n"}, ErrorCode.MISSING_VALUE, ["pairs.tsv, line 2"]),
        ({"pairs.tsv": "one\t\n"}, ErrorCode.MISSING_VALUE, ["pairs.tsv, line 1"]),
        (
            {"pairs.tsv": "a b c d\ta\na b c d e\ta\n"},
            ErrorCode.TOO_LARGE,
            ["line 2", "6 tokens"],
        ),
        ({"pairs.tsv": ""}, ErrorCode.TOO_FEW, []),
        (
            {"train.en": "one\ntwo\n", "train.de": "eins\n"},
            ErrorCode.MISSING_VALUE,
            ["train.de, line 2"],
        ),
        ({"train.en": "a\n", "train.de": "b\n", "train.fr": "c\n"}, ErrorCode.NOT_FOUND, []),
        ({"train.en": "one\n"}, ErrorCode.NOT_FOUND, ["pairs.tsv"]),
    ],
)
def test_files_without_pairs_are_refused(
    files: dict[str, str], code: ErrorCode, values: list[str], tmp_path: Path
) -> None:
    for name, content in files.items():
        write_text(tmp_path / "pairs" / name, content)
    refused(tmp_path / "pairs", PAIRS, tmp_path, code, *values)


# ---- the cache


def test_data_are_prepared_once_by_their_content(tmp_path: Path) -> None:
    folder = ljspeech(tmp_path / "speech")
    first = prepared(folder, HEARD, tmp_path)
    written = (first.folder / "about.json").stat().st_mtime_ns
    again = prepared(folder, HEARD, tmp_path)
    assert (again.folder / "about.json").stat().st_mtime_ns == written
    copy = shutil.copytree(folder, tmp_path / "copy", copy_function=shutil.copyfile)  # other times
    assert prepared(copy, HEARD, tmp_path).digest == first.digest
    write_wav(folder / "wavs" / "LJ-0000.wav", tone(440, 0.5))
    assert prepared(folder, HEARD, tmp_path).digest != first.digest
    ljspeech(folder, ["Hello, word", *TEXTS[1:]])
    assert prepared(folder, HEARD, tmp_path).digest != first.digest
