"""A trained captioner as files, and back: weights and JSON only, no pickled code. MLflow loads it through `_load_pyfunc`."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np

from experiments.contract import CellSpec
from experiments.datasets.captions import CaptionData
from experiments.datasets.images import Image, normalised, opened
from experiments.datasets.tokens import Vocabulary
from experiments.workloads import served
from experiments.workloads.captioning.extract import encoder
from models import frameworks
from models.caption_decoder.decoding import decode
from models.caption_decoder.spec import CaptionDecoderSpec
from models.contract import Framework
from models.weights import read_safetensors, write_safetensors
from tracking.records import ModelSaved

BEAMS = 3


def save(
    cell: CellSpec, framework: Framework, network: Any, spec: CaptionDecoderSpec, data: CaptionData
) -> ModelSaved:
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
    # torch also reads torchvision's checkpoints, in a process of its own
    reading = (
        ("torch", "torchvision") if cell.inputs.get("weights", "") not in ("", "random") else ()
    )
    return ModelSaved(
        cell.run,
        served.name("captioner", framework.name, cell.block),
        __name__,
        f"{cell.folder}/captioner",
        _example(data),
        "caption",
        served.requirements(framework.name, *reading),
        served.COLUMNS,
        {"caption": "string", served.ERROR: "string"},
        f"Captions pictures: trained in {framework.name} in block {cell.block}. Encoder DenseNet-201, weights "
        f"{cell.inputs.get('weights') or 'random'}; beam search with {BEAMS} beams.",
    )


def _example(data: CaptionData) -> dict[str, str]:
    """A held-out picture; a grey one where the data have none that can be read."""
    images = data.images_of("validation").tolist() if data.images else list[int]()
    pictures = (opened(Path(data.source, data.images[image])) for image in images)
    return served.example(
        next(
            (one for one in pictures if not isinstance(one, str)),
            Image.new("RGB", (32, 32), "grey"),
        )
    )


def _carry(weights: str, folder: Path) -> str:
    """Encoder weights from a file travel with the model; imagenet's and a random draw can be had again anywhere."""
    if weights in ("random", "imagenet", ""):
        return weights
    copy = folder / f"encoder{Path(weights).suffix}"
    shutil.copyfile(weights, copy)
    return copy.name


def _load_pyfunc(path: str) -> Captioner:
    """Entry point of MLflow's pyfunc loader."""
    return Captioner(Path(path))


class Captioner:
    """Captions pictures with the framework that trained it, on the CPU."""

    def __init__(self, folder: Path) -> None:
        described = json.loads((folder / "captioner.json").read_text())
        self._vocabulary = Vocabulary.load(folder / "vocabulary.json")
        self._spec = CaptionDecoderSpec(**described["decoder"])
        self._size = described["image_size"]
        self._framework = frameworks.open_framework(
            described["framework"], device="cpu", threads=0, precision="float32", seed=0
        )
        weights = described["encoder_weights"]
        self._encoder = encoder(
            self._framework,
            str(folder / weights) if (folder / weights).is_file() else weights,
            described["seed"],
        )
        self._decoder = self._framework.build("caption_decoder", self._spec)
        self._framework.load_weights(
            self._decoder, read_safetensors(folder / "weights.safetensors")
        )

    def predict(self, model_input: Any, params: dict[str, Any] | None = None) -> Any:  # noqa: ARG002 (MLflow's signature)
        """A data frame with a column `image` (bytes of picture files) or `path` → one with the columns `caption` and `error`."""
        return served.answered(model_input, self._captions, {"caption": ""})

    def _captions(self, pictures: list[Image.Image]) -> list[dict[str, str]]:
        batch = np.stack([normalised(picture, self._size) for picture in pictures])
        pooled = self._framework.infer(self._encoder, (batch,))
        tokens = {
            "start": self._vocabulary.start,
            "end": self._vocabulary.end,
            "words": self._spec.length,
        }
        ids = decode(self._framework, self._decoder, pooled, **tokens, beams=BEAMS)
        return [{"caption": self._vocabulary.decode(row)} for row in ids]
