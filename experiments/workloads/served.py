"""What every logged model shares: pictures as clients send them, an answer a row, and errors as text a client may read."""

from __future__ import annotations

import base64
import io
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from experiments.contract import CellSpec
from experiments.datasets.images import Image, decoded, opened
from models import frameworks
from tracking import provenance

# What a client may send in each row: a picture's file in base64 (or its bytes, in a program), or a path where the model runs.
# Base64 is decoded here: MLflow's server decodes a `binary` column as a whole, and refuses all rows for one that has no text.
COLUMNS = {"image": "string", "path": "string"}
ERROR = "error"
EXAMPLE_SIDE = 224
# Names the one folder below which a server opens paths that clients send.
FOLDER = "EVENHAND_SERVED_PICTURES"
# MLflow's servers set them: the path of the model that `mlflow models serve` was called with, and "true" before any request.
SERVING = ("__pyfunc_model_path__", "_MLFLOW_IS_IN_SERVING_ENVIRONMENT")
NO_SUCH_PATH = "this server opens no such path; send the picture's bytes in image (base64 in JSON)"


def answered(
    model_input: Any,
    answer: Callable[[list[Image.Image]], Sequence[Mapping[str, Any]]],
    nothing: Mapping[str, Any],
) -> Any:
    """A data frame of pictures → one of answers, row by row, with a column `error`: empty, or why there is no answer.

    answer: of readable pictures, each in RGB. nothing: what stands in the row of another.
    """
    import pandas as pd

    rows = model_input.to_dict("records") or [{}]  # no row has a column that is known
    pictures = [
        _picture({name: value for name, value in row.items() if not _is_missing(value)})
        for row in rows
    ]
    readable = [one for one in pictures if not isinstance(one, str)]
    try:
        found = [{**one, ERROR: ""} for one in (answer(readable) if readable else ())]
    except Exception as error:  # MLflow's server would send the client our stack trace
        logging.getLogger(__name__).exception("a request of %d pictures failed", len(readable))
        found = [
            {
                **nothing,
                ERROR: f"the model failed ({type(error).__name__}); its server's log says more",
            }
        ] * len(readable)
    answers = iter(found)
    told = [{**nothing, ERROR: one} if isinstance(one, str) else next(answers) for one in pictures]
    return pd.DataFrame(told, columns=[*nothing, ERROR])


def _picture(row: Mapping[str, Any]) -> Image.Image | str:
    """What one row sends, or why that is no picture."""
    if "image" in row:
        found = _decoded(row["image"])
        return f"image: {found}" if isinstance(found, str) else found
    path = row.get("path", "")
    if not isinstance(path, str):
        return "path: no text"
    if path:
        allowed = _allowed(path)
        found = opened(allowed) if allowed else NO_SUCH_PATH
        return f"path: {found}" if isinstance(found, str) else found
    return "no picture: send its bytes in image (base64 in JSON), or a path in path where this server allows it"


def _decoded(image: Any) -> Image.Image | str:
    if isinstance(image, str):
        try:
            image = base64.b64decode(image)
        except ValueError:
            return "no base64"
    return decoded(bytes(image)) if isinstance(image, bytes | bytearray) else "no base64"


def _is_missing(value: Any) -> bool:
    """Whether a row has no value in a column: null in JSON, or NaN, where only another row sends that column."""
    import pandas as pd

    return bool(pd.api.types.is_scalar(value) and pd.isna(value))


def _allowed(path: str) -> Path | None:
    """Where a picture may be opened: below the folder that is named for it; anywhere in a program that is no server.

    None says nothing of what exists: whoever may send requests would otherwise learn which files there are, and read pictures.
    """
    folder = os.environ.get(FOLDER, "")
    if not folder:
        return None if any(name in os.environ for name in SERVING) else Path(path)
    root = os.path.realpath(folder)
    asked = os.path.normpath(os.path.join(root, path))
    if (
        not _is_below(asked, root) or "\0" in asked
    ):  # asked first, so that nothing outside is even looked at
        return None
    found = os.path.realpath(asked)
    return Path(found) if _is_below(found, root) else None


def _is_below(path: str, root: str) -> bool:
    return Path(path).is_relative_to(root)


def example(picture: Image.Image) -> dict[str, str]:
    """An example of a request that carries its own picture: a small JPEG in base64."""
    small = picture.convert("RGB")
    small.thumbnail((EXAMPLE_SIDE, EXAMPLE_SIDE))
    content = io.BytesIO()
    small.save(content, "JPEG", quality=85)
    return {"image": base64.b64encode(content.getvalue()).decode("ascii")}


def is_kept(cell: CellSpec) -> bool:
    """Return whether the settings ask for this cell's model."""
    return cell.settings["save_model"] in ("all", "first" if cell.block == 1 else "all")


def name(what: str, framework: str, block: int) -> str:
    """A model's name, by framework and block; a plus, as in `pytorch+compile`, is none of its letters."""
    return f"{what}-{framework.replace('+', '-')}-block{block}"


def requirements(framework: str, *more: str) -> tuple[str, ...]:
    """What the model needs wherever it is loaded, with the versions here."""
    needed = {
        "numpy",
        "pillow",
        "safetensors",
        "pandas",
        *frameworks.described(framework).distributions,
        *more,
    }
    return tuple(
        f"{name}=={version}" for name, version in provenance.versions_of(sorted(needed)).items()
    )
