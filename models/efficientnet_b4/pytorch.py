"""EfficientNet-B4 in PyTorch: torchvision's."""

from __future__ import annotations

from torch import nn
from torchvision.models.efficientnet import EfficientNet, MBConvConfig

from models.efficientnet_b4.spec import STAGES, Spec
from models.layers.pytorch import of_images


def build(spec: Spec) -> nn.Module:
    """Return the network.

    Returns:
        forward(images (n, height, width, 3)) -> (n, classes).
    """
    stages = [MBConvConfig(*stage, spec.width, spec.depth) for stage in STAGES]
    return of_images(EfficientNet(stages, spec.dropout, spec.stochastic_depth, spec.classes))
