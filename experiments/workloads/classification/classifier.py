"""A trained classifier as files, and back: weights and JSON only, no pickled code. MLflow loads it through `_load_pyfunc`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

import models
from experiments.contract import CellSpec
from experiments.datasets.images import Image
from experiments.datasets.labelled.data import Labelled, brought
from experiments.workloads import served
from models import frameworks
from models.contract import Framework
from models.weights import read_safetensors, write_safetensors
from tracking.records import ModelSaved


def save(
    cell: CellSpec, framework: Framework, network: Any, model: str, data: Labelled
) -> ModelSaved:
    """Writes the folder `classifier` of the cell and returns the record that makes it an MLflow model."""
    folder = cell.path / "classifier"
    folder.mkdir(parents=True, exist_ok=True)
    write_safetensors(framework.weights(network), folder / "weights.safetensors")
    described = {
        "framework": framework.name,
        "model": model,
        "classes": list(data.classes),
        "side": data.side,
        "channels": data.images.shape[3],
        "mean": data.mean.tolist(),
        "deviation": data.deviation.tolist(),
    }
    (folder / "classifier.json").write_text(json.dumps(described, indent=1), encoding="utf-8")
    return ModelSaved(
        cell.run,
        served.name(model, framework.name, cell.block),
        __name__,
        f"{cell.folder}/classifier",
        _example(data),
        "label",
        served.requirements(framework.name),
        served.COLUMNS,
        {"label": "string", "probability": "double", served.ERROR: "string"},
        f"Classifies pictures into {len(data.classes)} classes of {data.name}: {model}, trained in {framework.name} in block "
        f"{cell.block}.",
    )


def _example(data: Labelled) -> dict[str, str]:
    """A held-out picture."""
    pixels = np.asarray(data.images[int(data.validation[0])])
    return served.example(Image.fromarray(pixels[:, :, 0] if pixels.shape[2] == 1 else pixels))


def _load_pyfunc(path: str) -> Classifier:
    """Entry point of MLflow's pyfunc loader."""
    return Classifier(Path(path))


class Classifier:
    """Classifies pictures with the framework that trained it, on the CPU."""

    def __init__(self, folder: Path) -> None:
        described = json.loads((folder / "classifier.json").read_text(encoding="utf-8"))
        self._classes, self._side, self._channels = (
            described[name] for name in ("classes", "side", "channels")
        )
        self._mean, self._deviation = (
            np.array(described[name], np.float32) for name in ("mean", "deviation")
        )
        self._framework = frameworks.open_framework(
            described["framework"], device="cpu", threads=0, precision="float32", seed=0
        )
        spec = models.spec(described["model"]).Spec(classes=len(self._classes))
        self._network = self._framework.build(described["model"], spec)
        self._framework.load_weights(
            self._network, read_safetensors(folder / "weights.safetensors")
        )

    def predict(self, model_input: Any, params: dict[str, Any] | None = None) -> Any:  # noqa: ARG002 (MLflow's signature)
        """A data frame with a column `image` (bytes of picture files) or `path` → `label`, `probability` (0…1) and `error`."""
        return served.answered(model_input, self._labels, {"label": "", "probability": 0.0})

    def _labels(self, pictures: list[Image.Image]) -> list[dict[str, Any]]:
        batch = np.stack([brought(picture, self._side, self._channels) for picture in pictures])
        pixels = (batch.astype(np.float32) / np.float32(255) - self._mean) / self._deviation
        logits = self._framework.infer(self._network, (pixels,)).astype(np.float64)
        exponents = np.exp(logits - logits.max(1, keepdims=True))
        shares = exponents / exponents.sum(1, keepdims=True)
        best = shares.argmax(1)
        return [
            {"label": self._classes[at], "probability": float(row[at])}
            for at, row in zip(best.tolist(), shares, strict=True)
        ]
