"""ResNet-50 in Keras, on any of its backends."""

from __future__ import annotations

from models.resnets.keras import build

__all__ = ["build"]
