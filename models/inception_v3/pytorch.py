"""Inception-V3 in PyTorch: torchvision's."""

from __future__ import annotations

from functools import partial
from typing import Any

from torch import nn
from torchvision.models import inception

from models.inception_v3.spec import Spec
from models.layers.pytorch import of_images

BLOCKS = (
    inception.InceptionA,
    inception.InceptionB,
    inception.InceptionC,
    inception.InceptionD,
    inception.InceptionE,
)


def build(spec: Spec) -> nn.Module:
    unit = partial(_narrower, spec.narrower)
    network = inception.Inception3(
        num_classes=spec.classes,
        aux_logits=False,
        transform_input=spec.transform_input,
        inception_blocks=[
            unit,
            *(partial(block, conv_block=unit) for block in BLOCKS),
            inception.InceptionAux,
        ],
        init_weights=False,
        dropout=spec.dropout,
    )
    network.fc = nn.Linear(network.fc.in_features // spec.narrower, spec.classes)
    return of_images(network)


def _narrower(narrower: int, inputs: int, outputs: int, **sizes: Any) -> nn.Module:
    """Return torchvision's unit with fewer channels; an image has three at any width."""
    inputs = inputs if inputs == 3 else inputs // narrower
    return inception.BasicConv2d(inputs, outputs // narrower, **sizes)
