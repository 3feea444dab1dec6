"""ResNet-50 in PyTorch: torchvision's."""

from __future__ import annotations

from models.resnets.pytorch import build

__all__ = ["build"]
