"""Deep Speech 2 in PyTorch; keras.py is its twin."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional

from models.deepspeech2.spec import BLANK, CLIPPED_AT, KERNELS, STRIDES, Spec, frames_left
from models.layers.pytorch import mask
from models.lstms.pytorch import lstm


class DeepSpeech2(nn.Module):  # type: ignore[misc]
    """forward(features (n, frames, bins), lengths (n,)) -> logits (n, frames left, symbols)."""

    def __init__(self, spec: Spec) -> None:
        super().__init__()
        inputs = [spec.channels * spec.bins, *[spec.width] * (spec.layers - 1)]
        self.convolutions = nn.ModuleList(
            nn.Conv2d(
                channels,
                spec.channels,
                kernel,
                stride,
                (kernel[0] // 2, kernel[1] // 2),
                bias=False,
            )
            for channels, kernel, stride in zip((1, spec.channels), KERNELS, STRIDES, strict=True)
        )
        self.norms = nn.ModuleList(nn.BatchNorm2d(spec.channels) for _ in KERNELS)
        self.lstms = nn.ModuleList(
            lstm(spec.lstm, size, spec.width, bidirectional=True) for size in inputs
        )
        self.sequence_norms = nn.ModuleList(nn.BatchNorm1d(spec.width) for _ in inputs)
        self.symbols = nn.Linear(spec.width, spec.symbols)

    def forward(self, features: Tensor, lengths: Tensor) -> Tensor:
        lengths = frames_left(lengths)
        x = features.unsqueeze(1)
        for convolution, norm in zip(self.convolutions, self.norms, strict=True):
            x = norm(convolution(x)).clamp(0, CLIPPED_AT)
            inside = mask(lengths, x.shape[2]).to(x.dtype)
            x = x * inside[:, None, :, None]
        x = x.permute(0, 2, 3, 1).flatten(2)
        for layer, norm in zip(self.lstms, self.sequence_norms, strict=True):
            both = layer(x, lengths).unflatten(2, (2, -1)).sum(2)
            x = norm(both.flatten(0, 1)).unflatten(0, x.shape[:2])
        return self.symbols(x)

    def example_losses(
        self, inputs: tuple[Tensor, ...], outputs: Tensor, targets: Tensor
    ) -> Tensor:
        likely = functional.log_softmax(outputs, dim=-1).transpose(0, 1)
        symbols = (targets != BLANK).sum(1)
        return functional.ctc_loss(
            likely, targets, frames_left(inputs[1]), symbols, BLANK, reduction="none"
        )


build = DeepSpeech2
