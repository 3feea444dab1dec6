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
    said,
    tone,
    write_wav,
)
from tracking.errors import UsageError

LETTERS = "_ 'abcdefghijklmnopqrstuvwxyz"
SENTENCES, PAIRS = (
    DataRequirements("sentences", {"vocabulary": 9}, longest=7),
    DataRequirements("sentence_pairs", {"vocabulary": 9}, longest=5),
)
HEARD, SPOKEN = (
    DataRequirements("spectrograms", {"bins": 33}),
    DataRequirements("mel_spectrograms", {"bins": 6, "characters": 20}),
)


def prepared(source: Path, reads: DataRequirements, cache: Path, **options: bool) -> Sequences:
    options = {"any_length": False, **options}
    return data.prepare(
        str(source), reads, seed=0, cache=cache, progress=lambda *_: None, **options
    )


def examples(found: Sequences) -> list[list[list[int]]]:
    """Every example's parts, as lists."""
    count, parts = found.lengths.shape
    return [
        [
            found.padded(
                part, np.array([row]), found.lengths[[row], part], found.lengths[row, part]
            )[0].tolist()
            for part in range(parts)
        ]
        for row in range(count)
    ]


# ---- features


def magnitude(samples: np.ndarray, start: int, window: int, frequency: int) -> float:
    """One value of a short-time Fourier transform by its definition, sample by sample."""
    real = imaginary = 0.0
    for n in range(window):
        weighted = samples[start + n] * math.sin(math.pi * n / window) ** 2  # Hann
        real += weighted * math.cos(2 * math.pi * frequency * n / window)
        imaginary -= weighted * math.sin(2 * math.pi * frequency * n / window)
    return math.hypot(real, imaginary)


def mel_corners(bands: int) -> list[float]:
    """Hertz, equally far apart in mel from 125 Hz to 7.6 kHz."""
    low, high = (
        1_127 * math.log(1 + hertz / 700) for hertz in (125, 7_600)
    )  # 1127 · ln is 2595 · log10
    step = (high - low) / (bands + 1)
    return [700 * (math.exp((low + number * step) / 1_127) - 1) for number in range(bands + 2)]


def test_a_spectrogram_is_the_fourier_transform_of_its_definition() -> None:
    rng, rate = np.random.default_rng(1), 16_000
    samples = rng.uniform(-1, 1, 700)
    found = features.log_spectrogram(samples, rate, 161)
    assert found.shape == (3, 161)  # windows of 320 samples begin at 0, 160 and 320
    assert found.dtype == np.float32
    expected = np.array(
        [
            [math.log(magnitude(samples, start, 320, k)) for k in range(161)]
            for start in (0, 160, 320)
        ]
    )
    expected = (expected - expected.mean()) / math.sqrt(((expected - expected.mean()) ** 2).mean())
    np.testing.assert_allclose(
        found, expected, atol=2e-6
    )  # float32 keeps seven digits of values up to ten


def test_a_mel_spectrogram_is_the_sum_over_triangles() -> None:
    rng, rate, bands = np.random.default_rng(2), 16_000, 20
    samples = rng.uniform(-1, 1, 1_000)
    found = features.log_mel(samples, rate, bands)
    assert found.shape == (2, bands)  # windows of 800 samples begin at 0 and 200
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
            assert found[frame, band] == pytest.approx(math.log(max(total, 0.01)), abs=1e-3)


# ---- recordings


@pytest.mark.parametrize(("width", "most"), [(2, 2**15), (3, 2**23), (4, 2**31)])
def test_samples_are_read_as_they_were_written(width: int, most: int, tmp_path: Path) -> None:
    samples = np.random.default_rng(3).integers(-most, most, 4_000)
    rate, found = speech.Utterance(
        write_wav(tmp_path / "a.wav", samples, 22_050, width=width), "", ""
    ).samples()
    assert rate == 22_050
    np.testing.assert_array_equal(found, samples / most)


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1_001])


