"""Trained classifier as weights and JSON, which MLflow loads through `_load_pyfunc`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

import models
from experiments.contract import CellSpec
from experiments.datasets.images import Image
from experiments.datasets.labelled.data import Labelled, to_array
from experiments.workloads import served
from models.contract import Framework
from tracking.records import ModelSaved


def save(
    cell: CellSpec, framework: Framework, network: Any, model: str, data: Labelled
) -> ModelSaved:
    """Write the classifier, and return the record that logs it in MLflow."""
    pixels = np.asarray(data.images[int(data.validation[0])])
    picture = Image.fromarray(pixels[:, :, 0] if pixels.shape[2] == 1 else pixels)
    description = {
        "model": model,
        "classes": list(data.classes),
        "side": data.side,
        "channels": data.images.shape[3],
        "mean": data.mean.tolist(),
        "deviation": data.deviation.tolist(),
    }
    return served.save(
        cell,
        framework,
        network,
        __name__,
        title=model,
        description=description,
        inputs=(np.zeros((2, data.side, data.side, data.images.shape[3]), np.float32),),
        request=served.example(picture),
        answers={"label": "string", "probability": "double"},
        text=f"Classifies pictures into {len(data.classes)} classes of {data.name}: {model}, "
        f"trained in {framework.name} in block {cell.block}.",
    )


def _load_pyfunc(path: str) -> Classifier:
    """Load a model; MLflow calls this."""
    return Classifier(Path(path))


class Classifier:
    """Classifier in the framework that trained it, on the CPU."""

    def __init__(self, folder: Path) -> None:
        description, self._framework = served.load(folder)
        self._classes = description["classes"]
        self._side, self._channels = description["side"], description["channels"]
        self._mean = np.array(description["mean"], np.float32)
        self._deviation = np.array(description["deviation"], np.float32)
        model = description["model"]
        spec = models.spec(model).Spec(classes=len(self._classes))
        self._network = served.load_network(self._framework, folder, model, spec)

    def predict(
        self,
        model_input: Any,
        params: dict[str, Any] | None = None,  # noqa: ARG002
    ) -> Any:
        """Return a data frame with the columns `label`, `probability` (0…1) and `error`."""
        return served.answered(model_input, self._labels, {"label": "", "probability": 0.0})

    def _labels(self, pictures: list[Image.Image]) -> list[dict[str, Any]]:
        batch = np.stack([to_array(picture, self._side, self._channels) for picture in pictures])
        pixels = (batch.astype(np.float32) / np.float32(255) - self._mean) / self._deviation
        logits = self._framework.infer(self._network, (pixels,)).astype(np.float64)
        exponents = np.exp(logits - logits.max(1, keepdims=True))
        probabilities = exponents / exponents.sum(1, keepdims=True)
        labels = probabilities.argmax(1).tolist()
        return [
            {"label": self._classes[label], "probability": float(row[label])}
            for label, row in zip(labels, probabilities, strict=True)
        ]
