"""PyTorch behind the contract."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

import models
from models.contract import Array, Batch, Framework, ImageFiles, ModelError, Profile, Rule, Weights, check_weights
from models.frameworks.devices import TorchDevice

NAMES = {"pytorch": ("torch",), "pytorch+compile": ("torch",)}
ARCHITECTURE = "pytorch"


class Adapter(Framework):
    """Eager PyTorch, or with torch.compile around the network."""

    architecture = ARCHITECTURE

    def __init__(self, name: str, *, device: str, threads: int, precision: str, seed: int) -> None:
        self.name = name
        self._device = TorchDevice(device, threads, precision)
        self.device = self._device.name
        self._dtype = torch.float64 if precision == "float64" else torch.float32
        self._mixed = precision == "bfloat16"
        self._compile = name == "pytorch+compile"
        self._compiled: dict[Any, Callable[..., Any]] = {}
        self._device.seed(seed)

    def versions(self) -> dict[str, str]:
        return self._device.versions()

    def build(self, model: str, spec: Any) -> nn.Module:
        network: nn.Module = models.load(model, self.architecture).build(spec)
        return network.to(self.device, self._dtype)

    def parameter_counts(self, network: nn.Module) -> tuple[int, int]:
        trainable = sum(tensor.numel() for tensor in network.parameters() if tensor.requires_grad)
        return trainable, sum(tensor.numel() for tensor in _state(network).values()) - trainable

    def weights(self, network: nn.Module) -> Weights:
        return {name: tensor.numpy(force=True).copy() for name, tensor in _state(network).items()}

    def load_weights(self, network: nn.Module, weights: Mapping[str, Array]) -> None:
        state = _state(network)
        check_weights(weights, {name: tuple(tensor.shape) for name, tensor in state.items()})
        for name, tensor in state.items():
            tensor.copy_(torch.tensor(weights[name]))

    def optimiser(self, network: nn.Module, rule: Rule) -> torch.optim.Optimizer:
        named = network.named_parameters()
        if rule.name == "sgd":
            options = {"momentum": rule.momentum, "weight_decay": rule.weight_decay}
            return torch.optim.SGD(named, lr=rule.learning_rate, **options, fused=True)
        return torch.optim.Adam(named, lr=rule.learning_rate, fused=rule.name == "adam")

    def set_learning_rate(self, optimiser: torch.optim.Optimizer, learning_rate: float) -> None:
        for group in optimiser.param_groups:
            group["lr"] = learning_rate

    def optimiser_state(self, optimiser: torch.optim.Optimizer) -> Weights:
        names = optimiser.param_groups[0]["param_names"]
        state = optimiser.state_dict()["state"]
        return {
            f"{names[index]}/{slot}": value.numpy(force=True).copy()
            for index, slots in state.items()
            for slot, value in slots.items()
        }

    def load_optimiser_state(self, optimiser: torch.optim.Optimizer, state: Mapping[str, Array]) -> None:
        names = optimiser.param_groups[0]["param_names"]
        slots: dict[int, dict[str, Tensor]] = {}
        for key, value in state.items():
            name, _, slot = key.rpartition("/")
            if name not in names:
                raise ModelError(f"optimiser state: {key!r} belongs to no weight of the network")
            slots.setdefault(names.index(name), {})[slot] = torch.tensor(value)
        optimiser.load_state_dict({**optimiser.state_dict(), "state": slots})

    def read(self, files: ImageFiles, workers: int) -> Iterable[Batch]:
        from models.pipelines.pytorch import batches

        return batches(files, workers, self.device)

    def profile(self, folder: Path, work: Callable[[], object]) -> Profile:
        from models.profiles.pytorch import profiled

        return profiled(folder, self.device, work)

    def place(self, batch: Batch) -> Batch:
        inputs, targets, weights = self._tensors(batch)
        return Batch(inputs, targets, weights)

    def train_step(self, network: nn.Module, optimiser: torch.optim.Optimizer, batch: Batch) -> Tensor:
        network.train()
        inputs, targets, weights = self._tensors(batch)
        optimiser.zero_grad(set_to_none=True)
        loss = self._forward(_mean_loss)(network, inputs, targets, weights)
        loss.backward()
        optimiser.step()
        return loss.detach()

    def evaluate(self, network: nn.Module, batch: Batch) -> tuple[float, float]:
        network.eval()
        inputs, targets, weights = self._tensors(batch)
        with torch.inference_mode():
            loss = self._forward(_mean_loss)(network, inputs, targets, weights)
        total = float(batch.weights.sum())
        return float(loss) * total, total

    def gradients(self, network: nn.Module, batch: Batch) -> Weights:
        network.eval()
        for module in network.modules():
            module.train(isinstance(module, nn.LSTM))  # cuDNN differentiates an LSTM in training mode only
        parameters = dict(network.named_parameters())
        loss = _mean_loss(network, *self._tensors(batch))
        gradients = torch.autograd.grad(loss, list(parameters.values()))
        return {name: gradient.numpy(force=True) for name, gradient in zip(parameters, gradients, strict=True)}

    def infer(self, network: nn.Module, inputs: tuple[Array, ...]) -> Array:
        network.eval()
        with torch.inference_mode():
            outputs: Tensor = self._forward(_logits)(network, tuple(map(self._tensor, inputs)))
        return _numpy(outputs.to(self._dtype))

    def decode(self, network: nn.Module, features: Array, *, start: int, end: int, words: int, beams: int) -> Array:
        network.eval()
        tokens = {"start": start, "end": end, "words": words}
        with torch.inference_mode():
            advance, tensor = self._forward(_advance), self._tensor(features)
            if beams == 1:
                captions = _greedy(network, advance, tensor, **tokens)
            else:
                captions = _beam(network, advance, tensor, **tokens, beams=beams)
        return _numpy(captions)

    def synchronise(self) -> None:
        self._device.synchronise()

    def peak_device_bytes(self) -> int | None:
        return self._device.peak_bytes()

    def _tensor(self, array: Array | Tensor) -> Tensor:
        if isinstance(array, Tensor):  # placed before
            return array
        dtype = self._dtype if np.issubdtype(array.dtype, np.floating) else None
        return torch.from_numpy(array).to(self.device, dtype)

    def _tensors(self, batch: Batch) -> tuple[tuple[Tensor, ...], Tensor, Tensor]:
        return tuple(map(self._tensor, batch.inputs)), self._tensor(batch.targets).long(), self._tensor(batch.weights)

    def _forward(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """`function(network, …)`, compiled once where the variant compiles, in mixed precision where that is asked for."""
        if self._compile and function not in self._compiled:
            self._compiled[function] = torch.compile(function)
        run = self._compiled.get(function, function)
        if not self._mixed:
            return run

        def mixed(*arguments: Any) -> Any:
            with torch.autocast(self.device, torch.bfloat16):
                return run(*arguments)

        return mixed


def _state(network: nn.Module) -> dict[str, Tensor]:
    """The state_dict without BatchNorm's step counters, which no kernel reads and Keras does not have."""
    return {name: tensor for name, tensor in network.state_dict().items() if not name.endswith("num_batches_tracked")}


