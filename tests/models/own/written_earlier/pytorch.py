"""written_earlier in PyTorch; keras.py reads in parallel."""

from __future__ import annotations

from models.written_earlier.spec import Spec
from torch import Tensor, nn
from torch.nn import functional

from models.layers.pytorch import of_images


class WrittenEarlier(nn.Module):
    """forward(images (n, 3, height, width)) -> (n, classes)."""

    def __init__(self, spec: Spec) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(spec.channels, spec.width, 3, padding=1)
        self.conv2 = nn.Conv2d(spec.width, 2 * spec.width, 3, padding=1)
        self.classifier = nn.Linear(2 * spec.width, spec.classes)

    def forward(self, x: Tensor) -> Tensor:
        x = functional.max_pool2d(functional.relu(self.conv1(x)), 2)
        x = functional.max_pool2d(functional.relu(self.conv2(x)), 2)
        return self.classifier(x.mean((2, 3)))


def build(spec: Spec) -> nn.Module:
    """forward(images (n, height, width, 3)) -> (n, classes)."""
    return of_images(WrittenEarlier(spec))
