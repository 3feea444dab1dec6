"""ResNet-18 in Keras, on any of its backends."""

from models.layers.keras import build as build
