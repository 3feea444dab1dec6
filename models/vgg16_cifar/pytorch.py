"""VGG-16 for CIFAR in PyTorch."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional

from models.layers.pytorch import of_images
from models.vgg16_cifar.spec import Spec


class VGG16Cifar(nn.Module):  # type: ignore[misc]
    """forward(images (n, 3, height, width), normalised) -> (n, classes)."""

    def __init__(self, spec: Spec) -> None:
        super().__init__()
        first, later, hidden = spec.dropouts
        inputs, self.stages = spec.channels, []
        for stage, (count, channels) in enumerate(spec.stages, 1):
            for number in range(1, count + 1):
                parts = {"conv": nn.Conv2d(inputs, channels, 3, padding=1, bias=False)}
                parts |= {"norm": nn.BatchNorm2d(channels), "relu": nn.ReLU()}
                if number < count:
                    parts["drop"] = nn.Dropout(first if stage == 1 else later)
                else:
                    parts["pool"] = nn.MaxPool2d(2)
                for name, part in parts.items():
                    self.add_module(f"{name}{stage}_{number}", part)
                    self.stages.append(f"{name}{stage}_{number}")
                inputs = channels
        self.hidden_drop = nn.Dropout(hidden)
        self.hidden = nn.Linear(inputs, spec.hidden)
        self.hidden_norm = nn.BatchNorm1d(spec.hidden)
        self.classifier_drop = nn.Dropout(hidden)
        self.classifier = nn.Linear(spec.hidden, spec.classes)

    def forward(self, x: Tensor) -> Tensor:
        for name in self.stages:
            x = self.get_submodule(name)(x)
        x = self.hidden(self.hidden_drop(x.mean((2, 3))))
        x = functional.relu(self.hidden_norm(x))
        return self.classifier(self.classifier_drop(x))


def build(spec: Spec) -> nn.Module:
    """Return the network.

    Returns:
        forward(images (n, height, width, 3)) -> (n, classes).
    """
    return of_images(VGG16Cifar(spec))
