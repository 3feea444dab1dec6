"""Adapter of the toy framework: NumPy on a device that works asynchronously, as a GPU does."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

import models
from models.contract import (
    PROFILED,
    Array,
    Batch,
    DropoutProbe,
    Framework,
    ImageFiles,
    Mark,
    OptimizerConfig,
    Profile,
    Span,
    StepClock,
    Weights,
    check_weights,
)
from models.errors import ErrorCode, NoDevice
from tests.toy_framework import VARIANTS
from tests.toy_framework.costs import Ledger
from tests.toy_framework.networks import Network, Optimizer
from tests.toy_framework.seen import Seen


class OnDevice(np.ndarray):  # type: ignore[type-arg]
    """Array that is on the device."""


class Loss:
    """Loss on the device: float() waits for it, but not for the update that follows."""

    def __init__(self, value: float, ledger: Ledger, available: float) -> None:
        self._value, self._ledger, self._available = value, ledger, available

    def __float__(self) -> float:
        self._ledger.wait(self._available)
        with self._ledger.spend("read"):
            return self._value


class Adapter(Framework):
    architecture = VARIANTS["toy"].architecture

    def __init__(
        self,
        name: str,
        *,
        device: str,
        threads: int,
        precision: str,
        seed: int,
        conv_algorithm: str = PROFILED,
    ) -> None:
        sees_gpu = os.environ.get("EVENHAND_TOY_GPU", "") in ("1", name)
        if device == "auto":
            device = "cuda" if sees_gpu else "cpu"
        if device == "cuda" and not sees_gpu:
            raise NoDevice(
                ErrorCode.NO_DEVICE,
                "device 'cuda': the toy framework sees no GPU here; use cpu or auto",
            )
        self.name, self.device, self._threads = name, device, threads
        options = {"device": device, "threads": threads, "precision": precision, "seed": seed}
        self._seen = Seen(framework=name, conv_algorithm=conv_algorithm, **options)
        self._dtype = np.float64 if precision == "float64" else np.float32
        self._ledger = Ledger(name)
        with self._ledger.spend("start"):
            pass

    def versions(self) -> dict[str, str]:
        seen = {"seen": self._seen.as_text()} if self._seen.enabled else {}
        return {"toy": "1", "toy_threads": str(self._threads), **seen}

    def build(self, model: str, spec: Any) -> Network:
        self._seen.build(spec)
        with self._ledger.spend("build"):
            network: Network = models.load(model, self.architecture).build(spec)
            network.weights = {
                name: array.astype(self._dtype) for name, array in network.weights.items()
            }
            return network

    def parameter_counts(self, network: Network) -> tuple[int, int]:
        return network.parameters

    def weights(self, network: Network) -> Weights:
        return {name: array.copy() for name, array in network.weights.items()}

    def load_weights(self, network: Network, weights: Mapping[str, Array]) -> None:
        check_weights(weights, {name: array.shape for name, array in network.weights.items()})
        self._seen.weights(weights)
        network.weights = {name: weights[name].astype(self._dtype) for name in network.weights}

    def optimizer(self, network: Network, config: OptimizerConfig) -> Optimizer:
        self._seen.optimizer(config)
        return Optimizer(
            network,
            config,
            1e-7 if (self.name, config.name) == ("toy+stock", "adam-stock") else 1e-8,
        )

    def optimizer_implementation(self, optimizer: Optimizer) -> str:
        names = {"adam": "NumPy Adam", "adam-stock": "NumPy Adam, stock", "sgd": "NumPy SGD"}
        return names[optimizer.name]

    def set_learning_rate(self, optimizer: Optimizer, learning_rate: float) -> None:
        optimizer.learning_rate = learning_rate

    def optimizer_state(self, optimizer: Optimizer) -> Weights:
        return optimizer.state

    def load_optimizer_state(self, optimizer: Optimizer, state: Mapping[str, Array]) -> None:
        optimizer.state = state  # type: ignore[assignment]

    def read(self, files: ImageFiles, workers: int) -> Iterable[Batch]:
        images, pad = np.load(files.images, mmap_mode="r"), files.pad
        side, weights = images.shape[1], np.ones(files.batch_size, np.float32)
        for first in range(0, len(files.rows) - files.batch_size + 1, files.batch_size):
            with self._ledger.spend("input"):
                chosen = slice(first, first + files.batch_size)
                pixels = np.pad(
                    images[files.rows[chosen]], ((0, 0), (pad, pad), (pad, pad), (0, 0))
                )
                moves = zip(pixels, files.shifts[chosen], files.mirrored[chosen], strict=True)
                cut = (
                    (image[top : top + side, left : left + side], turned)
                    for image, (top, left), turned in moves
                )
                moved = [image[:, ::-1] if turned else image for image, turned in cut]
                scaled = (np.stack(moved).astype(np.float32) / 255 - files.mean) / files.deviation
            yield Batch((scaled,), files.labels[chosen], weights)

    def profile(self, folder: Path, work: Callable[[Mark], object]) -> Profile:
        """Return the log: work of the device as operators, host time as the framework's code."""
        steps: list[Span] = []
        began = len(self._ledger.seen)
        work(lambda: self._ledger.step(steps))
        (folder / "ledger.txt").write_text("\n".join(map(str, self._ledger.seen[began:])))
        spans: dict[str, list[Span]] = {}
        for event, start, end in self._ledger.seen[began:]:
            if any(first <= start < last for first, last in steps):
                spans.setdefault(event, []).append((start, end))
        operators = {kind: spans.pop(kind) for kind in ("step", "update") if kind in spans}
        counts = {"ops": sum(map(len, operators.values()))}
        return Profile(
            steps,
            operators,
            framework=[span for kind in spans for span in spans[kind]],
            counts=counts,
        )

    def place(self, batch: Batch) -> Batch:
        *inputs, targets, weights = self._placed((*batch.inputs, batch.targets, batch.weights))
        return Batch(tuple(inputs), targets, weights)

    def place_inputs(self, inputs: tuple[Array, ...]) -> tuple[Array, ...]:
        return self._placed(inputs)

    def train_epoch(
        self, network: Any, optimizer: Any, batches: Iterable[Batch], clock: StepClock
    ) -> None:
        self._seen.epoch()
        super().train_epoch(network, optimizer, batches, clock)

    def train_step(self, network: Network, optimizer: Optimizer, batch: Batch) -> Loss:
        self._seen.step(batch)
        loss, gradient = self._loss(network, batch)
        with self._ledger.spend("launch"):
            optimizer.update(gradient)
        available = self._ledger.launch("step")
        self._ledger.launch("update")
        return Loss(loss, self._ledger, available)

    def evaluate(self, network: Network, batch: Batch) -> tuple[float, float]:
        self._seen.evaluated(batch)
        total = float(batch.weights.sum())
        loss, _ = self._loss(network, batch)
        return float(Loss(loss, self._ledger, self._ledger.launch("evaluate"))) * total, total

    def gradients(self, network: Network, batch: Batch) -> Weights:
        trained = {
            name: np.zeros_like(array)
            for name, array in network.weights.items()
            if ".running_" not in name
        }
        return trained | {network.output: self._loss(network, batch)[1]}

    def dropping(
        self,
        network: Network,
        inputs: tuple[Array, ...],
        draws: int,
    ) -> dict[str, DropoutProbe]:
        return {}

    def drop_nothing(self, network: Network) -> None:
        """Do nothing: there is no dropout."""

    def infer(self, network: Network, inputs: tuple[Array, ...]) -> Array:
        self._seen.answered(inputs, {})
        outputs = self._forward(network, self._placed(inputs))
        self._ledger.launch("infer")
        return self._read(outputs)

    def apply(
        self,
        function: Callable[..., Any],
        network: Network,
        inputs: tuple[Array, ...],
        **options: int,
    ) -> Array:
        self._seen.answered(inputs, options)
        outputs = function(network, *self._placed(inputs), **options)
        self._ledger.launch("apply")
        return self._read(outputs)

    def save_native(
        self, network: Network, inputs: tuple[Array, ...], folder: Path
    ) -> dict[str, str]:
        np.savez(folder / "model.npz", **network.weights)
        return {"flavor": "toy", "data": "data"}

    def compilations(self) -> int:
        return 0

    def synchronise(self) -> None:
        with self._ledger.spend("synchronise"):
            pass
        self._ledger.wait()

    def peak_device_bytes(self) -> int | None:
        return None

    def _placed(self, inputs: tuple[Array, ...]) -> tuple[Array, ...]:
        if all(isinstance(array, OnDevice) for array in inputs):
            return inputs
        with self._ledger.spend("copy"):
            return tuple(array.view(OnDevice) for array in inputs)

    def _forward(self, network: Network, inputs: tuple[Array, ...]) -> Array:
        np.empty(
            len(inputs[0]) * self._ledger.costs.row_bytes, np.uint8
        )  # raises MemoryError where there is too little
        return network(inputs)

    def _loss(self, network: Network, batch: Batch) -> tuple[float, Array]:
        """Return the weighted mean cross-entropy and its gradient for the trained array."""
        logits = (
            self._forward(network, self._placed(batch.inputs)).view(np.ndarray).astype(np.float64)
        )
        rows = np.arange(len(logits))
        shifted = logits - logits.max(1, keepdims=True)
        shares = np.exp(shifted) / np.exp(shifted).sum(1, keepdims=True)
        weights = batch.weights.astype(np.float64) / batch.weights.sum(dtype=np.float64)
        loss = float(
            (weights * (np.log(np.exp(shifted).sum(1)) - shifted[rows, batch.targets])).sum()
        )
        shares[rows, batch.targets] -= 1
        return loss, (weights[:, None] * shares).sum(0).astype(self._dtype)

    def _read(self, outputs: Array) -> Array:
        self._ledger.wait()
        with self._ledger.spend("read"):
            return np.array(outputs)
