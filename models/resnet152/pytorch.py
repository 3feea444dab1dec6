"""ResNet-152 in PyTorch: torchvision's."""

from models.resnets.pytorch import build

__all__ = ["build"]
