"""Rows of requests to a logged model: pictures in base64, and one error line for each other row."""

from __future__ import annotations

import base64
import io
import math

import pandas as pd
import pytest
from PIL import Image

from experiments.workloads import served


def png() -> bytes:
    content = io.BytesIO()
    Image.new("RGB", (8, 8), "navy").save(content, "PNG")
    return content.getvalue()


def answers(*images: object, column: str = "image") -> pd.DataFrame:
    def answer(pictures: list[Image.Image]) -> list[dict[str, str]]:
        return [{"caption": f"{picture.size[0]} pixels"} for picture in pictures]

    rows = pd.DataFrame({column: pd.Series(images, dtype=object)})
    return served.answered(rows, answer, {"caption": ""})


def test_pictures_are_answered_next_to_rows_with_errors() -> None:
    text = base64.b64encode(png()).decode()
    empty = "image: no base64"
    rows = {
        text: "",
        png(): "",
        "===!": "image: empty",
        "abc": empty,
        5: empty,
        True: empty,
        "bm8gcGljdHVyZQ==": "image: not an image",
        None: served.NO_PICTURE,
        math.nan: served.NO_PICTURE,
    }
    result = answers(*rows)
    assert list(result["error"]) == list(rows.values())
    assert list(result["caption"]) == ["8 pixels"] * 2 + [""] * 7


@pytest.mark.parametrize("column", ["picture", "path"])
def test_other_columns_are_no_pictures(column: str) -> None:
    assert list(answers("/etc/passwd", column=column)["error"]) == [served.NO_PICTURE]


def test_failure_of_the_model_is_one_line() -> None:
    def answer(_: list[Image.Image]) -> list[dict[str, str]]:
        raise RuntimeError("secret")

    result = served.answered(pd.DataFrame({"image": [png(), "abc"]}), answer, {"caption": ""})
    failure, broken = result["error"]
    assert failure == "the model failed (RuntimeError); its server's log says more"
    assert broken == "image: no base64"
