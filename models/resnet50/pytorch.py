"""ResNet-50 in PyTorch: torchvision's."""

from models.resnets.pytorch import build as build
