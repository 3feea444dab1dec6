"""Training of a network on images, validated after every epoch."""

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
from experiments.studies.classification import Settings
from experiments.workloads import logged_model
from models import own
from models.contract import Array, Batch, Framework, Weights
from tracking import plain

DROP = 0.1


def run(spec: CellSpec[Settings], framework: Framework, output: Output) -> None:
    measure(Classification(spec), spec, framework, output)


class Classification:
    """Training whose weights, orders and augmentation depend only on seed and block."""

    answer_length = 0

    def __init__(self, spec: CellSpec[Settings]) -> None:
        settings = spec.settings
        self._cell, self._settings = spec, settings
        self._data = data = Labelled.open(Path(spec.inputs["data"]))
        self.model = settings.model
        self._module = models.spec(self.model)
        self.spec = self._module.Spec(classes=len(data.classes))
        self.parameters = self._module.parameters(self.spec)
        self.examples_a_step = settings.batch_size
        self.steps_per_epoch = settings.steps_per_epoch or len(data.training) // settings.batch_size
        self._confusion = np.zeros((len(data.classes), len(data.classes)), np.int64)

    def _rng(self, purpose: int) -> np.random.Generator:
        return np.random.default_rng([self._settings.seed, self._cell.block, purpose])

    def initial_weights(self) -> Weights:
        weights: Weights = self._module.initial_weights(self.spec, self._rng(0))
        return weights

    def training(self, epoch: int, framework: Framework) -> Iterable[Batch]:
        """Return the batches of an epoch.

        They are made before it (`memory`), between the steps (`stream`), or by the framework's
        own pipeline (`native`).
        """
        rng = self._rng(1 + epoch)
        rows = rng.permutation(self._data.training)[: self.steps_per_epoch * self.examples_a_step]
        files = batches.files(
            self._data, rows, self.examples_a_step, self._settings.augmentation, rng
        )
        if self._settings.input == ("native",):
            return framework.read(files, self._settings.workers)
        made = batches.read(self._data, files)
        return list(made) if self._settings.input == ("memory",) else made

    def validation(self) -> Iterable[Batch]:
        files = batches.files(self._data, self._data.validation, self.examples_a_step)
        return batches.read(self._data, files)

    def learning_rate(self, epoch: int) -> float | None:
        drops = self._settings.drop_epochs
        rate: float = self._settings.learning_rate
        return rate * DROP ** sum(epoch >= drop for drop in drops) if drops else None

    def validate(self, framework: Framework, network: Any) -> dict[str, float]:
        """Return loss and accuracy from the same logits, in NumPy for every framework."""
        self._confusion[:] = 0
        loss = 0.0
        for batch in self.validation():
            count = int(batch.weights.sum())
            logits = framework.infer(network, batch.inputs)[:count].astype(np.float64)
            labels = batch.targets[:count]
            shifted = logits - logits.max(1, keepdims=True)
            losses = np.log(np.exp(shifted).sum(1)) - shifted[np.arange(count), labels]
            loss += float(losses.sum())
            np.add.at(self._confusion, (labels, logits.argmax(1)), 1)
        total = int(self._confusion.sum())
        return {"val/loss": loss / total, "val/accuracy": float(np.trace(self._confusion)) / total}

    def request(self, batch_size: int, index: int) -> tuple[Array, ...]:
        validation = self._data.validation
        rows = validation[(np.arange(batch_size) + index * batch_size) % len(validation)]
        files = batches.files(self._data, rows, batch_size)
        return next(iter(batches.read(self._data, files))).inputs

    def answer(self, framework: Framework, network: Any, request: tuple[Any, ...]) -> Array:
        return framework.infer(network, request)

    def derived(
        self,
        metrics: Mapping[str, float],  # noqa: ARG002
        state: TrainingState,
    ) -> dict[str, float]:
        """Return the seconds of training, without validation, until each accuracy was reached."""
        elapsed = np.cumsum(state.epoch_seconds)
        times = {}
        for threshold in self._settings.thresholds:
            for values, seconds in zip(state.by_epoch, elapsed, strict=True):
                if values["val/accuracy"] >= threshold:
                    times[time_to(threshold)] = float(seconds)
                    break
        return times

    def quality(self, framework: Framework, network: Any) -> dict[str, float]:  # noqa: ARG002
        return {}  # accuracy is measured after every epoch

    def save_artifacts(self, framework: Framework, network: Any, output: Output) -> None:
        """Save the confusion matrix, and the network for MLflow."""
        # a resumed training may have had its last validation in another process
        self.validate(framework, network)
        rows: list[list[object]] = [["true \\ answered", *self._data.classes]]
        for name, counts in zip(self._data.classes, self._confusion.tolist(), strict=True):
            rows.append([name, *counts])
        path = self._cell.path / "confusion.csv"
        path.write_text(plain.as_csv(rows), encoding="utf-8")
        output.artifact("confusion.csv")
        if self.model in own.folders():  # a file may need code that it does not contain
            return
        data, side, channels = self._data, self._data.side, self._data.images.shape[3]
        logged_model.save(
            self._cell,
            framework,
            network,
            (np.zeros((2, side, side, channels), np.float32),),
            output,
            title=self.model,
            description={
                "classes": list(data.classes),
                "side": side,
                "channels": channels,
                "mean": data.mean.tolist(),
                "deviation": data.deviation.tolist(),
            },
            text=f"Classifies pictures into {len(data.classes)} classes of {data.name}: "
            f"{self.model}, trained in {framework.name} in block {self._cell.block}.",
        )


def time_to(threshold: float) -> str:
    """Return the name of the metric for the time to an accuracy."""
    return f"{TO_ACCURACY}{100 * threshold:g}_percent_seconds"
