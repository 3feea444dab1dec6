"""ResNet-18 in PyTorch: torchvision's."""

from models.resnets.pytorch import build as build
