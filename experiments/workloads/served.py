"""Parts that logged models share: pictures in requests, an answer a row, errors as text."""

from __future__ import annotations

import base64
import io
import json
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from experiments.contract import CellSpec
from experiments.datasets.images import Image, decode_picture
from models import frameworks
from models.contract import Array, Framework
from models.weights import read_safetensors, write_safetensors
from tracking import provenance
from tracking.records import ModelSaved

# A row has a picture's file in base64, or its bytes in a program. Base64 is decoded here: MLflow's
# server decodes a `binary` column as a whole, and refuses all rows for one that has no text.
COLUMNS = {"image": "string"}
ERROR = "error"
EXAMPLE_SIDE = 224
NO_PICTURE = "no picture: send its bytes in image (base64 in JSON)"
# Distributions that models need besides those of their framework.
REQUIRED = ("numpy", "pandas", "pillow", "safetensors")
WEIGHTS = "weights.safetensors"


def answered(
    model_input: Any,
    answer: Callable[[list[Image.Image]], Sequence[Mapping[str, Any]]],
    nothing: Mapping[str, Any],
) -> Any:
    """Answer a data frame of pictures row by row.

    Args:
        model_input: Data frame with a column `image`.
        answer: Answers readable pictures, each in RGB.
        nothing: Answer to a picture that cannot be read.

    Returns:
        Data frame of answers with a column `error`, which is empty or has the reason.
    """
    import pandas as pd

    rows = model_input.to_dict("records") or [{}]  # rows without a known column
    pictures = [_picture(row.get("image")) for row in rows]
    readable = [picture for picture in pictures if not isinstance(picture, str)]
    try:
        results = [{**result, ERROR: ""} for result in (answer(readable) if readable else ())]
    except Exception as error:  # MLflow's server would send the client our stack trace
        logging.getLogger(__name__).exception("a request of %d pictures failed", len(readable))
        reason = f"the model failed ({type(error).__name__}); its server's log says more"
        results = [{**nothing, ERROR: reason}] * len(readable)
    remaining = iter(results)
    answers = [
        {**nothing, ERROR: picture} if isinstance(picture, str) else next(remaining)
        for picture in pictures
    ]
    return pd.DataFrame(answers, columns=[*nothing, ERROR])


def _picture(image: Any) -> Image.Image | str:
    """Return the picture of a row, or the reason why there is none.

    A row without a picture has None, or NaN where only another row sends one.
    """
    if image is None or isinstance(image, float):
        return NO_PICTURE
    if isinstance(image, str):
        try:
            image = base64.b64decode(image)
        except ValueError:
            return "image: no base64"
    if not isinstance(image, bytes | bytearray):
        return "image: no base64"
    picture = decode_picture(bytes(image))
    return f"image: {picture}" if isinstance(picture, str) else picture


def example(picture: Image.Image) -> dict[str, str]:
    """Return a request with a small JPEG of a picture in base64."""
    small = picture.convert("RGB")
    small.thumbnail((EXAMPLE_SIDE, EXAMPLE_SIDE))
    content = io.BytesIO()
    small.save(content, "JPEG", quality=85)
    return {"image": base64.b64encode(content.getvalue()).decode("ascii")}


def is_kept(cell: CellSpec) -> bool:
    """Return whether the settings ask for this cell's model."""
    mode = cell.settings["save_model"]
    return mode == "all" or (mode == "first" and cell.block == 1)


def name(cell: CellSpec, title: str) -> str:
    """Return a model's name in MLflow, in which the plus of a variant is not allowed."""
    day = time.strftime("%Y-%m-%d")
    parts = (cell.study, cell.settings["preset"], title, cell.framework.replace("+", "-"), day)
    return "-".join(dict.fromkeys(parts))


def save(
    cell: CellSpec,
    framework: Framework,
    network: Any,
    loader: str,
    *,
    title: str,
    description: Mapping[str, Any],
    inputs: tuple[Array, ...],
    request: Mapping[str, str],
    answers: Mapping[str, str],
    text: str,
    packages: Sequence[str] = (),
) -> ModelSaved:
    """Write a model as weights and JSON, and return the record that logs it in MLflow.

    Args:
        cell: Spec of the cell.
        framework: Framework of the network.
        network: Trained network.
        loader: Module with `_load_pyfunc`.
        title: Of the network; left out of the model's name if the study has it, too.
        description: Content of `model.json`, besides the framework.
        inputs: What the network takes, of two rows or more.
        request: Example of a request.
        answers: Column -> type of the answers, the main one first.
        text: Description for users.
        packages: Packages that loading needs besides those of the framework.
    """
    folder = model_folder(cell)
    write_safetensors(framework.weights(network), folder / WEIGHTS)
    content = {"framework": framework.name, **description}
    (folder / "model.json").write_text(json.dumps(content, indent=1), encoding="utf-8")
    try:
        native = framework.save_native(network, inputs, folder)
    except Exception as error:  # the cell has been measured: the model does without
        logging.getLogger(__name__).exception("the network could not be saved for MLflow's flavor")
        native = {}
        text += f" It has no native network ({type(error).__name__}: {str(error)[:200]})."
    needed = {*REQUIRED, *packages}
    needed.update(frameworks.described(framework.name).distributions)
    versions = provenance.versions_of(sorted(needed))
    return ModelSaved(
        cell.run,
        name(cell, title),
        loader,
        f"{cell.folder}/{folder.name}",
        dict(request),
        next(iter(answers)),
        # a local label, as in 2.15.0+cpu, is of another index than pip's default
        tuple(f"{name}=={version.partition('+')[0]}" for name, version in versions.items()),
        COLUMNS,
        {**answers, ERROR: "string"},
        text,
        native,
    )


def model_folder(cell: CellSpec) -> Path:
    """Make the folder of a cell's model."""
    folder = cell.path / "model"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def load(folder: Path) -> tuple[Mapping[str, Any], Framework]:
    """Return the description of a saved model, and its framework on the CPU."""
    description = json.loads((folder / "model.json").read_text(encoding="utf-8"))
    framework = frameworks.open_framework(
        description["framework"], device="cpu", threads=0, precision="float32", seed=0
    )
    return description, framework


def load_network(framework: Framework, folder: Path, model: str, spec: Any) -> Any:
    """Return the network of a saved model."""
    network = framework.build(model, spec)
    framework.load_weights(network, read_safetensors(folder / WEIGHTS))
    return network
