"""The loop that anybody would write in PyTorch: nothing in it but the training and one clock."""

from __future__ import annotations

import time
from collections.abc import Iterable

import torch
from torch import nn
from torch.nn import functional

from models.contract import Batch


def train(
    network: nn.Module, optimizer: torch.optim.Optimizer, batches: Iterable[Batch], device: str
) -> tuple[list[float], list[float]]:
    """Every batch once. Returns the seconds and the loss of each step."""
    seconds, losses = [], []
    network.train()
    for batch in batches:
        began = time.perf_counter()
        inputs = [torch.from_numpy(array).to(device) for array in batch.inputs]
        targets = torch.from_numpy(batch.targets).to(device).long()
        weights = torch.from_numpy(batch.weights).to(device)
        optimizer.zero_grad(set_to_none=True)
        loss = (functional.cross_entropy(network(*inputs), targets, reduction="none") * weights).sum() / weights.sum()
        loss.backward()
        optimizer.step()
        losses.append(float(loss))  # waits for a GPU
        seconds.append(time.perf_counter() - began)
    return seconds, losses
