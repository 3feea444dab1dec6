"""convnext in PyTorch; keras.py reads in parallel."""

from __future__ import annotations

from models.convnext.spec import Spec
from torch import Tensor, nn

from models.layers.pytorch import Scale, gelu, of_images


class Block(nn.Module):
    """forward(x (n, width, height, width of the image)) -> the same shape."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.depthwise = nn.Conv2d(width, width, 7, padding=3, groups=width)
        self.norm = nn.LayerNorm(width, 1e-6)
        self.linear1 = nn.Linear(width, 4 * width)
        self.linear2 = nn.Linear(4 * width, width)
        self.scale = Scale(width)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(self.depthwise(x).permute(0, 2, 3, 1))
        y = self.scale(self.linear2(gelu(self.linear1(y))))
        return x + y.permute(0, 3, 1, 2)


class Stage(nn.Module):
    """Half the height and width; the first normalises after its convolution, the others before."""

    def __init__(self, first: bool, inputs: int, width: int, depth: int) -> None:
        super().__init__()
        self.first = first
        self.norm = nn.LayerNorm(width if first else inputs, 1e-6)
        self.reduction = nn.Conv2d(inputs, width, 2, 2)
        self.blocks = nn.Sequential(*(Block(width) for _ in range(depth)))

    def forward(self, x: Tensor) -> Tensor:
        if self.first:
            return self.blocks(self._normalised(self.reduction(x)))
        return self.blocks(self.reduction(self._normalised(x)))

    def _normalised(self, x: Tensor) -> Tensor:
        return self.norm(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


class Convnext(nn.Module):
    """forward(images (n, 3, height, width)) -> (n, classes)."""

    def __init__(self, spec: Spec) -> None:
        super().__init__()
        inputs = (spec.channels, *spec.widths[:-1])
        sizes = enumerate(zip(inputs, spec.widths, spec.depths, strict=True))
        self.stages = nn.Sequential(*(Stage(not stage, *of) for stage, of in sizes))
        self.norm = nn.LayerNorm(spec.widths[-1], 1e-6)
        self.classifier = nn.Linear(spec.widths[-1], spec.classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(self.norm(self.stages(x).mean((2, 3))))


def build(spec: Spec) -> nn.Module:
    """forward(images (n, height, width, 3)) -> (n, classes)."""
    return of_images(Convnext(spec))
