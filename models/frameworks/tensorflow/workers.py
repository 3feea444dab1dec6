"""Data-parallel training by MultiWorkerMirroredStrategy, under which Keras' `fit` fails.

Over rings on the CPU, over NCCL on GPUs, where this has never run.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from models.contract import Array, Batch, ErrorCode, Framework, ModelError, OptimizerConfig, Weights
from models.devices import CPU
from models.frameworks.tensorflow.adapter import _mean_loss


def local_rank(rank: int, addresses: Sequence[str]) -> int:
    """Return a worker's number among those of its machine, whose GPUs they share.

    Args:
        rank: Number of the worker in the group.
        addresses: `host:port` of each worker.
    """
    hosts = [address.rpartition(":")[0] for address in addresses]
    return hosts[:rank].count(hosts[rank])


class Workers:
    """Worker of a group. addresses: `host:port` of each; seconds: its patience for others."""

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
                ErrorCode.UNSUPPORTED,
                f"compression={compression}: {framework.name} has no compressed all-reduce; "
                "take none",
            )
        task = {"type": "worker", "index": rank}
        os.environ["TF_CONFIG"] = json.dumps({"cluster": {"worker": addresses}, "task": task})
        import tensorflow as tf

        self._framework, self._rank, self._world = framework, rank, len(addresses)
        kinds = tf.distribute.experimental.CommunicationImplementation
        on_gpu = framework.device != CPU
        if on_gpu:
            gpus = tf.config.list_physical_devices("GPU")
            tf.config.set_visible_devices(gpus[local_rank(rank, addresses) % len(gpus)], "GPU")
        self._options = tf.distribute.experimental.CommunicationOptions(
            implementation=kinds.NCCL if on_gpu else kinds.RING, timeout_seconds=seconds
        )
        self._strategy = tf.distribute.MultiWorkerMirroredStrategy(
            communication_options=self._options
        )

    def build(self, model: str, sizes: Any, weights: Weights, config: OptimizerConfig) -> None:
        with self._strategy.scope():
            self.network = self._framework.build(model, sizes)
            self._framework.load_weights(self.network, weights)
            self.optimizer = self._framework.optimizer(self.network, config)
        self._exchange, self._no_exchange = self._trace(is_local=False), self._trace(is_local=True)

    def step(self, batch: Batch, *, is_local: bool = False) -> float:
        """Train on this worker's part of a batch.

        Args:
            batch: Its part.
            is_local: Leave out the exchange of gradients.

        Returns:
            The loss of the part.
        """
        step = self._no_exchange if is_local else self._exchange
        return float(step(*batch.inputs, batch.targets))

    def gathered(self, values: Array) -> Array:
        import tensorflow as tf

        table = np.zeros((self._world, len(values)))
        table[self._rank] = values

        def replica() -> Any:
            # the sum of a row and zeros is exact; the summands have to be tensors of the replica
            context, summed = tf.distribute.get_replica_context(), tf.distribute.ReduceOp.SUM
            return context.all_reduce(summed, tf.identity(table), self._options)

        gather = tf.function(lambda: self._strategy.run(replica), autograph=False)
        return gather().numpy()

    def close(self) -> None:
        """Do nothing: the runtime closes with the process."""

    def _trace(self, *, is_local: bool) -> Any:
        """Return a step as a tf.function.

        Keras adds up the workers' gradients when it updates: each has its part of the mean.
        """
        import tensorflow as tf

        network, optimizer, parts = self.network, self.optimizer, 1 if is_local else self._world
        all_reduce = optimizer._all_reduce_sum_gradients

        def replica(images: Any, targets: Any) -> Any:
            # read while it is traced
            optimizer._all_reduce_sum_gradients = (lambda pairs: pairs) if is_local else all_reduce
            variables = network.trainable_variables
            with tf.GradientTape() as tape:
                loss = _mean_loss(network, True, True, images, targets)
                part = loss / parts
            optimizer.apply(tape.gradient(part, variables), variables)
            return loss

        return tf.function(
            lambda *arrays: self._strategy.run(replica, args=arrays), autograph=False
        )
