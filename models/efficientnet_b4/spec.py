"""Sizes and layers of EfficientNet-B4 (Tan and Le, 2019). NumPy only."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import Any, ClassVar

from models.layers.images import MirroredSpec

# Of B0, the paper's table 1: expansion, kernel, strides of the first, inputs, outputs, units.
STAGES = (
    (1, 3, 1, 32, 16, 1),
    (6, 3, 2, 16, 24, 2),
    (6, 5, 2, 24, 40, 2),
    (6, 3, 2, 40, 80, 3),
    (6, 5, 1, 80, 112, 3),
    (6, 5, 2, 112, 192, 4),
    (6, 3, 1, 192, 320, 1),
)


@dataclass(frozen=True)
class Spec(MirroredSpec):
    """Sizes of EfficientNet-B4.

    Attributes:
        width: B4's factor on B0's channels.
        depth: B4's factor on B0's units.
        dropout: Rate before the classifier.
        stochastic_depth: Rate at which training leaves out a unit behind the last one.
    """

    width: float = 1.4
    depth: float = 1.8
    dropout: float = 0.4
    stochastic_depth: float = 0.2

    small: ClassVar = {"classes": 5, "width": 0.25, "depth": 0.6}

    def network(self, x: Any, nn: Any) -> Any:
        x = nn.convolution(x, self._channels(STAGES[0][3]), 3, "features.0.0", strides=2, padding=1)
        x = nn.silu(nn.norm(x, "features.0.1"))
        counts = [ceil(count * self.depth) for *_, count in STAGES]
        done = 0
        for stage, (expansion, kernel, first_strides, inputs, outputs, _) in enumerate(STAGES):
            inputs, outputs = self._channels(inputs), self._channels(outputs)
            for number in range(counts[stage]):
                path, shortcut = f"features.{stage + 1}.{number}", x
                strides = 1 if number else first_strides
                x = _unit(x, nn, path, inputs, expansion, outputs, kernel, strides)
                if strides == 1 and inputs == outputs:
                    rate = self.stochastic_depth * done / sum(counts)
                    x = nn.drop_images(x, rate, f"{path}.stochastic_depth")
                    x = nn.add(x, shortcut)
                inputs, done = outputs, done + 1
        path = f"features.{len(STAGES) + 1}"
        x = nn.convolution(x, 4 * self._channels(STAGES[-1][4]), 1, f"{path}.0")
        x = nn.global_average(nn.silu(nn.norm(x, f"{path}.1")))
        return nn.linear(nn.dropout(x, self.dropout, "classifier.0"), self.classes, "classifier.1")

    def _channels(self, channels: int) -> int:
        return rounded(channels * self.width)


def _unit(
    x: Any,
    nn: Any,
    path: str,
    inputs: int,
    expansion: int,
    outputs: int,
    kernel: int,
    strides: int,
) -> Any:
    """Apply a mobile inverted bottleneck with squeeze and excitation."""
    hidden, path = rounded(inputs * expansion), f"{path}.block"
    part = int(hidden != inputs)
    if part:
        x = nn.silu(nn.norm(nn.convolution(x, hidden, 1, f"{path}.0.0"), f"{path}.0.1"))
    x = nn.depthwise(x, kernel, f"{path}.{part}.0", strides=strides)
    x = nn.silu(nn.norm(x, f"{path}.{part}.1"))
    # Each channel times a share that its mean over the image decides.
    squeeze, squeezed = f"{path}.{part + 1}", max(1, inputs // 4)
    share = nn.global_average(x, keepdims=True)
    share = nn.silu(nn.convolution(share, squeezed, 1, f"{squeeze}.fc1", bias=True))
    share = nn.sigmoid(nn.convolution(share, hidden, 1, f"{squeeze}.fc2", bias=True))
    x = nn.convolution(nn.multiply(x, share), outputs, 1, f"{path}.{part + 2}.0")
    return nn.norm(x, f"{path}.{part + 2}.1")


def rounded(channels: float) -> int:
    """Round to a multiple of 8, and at most a tenth down.

    Source: Sandler et al., 2018, in the authors' code.
    """
    nearest = max(8, int(channels + 4) // 8 * 8)
    return nearest + 8 if nearest < 0.9 * channels else nearest
