"""A trained captioner as files, and back: weights and JSON only, no pickled code. MLflow loads it through `_load_pyfunc`."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np

from experiments.cell.contract import CellSpec
from experiments.datasets.captions import CaptionData
from experiments.datasets.images import Image, normalised
from experiments.datasets.tokens import Vocabulary
from experiments.workloads.captioning.extract import encoder
from models import frameworks
from models.caption_decoder.decoding import decode
from models.caption_decoder.spec import CaptionDecoderSpec
from models.contract import Array, Framework
from models.weights import read_safetensors, write_safetensors
from tracking import provenance
from tracking.records import ModelSaved


def save(cell: CellSpec, framework: Framework, network: Any, spec: CaptionDecoderSpec, data: CaptionData) -> ModelSaved:
    """Writes the folder `captioner` of the cell and returns the record that makes it an MLflow model."""
    folder = cell.path / "captioner"
    folder.mkdir(parents=True, exist_ok=True)
    write_safetensors(framework.weights(network), folder / "weights.safetensors")
    data.vocabulary.save(folder / "vocabulary.json")
    described = {
        "framework": framework.name,
        "decoder": dataclasses.asdict(spec),
        "encoder_weights": _carry(cell.inputs.get("weights", ""), folder),
        "seed": cell.settings["seed"],
        "image_size": cell.inputs.get("image_size", 224),
    }
    (folder / "captioner.json").write_text(json.dumps(described, indent=1))
    picture = str(Path(data.source, data.images[int(data.images_of("validation")[0])])) if data.images else "picture.jpg"
    return ModelSaved(
        cell.run,
        "captioner",
        __name__,
        f"{cell.folder}/captioner",
        {"image": picture},
        "caption",
        _requirements(framework.name, cell.inputs.get("weights", "")),
    )


def _carry(weights: str, folder: Path) -> str:
    """Encoder weights from a file travel with the model; imagenet's and a random draw can be had again anywhere."""
    if weights in ("random", "imagenet", ""):
        return weights
    copy = folder / f"encoder{Path(weights).suffix}"
    shutil.copyfile(weights, copy)
    return copy.name


def _requirements(framework: str, weights: str) -> tuple[str, ...]:
    # torch also reads torchvision's checkpoints, in a process of its own.
    reading = {"torch", "torchvision"} if weights not in ("", "random") else set()
    needed = {"numpy", "pillow", "safetensors", "pandas", *frameworks.described(framework).distributions, *reading}
    return tuple(f"{name}=={version}" for name, version in provenance.versions_of(sorted(needed)).items())


def _load_pyfunc(path: str) -> Captioner:
    """Entry point of MLflow's pyfunc loader."""
    return Captioner(Path(path))


class Captioner:
    """Captions picture files with the framework that trained it, on the CPU."""

    def __init__(self, folder: Path) -> None:
        described = json.loads((folder / "captioner.json").read_text())
        self._vocabulary = Vocabulary.load(folder / "vocabulary.json")
        self._spec = CaptionDecoderSpec(**described["decoder"])
        self._size = described["image_size"]
        self._framework = frameworks.open_framework(described["framework"], device="cpu", threads=0, precision="float32", seed=0)
        weights = described["encoder_weights"]
        self._encoder = encoder(
            self._framework, str(folder / weights) if (folder / weights).is_file() else weights, described["seed"]
        )
        self._decoder = self._framework.build("caption_decoder", self._spec)
        self._framework.load_weights(self._decoder, read_safetensors(folder / "weights.safetensors"))

    def predict(self, model_input: Any, params: dict[str, Any] | None = None) -> Any:  # noqa: ARG002 (MLflow's signature)
        """A data frame with a column `image` (paths of picture files) → one with a column `caption`."""
        import pandas as pd

        batch = np.stack([_pixels(path, self._size) for path in model_input["image"]])
        pooled = self._framework.infer(self._encoder, (batch,))
        tokens = {"start": self._vocabulary.start, "end": self._vocabulary.end, "words": self._spec.length}
        ids = decode(self._framework, self._decoder, pooled, **tokens, beams=3)
        return pd.DataFrame({"caption": [self._vocabulary.decode(row) for row in ids]})


def _pixels(path: str, size: int) -> Array:
    with Image.open(path) as picture:
        return normalised(picture, size)
