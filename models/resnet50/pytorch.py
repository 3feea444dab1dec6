"""ResNet-50 in PyTorch: torchvision's."""

from models.resnets.pytorch import build

__all__ = ["build"]
