"""A network trained on images, validated after every epoch; its confusion matrix and its answers' times."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

import models
from experiments.cell.checkpoint import TrainingState
from experiments.cell.measure import measure
from experiments.contract import CellSpec, Output
from experiments.datasets.labelled import batches
from experiments.datasets.labelled.data import Labelled
from experiments.metrics import TO_ACCURACY
from experiments.workloads import served
from experiments.workloads.classification import classifier, confusion
from models import own
from models.contract import Array, Batch, Framework, Weights

DROP = 0.1


def run(spec: CellSpec, framework: Framework, output: Output) -> None:
    measure(Classification(spec), spec, framework, output)


class Classification:
    """Weights, orders and augmentation depend on seed and block alone, never on the framework."""

    def __init__(self, spec: CellSpec) -> None:
        settings = spec.settings
        self._cell, self._settings = spec, settings
        self._data = data = Labelled.open(Path(spec.inputs["data"]))
        self.model = settings["model"]
        self._module = models.spec(self.model)
        self.spec = self._module.Spec(classes=len(data.classes))
        self.parameters = self._module.parameters(self.spec)
        self.examples_a_step = settings["batch_size"]
        self.steps_per_epoch = (
            settings["steps_per_epoch"] or len(data.training) // settings["batch_size"]
        )
        self._counted = np.zeros((len(data.classes), len(data.classes)), np.int64)

    def _rng(self, purpose: int) -> np.random.Generator:
        return np.random.default_rng([self._settings["seed"], self._cell.block, purpose])

    def initial_weights(self) -> Weights:
        weights: Weights = self._module.initial_weights(self.spec, self._rng(0))
        return weights

    def training(self, epoch: int, framework: Framework) -> Iterable[Batch]:
        """`memory`: all made before the epoch; `stream`: made between the steps; `native`: by the framework's own pipeline."""
        rng = self._rng(1 + epoch)
        rows = rng.permutation(self._data.training)[: self.steps_per_epoch * self.examples_a_step]
        wanted = batches.files(
            self._data, rows, self.examples_a_step, self._settings["augmentation"], rng
        )
        if self._settings["input"] == "native":
            return framework.read(wanted, self._settings["workers"])
        made = batches.read(self._data, wanted)
        return list(made) if self._settings["input"] == "memory" else made

    def validation(self) -> Iterable[Batch]:
        return batches.read(
            self._data, batches.files(self._data, self._data.validation, self.examples_a_step)
        )

    def learning_rate(self, epoch: int) -> float | None:
        """Learning rate divided by ten after each of `drop_epochs`."""
        drops = self._settings["drop_epochs"]
        rate: float = self._settings["learning_rate"]
        return rate * DROP ** sum(epoch >= drop for drop in drops) if drops else None

    def validate(self, framework: Framework, network: Any) -> dict[str, float]:
        """Loss and accuracy (the confusion matrix' trace over its sum) from the same logits, in NumPy for every framework."""
        self._counted[:] = 0
        loss = 0.0
        for batch in self.validation():
            count = int(batch.weights.sum())
            logits = framework.infer(network, batch.inputs)[:count].astype(np.float64)
            labels = batch.targets[:count]
            shifted = logits - logits.max(1, keepdims=True)
            loss += float(
                (np.log(np.exp(shifted).sum(1)) - shifted[np.arange(count), labels]).sum()
            )
            np.add.at(self._counted, (labels, logits.argmax(1)), 1)
        total = int(self._counted.sum())
        return {"val/loss": loss / total, "val/accuracy": float(np.trace(self._counted)) / total}

    def request(self, batch_size: int, index: int) -> tuple[Array, ...]:
        rows = self._data.validation[
            (np.arange(batch_size) + index * batch_size) % len(self._data.validation)
        ]
        wanted = batches.files(self._data, rows, batch_size)
        return next(iter(batches.read(self._data, wanted))).inputs

    def answer(self, framework: Framework, network: Any, request: tuple[Any, ...]) -> Array:
        return framework.infer(network, request)

    def derived(self, metrics: Mapping[str, float], state: TrainingState) -> dict[str, float]:  # noqa: ARG002
        """Seconds of training, without validation, until an accuracy was first reached; nothing for one that never was."""
        elapsed = np.cumsum(state.epoch_seconds)
        reached = [values["val/accuracy"] for values in state.by_epoch]
        found = {}
        for threshold in self._settings["thresholds"]:
            if epochs := [epoch for epoch, accuracy in enumerate(reached) if accuracy >= threshold]:
                found[time_to(threshold)] = float(elapsed[epochs[0]])
        return found

    def quality(self, framework: Framework, network: Any) -> dict[str, float]:  # noqa: ARG002
        """Nothing at the end: accuracy is measured after every epoch."""
        return {}

    def save_artifacts(self, framework: Framework, network: Any, output: Output) -> None:
        """The confusion matrix as a table and a picture, and the classifier as a model that loads elsewhere."""
        self.validate(
            framework, network
        )  # a resumed training may have had its last validation in another process
        confusion.write(self._cell.path, self._counted, self._data.classes)
        output.artifact("confusion.csv")
        output.artifact("confusion.png")
        if self.model in own.folders():
            return  # a logged model carries our code alone
        if served.is_kept(self._cell):
            output.record(classifier.save(self._cell, framework, network, self.model, self._data))


def time_to(threshold: float) -> str:
    """Name of the metric for the time to an accuracy."""
    return f"{TO_ACCURACY}{100 * threshold:g}_percent_seconds"
