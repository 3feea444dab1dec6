"""MobileNetV2 in PyTorch: torchvision's."""

from __future__ import annotations

from torch import nn
from torchvision.models import MobileNetV2

from models.layers.pytorch import of_images
from models.mobilenet_v2.spec import Spec


def build(spec: Spec) -> nn.Module:
    stages = [list(stage) for stage in spec.stages]
    return of_images(
        MobileNetV2(
            num_classes=spec.classes, inverted_residual_setting=stages, dropout=spec.dropout
        )
    )
