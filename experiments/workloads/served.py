"""What every logged model shares: pictures as clients send them, an answer a row, and errors as text a client may read."""

from __future__ import annotations

import base64
import io
import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from experiments.datasets.images import Image, decoded, opened
from models import frameworks
from tracking import provenance

# What a client may send in each row: the bytes of a picture's file (base64 in JSON), or its path on the server.
COLUMNS = {"image": "binary", "path": "string"}
ERROR = "error"
EXAMPLE_SIDE = 224


def answered(
    model_input: Any, answer: Callable[[list[Image.Image]], Sequence[Mapping[str, Any]]], nothing: Mapping[str, Any]
) -> Any:
    """A data frame of pictures → one of answers, row by row, with a column `error`: empty, or why there is no answer.

    answer: of readable pictures, each in RGB. nothing: what stands in the row of another.
    """
    import pandas as pd

    rows = model_input.to_dict("records") or [{}]  # no row has a column that is known
    pictures = [_picture(row) for row in rows]
    readable = [one for one in pictures if not isinstance(one, str)]
    try:
        found = [{**one, ERROR: ""} for one in (answer(readable) if readable else ())]
    except Exception as error:  # MLflow's server would send the client our stack trace
        logging.getLogger(__name__).exception("a request of %d pictures failed", len(readable))
        found = [{**nothing, ERROR: f"the model failed ({type(error).__name__}); its server's log says more"}] * len(readable)
    answers = iter(found)
    told = [{**nothing, ERROR: one} if isinstance(one, str) else next(answers) for one in pictures]
    return pd.DataFrame(told, columns=[*nothing, ERROR])


def _picture(row: Mapping[str, Any]) -> Image.Image | str:
    """What one row sends, or why that is no picture."""
    image, path = row.get("image"), row.get("path")
    if isinstance(image, bytes | bytearray):
        found = decoded(bytes(image))
        return f"image: {found}" if isinstance(found, str) else found
    if isinstance(path, str) and path:
        found = opened(Path(path))
        return f"path: {found}" if isinstance(found, str) else found
    return "no picture: send its bytes in image (base64 in JSON), or its path on the server in path"


def example(picture: Image.Image) -> dict[str, str]:
    """An example of a request that carries its own picture: a small JPEG in base64."""
    small = picture.convert("RGB")
    small.thumbnail((EXAMPLE_SIDE, EXAMPLE_SIDE))
    content = io.BytesIO()
    small.save(content, "JPEG", quality=85)
    return {"image": base64.b64encode(content.getvalue()).decode("ascii")}


def name(what: str, framework: str, block: int) -> str:
    """A model's name, by framework and block; a plus, as in `pytorch+compile`, is none of its letters."""
    return f"{what}-{framework.replace('+', '-')}-block{block}"


def requirements(framework: str, *more: str) -> tuple[str, ...]:
    """What the model needs wherever it is loaded, with the versions here."""
    needed = {"numpy", "pillow", "safetensors", "pandas", *frameworks.described(framework).distributions, *more}
    return tuple(f"{name}=={version}" for name, version in provenance.versions_of(sorted(needed)).items())
