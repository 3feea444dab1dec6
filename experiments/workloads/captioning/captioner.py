"""Trained captioner as weights and JSON, which MLflow loads through `_load_pyfunc`."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path
from typing import Any

import numpy as np

from experiments.contract import CellSpec
from experiments.datasets.captions import CaptionData
from experiments.datasets.images import Image, normalise, open_picture
from experiments.datasets.tokens import Vocabulary
from experiments.workloads import served
from experiments.workloads.captioning.features import encoder
from models.caption_decoder.decoding import decode
from models.caption_decoder.spec import CaptionDecoderSpec, batch
from models.contract import Framework
from tracking.records import ModelSaved

BEAMS = 3


def save(
    cell: CellSpec, framework: Framework, network: Any, spec: CaptionDecoderSpec, data: CaptionData
) -> ModelSaved:
    """Write the captioner, and return the record that logs it in MLflow.

    Weights of the encoder from a file travel with the model; others can be had anywhere.
    """
    folder, weights = served.model_folder(cell), cell.inputs.get("weights", "")
    data.vocabulary.save(folder / "vocabulary.json")
    encoder_weights = weights
    if weights not in ("random", "imagenet", ""):
        encoder_weights = f"encoder{Path(weights).suffix}"
        shutil.copyfile(weights, folder / encoder_weights)
    description = {
        "decoder": dataclasses.asdict(spec),
        "encoder_weights": encoder_weights,
        "seed": cell.settings["seed"],
        "image_size": cell.inputs.get("image_size", 224),
    }
    return served.save(
        cell,
        framework,
        network,
        __name__,
        title="captioning",
        description=description,
        inputs=batch(spec, np.full(2, spec.length), np.random.default_rng(0)).inputs,
        request=_example(data),
        answers={"caption": "string"},
        # torch also reads torchvision's checkpoints, in a process of its own
        packages=() if weights in ("", "random") else ("torch", "torchvision"),
        text=f"Captions pictures: trained in {framework.name} in block {cell.block}. "
        f"Encoder DenseNet-201, weights {weights or 'random'}; "
        f"beam search with {BEAMS} beams.",
    )


def _example(data: CaptionData) -> dict[str, str]:
    """Return a request with a held-out picture, or a grey one if it cannot be read."""
    picture = open_picture(Path(data.source, data.images[int(data.images_of("validation")[0])]))
    return served.example(
        Image.new("RGB", (32, 32), "grey") if isinstance(picture, str) else picture
    )


def _load_pyfunc(path: str) -> Captioner:
    """Load a model; MLflow calls this."""
    return Captioner(Path(path))


class Captioner:
    """Captioner in the framework that trained it, on the CPU."""

    def __init__(self, folder: Path) -> None:
        description, self._framework = served.load(folder)
        self._vocabulary = Vocabulary.load(folder / "vocabulary.json")
        self._spec = CaptionDecoderSpec(**description["decoder"])
        self._size = description["image_size"]
        weights = description["encoder_weights"]
        if (folder / weights).is_file():
            weights = str(folder / weights)
        self._encoder = encoder(self._framework, weights, description["seed"])
        self._decoder = served.load_network(self._framework, folder, "caption_decoder", self._spec)

    def predict(
        self,
        model_input: Any,
        params: dict[str, Any] | None = None,  # noqa: ARG002
    ) -> Any:
        """Return a data frame with the columns `caption` and `error`."""
        return served.answered(model_input, self._captions, {"caption": ""})

    def _captions(self, pictures: list[Image.Image]) -> list[dict[str, str]]:
        pixels = np.stack([normalise(picture, self._size) for picture in pictures])
        ids = decode(
            self._framework,
            self._decoder,
            self._framework.infer(self._encoder, (pixels,)),
            start=self._vocabulary.start,
            end=self._vocabulary.end,
            words=self._spec.length,
            beams=BEAMS,
        )
        return [{"caption": self._vocabulary.decode(row)} for row in ids]