def _numpy(tensor: Tensor) -> Array:
    array: Array = tensor.numpy(force=True)
    return array


def _logits(network: nn.Module, inputs: tuple[Tensor, ...]) -> Tensor:
    logits: Tensor = network(*inputs)
    return logits


def _mean_loss(network: nn.Module, inputs: tuple[Tensor, ...], targets: Tensor, weights: Tensor) -> Tensor:
    losses = functional.cross_entropy(network(*inputs), targets, reduction="none")
    return (losses * weights).sum() / weights.sum()


def _advance(network: Any, state: tuple[Tensor, ...], tokens: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
    logits, state = network.advance(state, tokens)
    return logits, state


def _greedy(network: Any, advance: Callable[..., Any], features: Tensor, *, start: int, end: int, words: int) -> Tensor:
    """(n, words) tokens, each the likeliest after those before it; a finished caption goes on with `end`."""
    n, device = features.shape[0], features.device
    state = network.begin(features)
    tokens = torch.full((n,), start, dtype=torch.int32, device=device)
    finished = torch.zeros(n, dtype=torch.bool, device=device)
    captions = torch.empty((n, words), dtype=torch.int32, device=device)
    for word in range(words):
        logits, state = advance(network, state, tokens)
        tokens = logits.argmax(1).int().masked_fill(finished, end)
        captions[:, word] = tokens
        finished = tokens == end
    return captions


def _beam(network: Any, advance: Callable[..., Any], features: Tensor, *, start: int, end: int, words: int, beams: int) -> Tensor:
    """(n, words) tokens of each image's best beam, over rows n·beams + beam; a finished beam goes on with `end` for free."""
    n, rows, device = features.shape[0], features.shape[0] * beams, features.device
    state = tuple(tensor.repeat_interleave(beams, dim=0) for tensor in network.begin(features))
    tokens = torch.full((rows,), start, dtype=torch.int32, device=device)
    finished = torch.zeros(rows, dtype=torch.bool, device=device)
    captions = torch.full((rows, words), end, dtype=torch.int32, device=device)
    scores = torch.full((n, beams), -torch.inf, dtype=features.dtype, device=device)
    scores[:, 0] = 0  # all beams begin alike: let only the first bear children
    first_row = torch.arange(0, rows, beams, device=device).unsqueeze(1)
    for word in range(words):
        logits, state = advance(network, state, tokens)
        vocabulary = logits.shape[1]
        steps = functional.log_softmax(logits, dim=1).masked_fill(finished.unsqueeze(1), -torch.inf)
        steps[:, end] = steps[:, end].masked_fill(finished, 0)
        scores, best = (scores.unsqueeze(2) + steps.view(n, beams, vocabulary)).view(n, -1).topk(beams)
        parents = (first_row + best // vocabulary).flatten()
        tokens = (best % vocabulary).flatten().int()
        state = tuple(tensor[parents] for tensor in state)
        captions = captions[parents]
        captions[:, word] = tokens
        finished = tokens == end
    return captions.view(n, beams, words)[:, 0]
