"""ResNet-18 and its siblings in PyTorch: torchvision's."""

from __future__ import annotations

from torch import nn
from torchvision.models.resnet import BasicBlock, Bottleneck, ResNet

from models.layers.pytorch import of_images
from models.resnet18.spec import Spec


def build(spec: Spec) -> nn.Module:
    """Return the network.

    Returns:
        forward(images (n, height, width, 3)) -> (n, classes).
    """
    unit = Bottleneck if spec.bottleneck else BasicBlock
    return of_images(ResNet(unit, list(spec.blocks), num_classes=spec.classes))
