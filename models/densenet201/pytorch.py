"""DenseNet-201 in PyTorch: torchvision's."""

from __future__ import annotations

from torch import nn
from torchvision.models import DenseNet

from models.densenet201.spec import Spec
from models.layers.pytorch import of_images


def build(spec: Spec) -> nn.Module:
    network = DenseNet(
        spec.growth, spec.blocks, spec.stem, spec.bottleneck, num_classes=spec.classes or 1
    )
    if spec.classes is None:
        network.classifier = nn.Identity()
    return of_images(network)
