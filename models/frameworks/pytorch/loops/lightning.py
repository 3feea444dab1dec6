"""PyTorch Lightning's Trainer, its steps timed by a callback as its documentation suggests."""

from __future__ import annotations

import logging
import time
import warnings
from collections.abc import Iterable, Iterator
from typing import Any

import lightning
import torch
from torch import Tensor, nn
from torch.nn import functional

from models.contract import Batch

logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


class _Module(lightning.LightningModule):  # type: ignore[misc]
    def __init__(self, network: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        super().__init__()
        self.network, self._optimizer = network, optimizer

    def training_step(self, batch: tuple[Any, Tensor, Tensor], _: int) -> Tensor:
        inputs, targets, weights = batch
        loss = (functional.cross_entropy(self.network(*inputs), targets, reduction="none") * weights).sum() / weights.sum()
        self.log("loss", loss)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return self._optimizer


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


class _Batches:
    """A loader as Lightning wants it: iterable again and again, tensors out."""

    def __init__(self, batches: Iterable[Batch]) -> None:
        self._batches = batches

    def __iter__(self) -> Iterator[tuple[Any, Tensor, Tensor]]:
        for batch in self._batches:
            inputs = tuple(map(torch.from_numpy, batch.inputs))
            yield inputs, torch.from_numpy(batch.targets).long(), torch.from_numpy(batch.weights)


def train(
    network: nn.Module, optimizer: torch.optim.Optimizer, batches: Iterable[Batch], device: str
) -> tuple[list[float], list[float]]:
    """Every batch once. Returns the seconds and the loss of each step."""
    clock = _Clock()
    quiet = {"enable_checkpointing": False, "enable_progress_bar": False, "enable_model_summary": False, "logger": False}
    accelerator = "gpu" if device == "cuda" else "cpu"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer = lightning.Trainer(max_epochs=1, accelerator=accelerator, devices=1, callbacks=[clock], **quiet)
        trainer.fit(_Module(network, optimizer), _Batches(batches))
    return clock.seconds, clock.losses
