"""Products of square matrices in PyTorch; keras.py is its twin."""

from torch import nn

from models.products import LAYERS


def build(width: int) -> nn.Module:
    square = nn.Linear(width, width, bias=False)
    return nn.Sequential(*[square] * LAYERS, nn.Linear(width, 1, bias=False))
