"""What torchvision's networks need to take the images that every framework is given."""

from __future__ import annotations

from typing import Any

from torch import nn


def of_images(network: nn.Module) -> nn.Module:
    """The network, taking images (n, height, width, channels) as the contract does; in memory they stay as they came."""
    network.register_forward_pre_hook(_channels_first)
    return network


def _channels_first(_: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    return (inputs[0].permute(0, 3, 1, 2),)
