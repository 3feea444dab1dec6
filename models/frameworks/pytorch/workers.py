"""Data-parallel training: processes that average their gradients (DistributedDataParallel).

Over gloo on the CPU, over NCCL on GPUs, where this has never run.
"""

from __future__ import annotations

import math
import os
import socket
from contextlib import nullcontext
from datetime import timedelta
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

from models.contract import Array, Batch, Framework, OptimizerConfig, Weights
from models.devices import CPU

POWERSGD = {"matrix_approximation_rank": 1, "start_powerSGD_iter": 2, "min_compression_rate": 0.5}


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
        if name := _interface(addresses[0 if rank else -1]):
            os.environ.setdefault("GLOO_SOCKET_IFNAME", name)
        self._framework, self._compression = framework, compression
        self._world, timeout = len(addresses), timedelta(seconds=seconds)
        host, _, port = addresses[0].rpartition(":")
        store = dist.TCPStore(host, int(port), self._world, is_master=rank == 0, timeout=timeout)
        self._gpu = framework.device != CPU
        if self._gpu:  # workers of one node are neighbours by rank
            torch.cuda.set_device(rank % torch.cuda.device_count())
        dist.init_process_group(
            "nccl" if self._gpu else "gloo",
            store=store,
            rank=rank,
            world_size=self._world,
            timeout=timeout,
        )

    def build(self, model: str, sizes: Any, weights: Weights, config: OptimizerConfig) -> None:
        """Build the network on these weights, and its optimizer."""
        self.network = self._framework.build(model, sizes)
        self._framework.load_weights(self.network, weights)
        self.optimizer = self._framework.optimizer(self.network, config)
        devices = [torch.cuda.current_device()] if self._gpu else None
        self._parallel = DistributedDataParallel(self.network, devices)
        if self._compression == "fp16":
            self._parallel.register_comm_hook(None, default_hooks.fp16_compress_hook)
        elif self._compression == "powersgd":
            self._powersgd = powerSGD_hook.PowerSGDState(None, **POWERSGD)
            self._parallel.register_comm_hook(self._powersgd, powerSGD_hook.powerSGD_hook)

    def settle(self) -> None:
        """Let powersgd compress nothing more: the next step adds what earlier ones left out."""
        if self._compression == "powersgd":
            self._powersgd.min_compression_rate = math.inf

    def step(self, batch: Batch, *, is_local: bool = False) -> float:
        """Train on this worker's part of a batch.

        Args:
            batch: Its part.
            is_local: Leave out the exchange of gradients.

        Returns:
            The loss of the part.
        """
        with self._parallel.no_sync() if is_local else nullcontext():
            return float(self._framework.train_step(self._parallel, self.optimizer, batch))

    def gathered(self, values: Array) -> Array:
        """Return the float64 values (n,) of all workers, (workers, n), once all are here."""
        local = torch.from_numpy(np.asarray(values, np.float64)).to(self._framework.device)
        rows = [torch.empty_like(local) for _ in range(self._world)]
        dist.all_gather(rows, local)
        return torch.stack(rows).cpu().numpy()

    def close(self) -> None:
        dist.destroy_process_group()


def _interface(peer: str) -> str:
    """Return the name of this machine's interface that leads to `host:port`; no packet is sent.

    If it is empty, gloo looks up the machine's own name.
    """
    import psutil

    host, _, port = peer.rpartition(":")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((host, int(port)))
        except OSError:
            return ""
        address = probe.getsockname()[0]
    for name, addresses in psutil.net_if_addrs().items():
        if any(at.address == address for at in addresses):
            return name
    return ""
