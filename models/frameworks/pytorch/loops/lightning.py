"""PyTorch Lightning's Trainer, its steps timed by a callback as its documentation suggests."""

from __future__ import annotations

import logging
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import lightning
import torch
from torch import Tensor, nn

from models.contract import Array, Weights
from models.frameworks.pytorch.loops.plain import Plain

logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


class _Module(lightning.LightningModule):  # type: ignore[misc]
    def __init__(self, network: nn.Module, learning_rate: float) -> None:
        super().__init__()
        self.network, self._learning_rate, self._loss = (
            network,
            learning_rate,
            nn.CrossEntropyLoss(),
        )

    def training_step(self, batch: tuple[Tensor, Tensor], _: int) -> Tensor:
        images, labels = batch
        loss = self._loss(self.network(images), labels)
        self.log("loss", loss)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.network.parameters(), lr=self._learning_rate)


class _Clock(lightning.Callback):  # type: ignore[misc]
    def __init__(self) -> None:
        self.seconds: list[float] = []
        self.losses: list[float] = []
        self._began = 0.0

    def on_train_batch_start(self, *_: Any) -> None:
        self._began = time.perf_counter()

    def on_train_batch_end(self, _trainer: Any, _module: Any, outputs: Any, *_: Any) -> None:
        self.losses.append(float(outputs["loss"]))  # waits for a GPU
        self.seconds.append(time.perf_counter() - self._began)


class _Again:
    """A loader as Lightning wants it: the batch on the device, as often as it is asked for."""

    def __init__(self, batch: tuple[Tensor, Tensor], another: Callable[[], bool]) -> None:
        self._batch, self._another = batch, another

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        while self._another():
            yield self._batch


class Trainer(Plain):
    """The network, the batch and the optimizer of the plain loop, driven by Lightning."""

    def __init__(
        self, network: nn.Module, weights: Weights, images: Array, labels: Array, device: str
    ) -> None:
        super().__init__(network, weights, images, labels, device)
        self._accelerator = "gpu" if device == "cuda" else "cpu"

    def train(
        self, learning_rate: float, another: Callable[[], bool]
    ) -> tuple[list[float], list[float]]:
        """Steps for as long as `another` says. Returns the seconds and the loss of each."""
        clock, batches = _Clock(), _Again((self._images, self._labels), another)
        quiet = {
            "enable_checkpointing": False,
            "enable_progress_bar": False,
            "enable_model_summary": False,
            "logger": False,
        }
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            trainer = lightning.Trainer(
                max_epochs=1, accelerator=self._accelerator, devices=1, callbacks=[clock], **quiet
            )
            trainer.fit(_Module(self._model, learning_rate), batches)
        return clock.seconds, clock.losses
