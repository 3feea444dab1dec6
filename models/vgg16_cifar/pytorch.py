"""VGG-16 for CIFAR in PyTorch; keras.py reads in parallel."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional

from models.layers.pytorch import of_images
from models.vgg16_cifar.spec import Spec


class VGG16Cifar(nn.Module):  # type: ignore[misc]
    """forward(images (n, 3, height, width), normalised) -> (n, classes)."""

    def __init__(self, spec: Spec) -> None:
        super().__init__()
        self.spec = spec
        first, later, hidden = spec.dropouts
        inputs = spec.channels
        for stage, (count, channels) in enumerate(spec.stages, 1):
            for number in range(1, count + 1):
                self.add_module(
                    f"conv{stage}_{number}", nn.Conv2d(inputs, channels, 3, padding=1, bias=False)
                )
                self.add_module(f"norm{stage}_{number}", nn.BatchNorm2d(channels))
                if number < count:
                    self.add_module(
                        f"drop{stage}_{number}", nn.Dropout(first if stage == 1 else later)
                    )
                inputs = channels
        self.hidden_drop = nn.Dropout(hidden)
        self.hidden = nn.Linear(inputs, spec.hidden)
        self.hidden_norm = nn.BatchNorm1d(spec.hidden)
        self.classifier_drop = nn.Dropout(hidden)
        self.classifier = nn.Linear(spec.hidden, spec.classes)

    def forward(self, x: Tensor) -> Tensor:
        for stage, (count, _) in enumerate(self.spec.stages, 1):
            for number in range(1, count + 1):
                x = self.get_submodule(f"conv{stage}_{number}")(x)
                x = functional.relu(self.get_submodule(f"norm{stage}_{number}")(x))
                if number < count:
                    x = self.get_submodule(f"drop{stage}_{number}")(x)
            x = functional.max_pool2d(x, 2)
        x = x.mean((2, 3))
        x = self.hidden(self.hidden_drop(x))
        x = functional.relu(self.hidden_norm(x))
        logits: Tensor = self.classifier(self.classifier_drop(x))
        return logits


def build(spec: Spec) -> nn.Module:
    """forward(images (n, height, width, 3), normalised) -> (n, classes)."""
    return of_images(VGG16Cifar(spec))
