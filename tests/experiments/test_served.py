"""Requests to a logged model: pictures in base64, and one error line for each other row."""

from __future__ import annotations

import base64
import io
import math

import pandas as pd
import pytest
from PIL import Image

from experiments.workloads import served

NO_BASE64 = "image: no base64"


def png() -> bytes:
    content = io.BytesIO()
    Image.new("RGB", (8, 8), "navy").save(content, "PNG")
    return content.getvalue()


def answer(*images: object, column: str = "image") -> pd.DataFrame:
    def caption(pictures: list[Image.Image]) -> list[dict[str, str]]:
        return [{"caption": f"{picture.size[0]} pixels"} for picture in pictures]

    rows = pd.DataFrame({column: pd.Series(images, dtype=object)})
    return served.answered(rows, caption, {"caption": ""})


def test_pictures_are_answered_next_to_rows_with_errors() -> None:
    errors = {
        base64.b64encode(png()).decode(): "",
        png(): "",
        "===!": "image: empty",
        "abc": NO_BASE64,
        5: NO_BASE64,
        True: NO_BASE64,
        "bm8gcGljdHVyZQ==": "image: not an image",
        None: served.NO_PICTURE,
        math.nan: served.NO_PICTURE,
    }
    answers = answer(*errors)
    assert list(answers["error"]) == list(errors.values())
    assert list(answers["caption"]) == ["8 pixels"] * 2 + [""] * 7


@pytest.mark.parametrize("column", ["picture", "path"])
def test_other_columns_are_no_pictures(column: str) -> None:
    assert list(answer("/etc/passwd", column=column)["error"]) == [served.NO_PICTURE]


def test_failure_of_the_model_is_one_line() -> None:
    def fail(_: list[Image.Image]) -> list[dict[str, str]]:
        raise RuntimeError("secret")

    answers = served.answered(pd.DataFrame({"image": [png(), "abc"]}), fail, {"caption": ""})
    failure, broken = answers["error"]
    assert "RuntimeError" in failure
    assert "secret" not in failure
    assert broken == NO_BASE64
