"""Inception-V3 in Keras, on any of its backends."""

from models.layers.keras import build_mirror as build

__all__ = ["build"]
