"""Data-parallel training with a loop of our own: Keras' `fit` fails under MultiWorkerMirroredStrategy.

Over rings on the CPU, over NCCL on GPUs; nothing here has run on GPUs.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from models.contract import Array, Batch, Framework, ModelError, OptimizerConfig, Weights
from models.frameworks.tensorflow.adapter import _mean_loss


def local_rank(rank: int, addresses: Sequence[str]) -> int:
    """Return a worker's number among those of its own machine, whose GPUs it shares with them."""
    hosts = [address.rpartition(":")[0] for address in addresses]
    return hosts[:rank].count(hosts[rank])


class Workers:
    """One worker of several. addresses: `host:port` of each; seconds: how long one waits for another."""

    def __init__(
        self,
        framework: Framework,
        rank: int,
        addresses: list[str],
        seconds: float,
        compression: str,
    ) -> None:
        if compression != "none":
            raise ModelError(
                f"compression={compression}: {framework.name} has no compressed all-reduce; take none"
            )
        os.environ["TF_CONFIG"] = json.dumps(
            {"cluster": {"worker": addresses}, "task": {"type": "worker", "index": rank}}
        )
        import tensorflow as tf

        self._framework, self._rank, self._world = framework, rank, len(addresses)
        kinds = tf.distribute.experimental.CommunicationImplementation
        if framework.device == "cuda":
            gpus = tf.config.list_physical_devices("GPU")
            tf.config.set_visible_devices(gpus[local_rank(rank, addresses) % len(gpus)], "GPU")
        self._options = tf.distribute.experimental.CommunicationOptions(
            implementation=kinds.NCCL if framework.device == "cuda" else kinds.RING,
            timeout_seconds=seconds,
        )
        self._strategy = tf.distribute.MultiWorkerMirroredStrategy(
            communication_options=self._options
        )

    def build(self, model: str, sizes: Any, weights: Weights, config: OptimizerConfig) -> None:
        """The network on these weights, and its optimizer."""
        with self._strategy.scope():
            self.network = self._framework.build(model, sizes)
            self._framework.load_weights(self.network, weights)
            self.optimizer = self._framework.optimizer(self.network, config)
        self._together, self._alone = self._traced(alone=False), self._traced(alone=True)

    def step(self, batch: Batch, *, alone: bool = False) -> float:
        """A step on this worker's part of the batch; its part of the loss. alone: nothing is exchanged."""
        return float((self._alone if alone else self._together)(*batch.inputs, batch.targets))

    def gathered(self, values: Array) -> Array:
        """(workers, n): what each worker has, (n,) in float64; all wait here for each other."""
        import tensorflow as tf

        table = np.zeros((self._world, len(values)))
        table[self._rank] = values

        def replica() -> Any:
            # a sum of a row and zeros is exact; what is reduced has to be of the replica
            return tf.distribute.get_replica_context().all_reduce(
                tf.distribute.ReduceOp.SUM, tf.identity(table), self._options
            )

        found: Array = tf.function(lambda: self._strategy.run(replica), autograph=False)().numpy()
        return found

    def close(self) -> None:
        """The runtime closes with the process."""

    def _traced(self, *, alone: bool) -> Any:
        """A step as a tf.function. Keras adds up the workers' gradients where it updates, so each has its part of the mean."""
        import tensorflow as tf

        network, optimizer, parts = self.network, self.optimizer, 1 if alone else self._world
        summed = optimizer._all_reduce_sum_gradients

        def replica(images: Any, targets: Any) -> Any:
            optimizer._all_reduce_sum_gradients = (
                (lambda pairs: pairs) if alone else summed
            )  # read while it is traced
            with tf.GradientTape() as tape:
                loss = _mean_loss(network, True, True, images, targets)
                part = loss / parts
            optimizer.apply(
                tape.gradient(part, network.trainable_variables), network.trainable_variables
            )
            return loss

        @tf.function(autograph=False)  # type: ignore[untyped-decorator]
        def step(images: Any, targets: Any) -> Any:
            return self._strategy.run(replica, args=(images, targets))

        return step