def _of_eight_bit_floats(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[20:22], content[34:36] = struct.pack("<H", 3), struct.pack("<H", 8)
    path.write_bytes(content)


def _without_sound(path: Path) -> None:
    path.write_bytes(path.read_bytes().replace(b"data", b"LIST"))


def _promising(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[4:8] = content[40:44] = struct.pack("<I", 2**32 - 9)
    path.write_bytes(content)


BROKEN: dict[str, tuple[Callable[[Path], object], str]] = {
    "cut off": (_cut, "is no WAV file of 16, 24 or 32 bits PCM: "),
    "8-bit floats": (_of_eight_bit_floats, "is no WAV file of 16, 24 or 32 bits PCM: "),
    "no sound": (_without_sound, "it has no sound in it"),
    "gigabytes promised": (_promising, "it is cut off"),
    "empty": (lambda path: path.write_bytes(b""), "is no WAV file"),
    "another file": (lambda path: path.write_bytes(b"ID3" + bytes(400)), "is no WAV file"),
    "8 bits": (
        lambda path: write_wav(path, said(0) // 256 + 128, width=1),
        "samples of uint8; make it 16 bits PCM",
    ),
    "stereo": (
        lambda path: write_wav(path, np.stack([said(0)] * 2, 1), channels=2),
        "has 2 channels; make it mono",
    ),
    "telephone": (
        lambda path: write_wav(path, said(0), 8_000),
        "has 8,000 samples a second; between 16,000 and 48,000 are read",
    ),
    "a click": (
        lambda path: write_wav(path, said(0)[:800]),
        "lasts 0.05 s; an utterance lasts between 0.1 and 60 s",
    ),
}


@pytest.mark.parametrize("what", BROKEN)
def test_unreadable_recordings_are_refused(what: str, tmp_path: Path) -> None:
    folder, (spoil, messages) = ljspeech(tmp_path / "speech"), BROKEN[what]
    spoil(folder / "wavs" / "LJ-0003.wav")
    for reads in (HEARD, SPOKEN):
        refused(folder, reads, tmp_path, "LJ-0003.wav: ", messages)


def refused(source: Path, reads: DataRequirements, cache: Path, *messages: str) -> None:
    with pytest.raises(UsageError) as caught:
        prepared(source, reads, cache)
    message = str(caught.value)
    assert message.isprintable()
    assert all(fragment in message for fragment in messages), message
    assert not list((cache / "sequences").glob("*/about.json")), "nothing of it is kept"


# ---- layouts of speech


@pytest.mark.parametrize("layout", LAYOUTS)
def test_speech_is_read_with_what_is_said_in_it(layout: str, tmp_path: Path) -> None:
    folder = LAYOUTS[layout](tmp_path / "speech")
    found = prepared(folder, HEARD, tmp_path)
    order = range(8) if layout == "LJSpeech" else [*range(0, 8, 2), *range(1, 8, 2)]
    letters = [
        "hello world",
        "it's ten o'clock",
        "a cafe",
        "who is there",
        "nobody",
        "then who spoke",
        "the wind",
        "ah",
    ]
    assert found.total == 8
    for row, number in enumerate(order):
        heard, said_ = examples(found)[row]
        assert "".join(LETTERS[symbol] for symbol in said_) == letters[number]
        expected = features.log_spectrogram(said(number) / 2**15, 16_000, 33)
        np.testing.assert_array_equal(np.array(heard, np.float32), expected)
        assert len(heard) == 1 + (len(said(number)) - 320) // 160


@pytest.mark.parametrize(
    ("row", "messages"),
    [
        ("LJ-9999|nobody spoke", "metadata.csv, line 9: the recording "),
        ("../secret|words", "line 9: the name '../secret' has a /"),
        ("LJ-0001", "line 9: is no row"),
        ("LJ-0001|a|b|c", "line 9: is no row"),
        ("LJ-0001|", "line 9: is no row"),
    ],
)
def test_malformed_transcripts_are_refused(row: str, messages: str, tmp_path: Path) -> None:
    folder = ljspeech(tmp_path / "speech")
    with (folder / "metadata.csv").open("a") as file:
        file.write(row + "\n")
    refused(folder, HEARD, tmp_path, messages)


def test_transcript_must_fit_its_recording(tmp_path: Path) -> None:
    # 0.5 s are 49 frames, of which the convolutions leave 25: eleven letters a need a blank between each two of them
    fits = ljspeech(tmp_path / "fits", ["a" * 13, *TEXTS[1:]])
    assert prepared(fits, HEARD, tmp_path / "fragment").total == 8
    refused(
        ljspeech(tmp_path / "long", ["a" * 14, *TEXTS[1:]]),
        HEARD,
        tmp_path,
        "line 1: 14 letters need 27 frames, and LJ-0000.wav has 25",
    )
    refused(
        ljspeech(tmp_path / "greek", ["αβγ", *TEXTS[1:]]),
        HEARD,
        tmp_path,
        "line 1: has none of the letters a to z",
    )


# ---- sentences


def text(path: Path, content: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content, encoding="utf-8")
    return path


def test_sentences_are_words_between_marks(tmp_path: Path) -> None:
    file = text(tmp_path / "corpus.txt", "The dog barks.\n\nthe DOG sleeps!\r\n \nThe end.")
    found = prepared(file, SENTENCES, tmp_path)
    # 4 to 8: the (3), "." (2), dog (2), then the first of those that occur once: ! and barks; the others are 1
    expected = [[2, 4, 6, 8, 5, 3], [2, 4, 6, 1, 7, 3], [2, 4, 1, 5, 3]]
    assert [example for (example,) in examples(found)] == expected
    assert found.total == 3
    within = text(tmp_path / "folder" / "lines.txt", file.read_text())
    assert prepared(within.parent, SENTENCES, tmp_path).digest == found.digest


def test_pairs_of_sentences_share_a_vocabulary_and_have_an_end(tmp_path: Path) -> None:
    tabbed = text(tmp_path / "deu.txt", "Go.\tGeh.\tsomebody's, CC-BY\n\nGo go.\tGeh doch.\n")
    found = prepared(tabbed, PAIRS, tmp_path)
    # 4 to 8: "." (4), go (3), geh (2), doch
    assert examples(found) == [[[5, 4, 2], [6, 4, 2]], [[5, 5, 4, 2], [6, 7, 4, 2]]]
    text(tmp_path / "two" / "train.en", "Go.\nGo go.\n")
    text(tmp_path / "two" / "train.de", "Geh.\nGeh doch.\n")
    turned = prepared(tmp_path / "two", PAIRS, tmp_path)  # by their names: from German
    assert examples(turned) == [[b, a] for a, b in examples(found)]


@pytest.mark.parametrize(
    ("content", "messages"),
    [
        (
            "short\none two three four five six\n",
            ", line 2: has 8 tokens with its marks; the network takes at most 7: shorten it",
        ),
        ("one\ttwo\n", ", line 1: has a tab; a line is one sentence"),
        ("", ": is empty"),
        (" \n\n", ": is empty"),
    ],
)
def test_files_without_sentences_are_refused(content: str, messages: str, tmp_path: Path) -> None:
    refused(text(tmp_path / "corpus.txt", content), SENTENCES, tmp_path, "corpus.txt" + messages)


@pytest.mark.parametrize(
    ("files", "messages"),
    [
        ({"pairs.tsv": "one\ttwo\nthree\n"}, "pairs.tsv, line 2: has no tab"),
        ({"pairs.tsv": "one\t\n"}, "pairs.tsv, line 1: a sentence has no translation"),
        (
            {"pairs.tsv": "a b c d\ta\na b c d e\ta\n"},
            "pairs.tsv, line 2: has 6 tokens with its marks",
        ),
        ({"pairs.tsv": ""}, "is empty"),
        (
            {"train.en": "one\ntwo\n", "train.de": "eins\n"},
            "train.de: ends before line 2, which train.en has",
        ),
        (
            {"train.en": "one\n", "train.de": "eins\n", "train.fr": "un\n"},
            "looked for a text file of sentence, tab, translation",
        ),
        ({"train.en": "one\n"}, "looked for a text file of sentence, tab, translation"),
    ],
)
def test_files_without_pairs_are_refused(
    files: dict[str, str], messages: str, tmp_path: Path
) -> None:
    for name, content in files.items():
        text(tmp_path / "pairs" / name, content)
    refused(tmp_path / "pairs", PAIRS, tmp_path, messages)


# ---- the cache


def test_data_are_prepared_once_and_known_by_their_content(tmp_path: Path) -> None:
    folder, messages = ljspeech(tmp_path / "speech"), list[str]()

    def read(path: Path) -> Sequences:
        messages.clear()
        options = {"any_length": False, "seed": 0, "cache": tmp_path}
        return data.prepare(
            str(path), HEARD, progress=lambda stage, *_: messages.append(stage), **options
        )  # type: ignore[arg-type]

    first = read(folder)
    assert messages == ["reading speech"] * 8
    assert read(folder).digest == first.digest
    assert not messages, "the second time nothing is made"
    copy = shutil.copytree(folder, tmp_path / "copy", copy_function=shutil.copyfile)  # other times
    assert read(copy).digest == first.digest
    write_wav(folder / "wavs" / "LJ-0000.wav", tone(440, 0.5))
    assert read(folder).digest != first.digest
    ljspeech(folder, ["Hello, word", *TEXTS[1:]])
    assert read(folder).digest != first.digest
