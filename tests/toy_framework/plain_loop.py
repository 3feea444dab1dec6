"""Loop of the toy framework's tutorial: it costs what the device does."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from models.contract import Array, OptimizerConfig, Weights
from tests.toy_framework.costs import Ledger
from tests.toy_framework.networks import Network
from tests.toy_framework.optimizers import Optimizer


class Plain:
    """A network on one batch that lies on the device."""

    def __init__(
        self, network: Network, weights: Weights, images: Array, labels: Array, _: str
    ) -> None:
        self._network, self._images, self._labels, self._ledger = (
            network,
            images,
            labels,
            Ledger("toy"),
        )
        network.weights = {name: np.array(array) for name, array in weights.items()}

    def requests(self) -> Callable[[], Array]:
        def request() -> Array:
            answer = self._network((self._images,))
            self._ledger.launch("infer")
            self._read()
            return answer

        return request

    def steps(self, learning_rate: float) -> Callable[[], float]:
        optimizer = Optimizer(self._network, OptimizerConfig("adam-stock", learning_rate), 1e-8)
        rows = np.arange(len(self._labels))

        def step() -> float:
            logits = self._network((self._images,)).astype(np.float64)
            shares = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
            loss = float(-np.log(shares[rows, self._labels]).mean())
            shares[rows, self._labels] -= 1
            with self._ledger.spend("launch"):
                optimizer.update(shares.mean(0).astype(np.float32))
                self._ledger.launch("step")
            self._read()
            return loss

        return step

    def _read(self) -> None:
        self._ledger.wait()
        with self._ledger.spend("read"):
            pass
