"""Loop of PyTorch's tutorials: the framework and the network, and no part of this tool.

Source: "Learn the Basics", parts "Optimizing Model Parameters" and "Save, Load and Use the Model";
pytorch.org/tutorials.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from models.contract import Array, Weights


class Plain:
    """Network with one batch on the device."""

    def __init__(
        self, network: nn.Module, weights: Weights, images: Array, labels: Array, device: str
    ) -> None:
        # images: float32 (n, height, width, channels); labels: int32 (n,)
        network.load_state_dict(
            {name: torch.from_numpy(array) for name, array in weights.items()}, strict=False
        )
        self._model = network.to(device)
        # channels first, as from a DataLoader; the networks permute back, which moves nothing
        channels_first = (
            torch.from_numpy(images)
            .permute(0, 3, 1, 2)
            .clone(memory_format=torch.contiguous_format)
        )
        self._images = channels_first.to(device).permute(0, 2, 3, 1)
        self._labels = torch.from_numpy(labels).to(device, torch.int64)

    def requests(self) -> Callable[[], Array]:
        """Return a call that answers one request, in host memory."""
        model, images = self._model, self._images
        model.eval()

        def request() -> Array:
            with torch.inference_mode():
                answer: Array = model(images).cpu().numpy()
            return answer

        return request

    def steps(self, learning_rate: float) -> Callable[[], float]:
        """Return a call that makes one step and reads its loss."""
        model, images, labels = self._model, self._images, self._labels
        model.train()
        loss_function = nn.CrossEntropyLoss()
        optimizer = torch.optim.Adam(model.parameters(), lr=learning_rate)

        def step() -> float:
            optimizer.zero_grad()
            loss = loss_function(model(images), labels)
            loss.backward()
            optimizer.step()
            return float(loss.item())

        return step
