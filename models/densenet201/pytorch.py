"""DenseNet-201 in PyTorch: torchvision's, the reference; keras.py mirrors it."""

from __future__ import annotations

from torch import Tensor, nn
from torchvision.models import DenseNet

from models.densenet201.spec import DenseNet201Spec


class DenseNet201(DenseNet):  # type: ignore[misc]
    """forward(images (n, height, width, 3), normalised) -> (n, classes), or pooled features (n, 1920) without classes."""

    def __init__(self, spec: DenseNet201Spec) -> None:
        super().__init__(spec.growth, spec.blocks, spec.stem, spec.bottleneck, num_classes=spec.classes or 1)
        if spec.classes is None:
            self.classifier = nn.Identity()

    def forward(self, images: Tensor) -> Tensor:
        outputs: Tensor = super().forward(images.permute(0, 3, 1, 2).contiguous())
        return outputs


def build(spec: DenseNet201Spec) -> nn.Module:
    return DenseNet201(spec)
