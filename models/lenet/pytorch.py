"""LeNet-5 in PyTorch."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional

from models.layers.pytorch import of_images
from models.lenet.spec import Spec


class LeNet(nn.Module):  # type: ignore[misc]
    """forward(images (n, 1, 28, 28)) -> (n, classes)."""

    def __init__(self, spec: Spec) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 6, 5, padding=2)
        self.conv2 = nn.Conv2d(6, 16, 5)
        self.linear1 = nn.Linear(400, 120)
        self.linear2 = nn.Linear(120, 84)
        self.linear3 = nn.Linear(84, spec.classes)

    def forward(self, x: Tensor) -> Tensor:
        x = functional.max_pool2d(functional.relu(self.conv1(x)), 2)
        x = functional.max_pool2d(functional.relu(self.conv2(x)), 2).flatten(1)
        x = functional.relu(self.linear1(x))
        x = functional.relu(self.linear2(x))
        return self.linear3(x)


def build(spec: Spec) -> nn.Module:
    """Return the network.

    Returns:
        forward(images (n, 28, 28, 1)) -> (n, classes).
    """
    return of_images(LeNet(spec))
