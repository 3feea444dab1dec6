import pytest

from experiments.datasets.tokens import END, START, Vocabulary, words


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("A Dog runs .", ["dog", "runs"]),
        (
            "a man in a t-shirt",
            ["man", "in", "t", "shirt"],
        ),  # one-letter words are dropped before punctuation splits
        ("the dog's ball", ["the", "dog's", "ball"]),
        ('say "hello, world"!', ["say", "hello", "world"]),
        ("tab\tand\nnewline", ["tab", "and", "newline"]),
        ("startseq is endseq no word", ["is", "no", "word"]),
        ("-- , . a", []),
        ("café déjà", ["café", "déjà"]),
    ],
)
def test_captions_are_split_into_words(text: str, expected: list[str]) -> None:
    assert words(text) == expected


def test_vocabulary_is_ordered_and_decodes_to_the_end_mark() -> None:
    """The order is by falling frequency, then alphabetical."""
    vocabulary = Vocabulary.from_counts({"dog": 3, "cat": 3, "runs": 5, START: 4, END: 4})
    assert vocabulary.entries == ("runs", END, START, "cat", "dog")
    assert vocabulary.size == 6  # the five entries and padding
    assert vocabulary.decode([vocabulary.start, 5, 1, vocabulary.end, 4, 0, 0]) == "dog runs"
