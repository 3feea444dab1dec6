"""VGG-16 in PyTorch: torchvision's."""

from __future__ import annotations

from torch import nn
from torchvision.models.vgg import VGG, make_layers

from models.layers.pytorch import of_images
from models.vgg16.spec import POOLED, Spec


def build(spec: Spec) -> nn.Module:
    stages: list[str | int] = []
    for count, channels in spec.stages:
        stages += [channels] * count + ["M"]
    network = VGG(
        make_layers(stages), num_classes=spec.classes, init_weights=False, dropout=spec.dropout
    )
    last = spec.stages[-1][1]
    network.classifier[0] = nn.Linear(last * POOLED**2, spec.hidden)
    network.classifier[3] = nn.Linear(spec.hidden, spec.hidden)
    network.classifier[6] = nn.Linear(spec.hidden, spec.classes)
    return of_images(network)
