"""PyTorch's adapter."""

from __future__ import annotations

import atexit
import copy
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

import models
from models.contract import (
    PROFILED,
    Array,
    Batch,
    ErrorCode,
    ModelError,
    OptimizerConfig,
    StepClock,
    Weights,
    check_weights,
)
from models.devices import CPU
from models.frameworks.devices import FrameworkOnDevice
from models.frameworks.pytorch import COMPILERS, has_compiler, introspection
from models.frameworks.pytorch.device import TorchDevice

IMAGES = 4  # dimensions: (n, height, width, channels) in the contract


class Adapter(TorchDevice, FrameworkOnDevice):
    """PyTorch: eager, with torch.compile around the network, or in the order channels_last."""

    architecture = profiler = pipeline = "pytorch"

    _introspection = introspection

    def __init__(
        self,
        name: str,
        *,
        device: str,
        threads: int,
        precision: str,
        seed: int,
        conv_algorithm: str = PROFILED,
    ) -> None:
        super().__init__(name)
        self._open_device(device, threads, precision, conv_algorithm, seed)
        self._dtype = torch.float64 if precision == "float64" else torch.float32
        self._mixed = precision == "bfloat16"
        self._compile = name == "pytorch+compile"
        if self._compile:
            language, names, variable = COMPILERS[self.device]
            if not has_compiler(names, variable):
                text = f"{name}: torch.compile needs a {language} compiler: install {names[1]}"
                raise ModelError(ErrorCode.NOT_INSTALLED, text)
        self._eager = not (self._compile or self._mixed)
        self._channels_last = name == "pytorch+channels_last"
        self._layout = torch.channels_last if self._channels_last else torch.contiguous_format
        self._compiled: dict[Any, Callable[..., Any]] = {}

    versions = TorchDevice._device_versions

    def build(self, model: str, spec: Any) -> nn.Module:
        default = torch.get_default_dtype()
        torch.set_default_dtype(self._dtype)  # constants of float64 are not rounded before
        try:
            network: nn.Module = models.load(model, self.architecture).build(spec)
        finally:
            torch.set_default_dtype(default)
        if self._mixed:
            check_autocast(network, self.device)
        network.to(self.device, self._dtype)
        return network.to(memory_format=self._layout).eval()

    def parameter_counts(self, network: nn.Module) -> tuple[int, int]:
        trainable = sum(tensor.numel() for tensor in network.parameters() if tensor.requires_grad)
        return trainable, sum(
            tensor.numel() for tensor in introspection.state(network).values()
        ) - trainable

    def weights(self, network: nn.Module) -> Weights:
        return {
            name: tensor.numpy(force=True).copy()
            for name, tensor in introspection.state(network).items()
        }

    def load_weights(self, network: nn.Module, weights: Mapping[str, Array]) -> None:
        state = introspection.state(network)
        check_weights(weights, {name: tuple(tensor.shape) for name, tensor in state.items()})
        for name, tensor in state.items():
            tensor.copy_(torch.tensor(weights[name]))

    def optimizer(self, network: nn.Module, config: OptimizerConfig) -> torch.optim.Optimizer:
        named, rate = network.named_parameters(), config.learning_rate
        if config.name == "sgd":
            options = {"momentum": config.momentum, "weight_decay": config.weight_decay}
            return torch.optim.SGD(named, lr=rate, **options, fused=True)
        # None, not False: PyTorch chooses foreach on a GPU only if neither is set
        return torch.optim.Adam(named, lr=rate, fused=True if config.name == "adam" else None)

    def optimizer_implementation(self, optimizer: torch.optim.Optimizer) -> str:
        kernels = introspection.optimizer_kernels(optimizer)
        return f"torch.optim.{type(optimizer).__name__}: {kernels}"

    def set_learning_rate(self, optimizer: torch.optim.Optimizer, learning_rate: float) -> None:
        for group in optimizer.param_groups:
            group["lr"] = learning_rate

    def optimizer_state(self, optimizer: torch.optim.Optimizer) -> Weights:
        names = optimizer.param_groups[0]["param_names"]
        return {
            f"{names[index]}/{slot}": value.numpy(force=True).copy()
            for index, slots in optimizer.state_dict()["state"].items()
            for slot, value in slots.items()
        }

    def load_optimizer_state(
        self, optimizer: torch.optim.Optimizer, state: Mapping[str, Array]
    ) -> None:
        names = optimizer.param_groups[0]["param_names"]
        slots: dict[int, dict[str, Tensor]] = {}
        for key, value in state.items():
            name, _, slot = key.rpartition("/")
            if name not in names:
                text = f"optimizer state: {key!r} belongs to no weight of the network"
                raise ModelError(ErrorCode.CONFLICT, text)
            slots.setdefault(names.index(name), {})[slot] = torch.tensor(value)
        optimizer.load_state_dict({**optimizer.state_dict(), "state": slots})

    def place(self, batch: Batch) -> Batch:
        return Batch(*self._tensors(batch), self._is_uniform(batch))

    def place_inputs(self, inputs: tuple[Array, ...]) -> tuple[Tensor, ...]:
        return tuple(map(self._place, inputs))

    def train_step(
        self, network: nn.Module, optimizer: torch.optim.Optimizer, batch: Batch
    ) -> Tensor:
        _set_mode(network, training=True)
        if batch.uniform_weights is None:
            batch = self.place(batch)
        optimizer.zero_grad(set_to_none=True)
        weights = None if batch.uniform_weights else batch.weights
        loss = self._forward(_mean_loss)(network, batch.inputs, batch.targets, weights)
        loss.backward()
        optimizer.step()
        return loss.detach()

    def train_epoch(
        self,
        network: nn.Module,
        optimizer: torch.optim.Optimizer,
        batches: Iterable[Batch],
        clock: StepClock,
    ) -> None:
        _set_mode(network, training=True)
        try:
            super().train_epoch(network, optimizer, batches, clock)
        finally:
            _set_mode(network, training=False)

    def _evaluated_loss(self, network: nn.Module, batch: Batch) -> Any:
        _set_mode(network, training=False)
        with torch.inference_mode():
            return self._forward(_mean_loss)(network, *self._tensors(batch))

    def gradients(self, network: nn.Module, batch: Batch) -> Weights:
        network.eval()
        for module in network.modules():
            # cuDNN differentiates an LSTM only in training mode
            module.train(isinstance(module, nn.LSTM))
        parameters = {name: each for name, each in network.named_parameters() if each.requires_grad}
        loss = _mean_loss(network, *self._tensors(batch))
        gradients = torch.autograd.grad(loss, list(parameters.values()))
        network.eval()
        arrays = (gradient.numpy(force=True) for gradient in gradients)
        return dict(zip(parameters, arrays, strict=True))

    def unbiased(self, network: nn.Module, inputs: tuple[Array, ...]) -> dict[str, int]:
        return introspection.unbiased(network, self.place_inputs(inputs))

    def infer(self, network: nn.Module, inputs: tuple[Array, ...]) -> Array:
        # few calls: each shows next to those of a small network
        if network.training:
            network.eval()
        if not isinstance(inputs[0], Tensor):
            inputs = self.place_inputs(inputs)
        with torch.inference_mode():
            run = network(*inputs) if self._eager else self._forward(_logits)(network, inputs)
            outputs = run.cpu()
            # widened on the host, as in every framework: NumPy has no bfloat16
            wide = outputs if outputs.dtype is self._dtype else outputs.to(self._dtype)
            array: Array = wide.numpy()
        return array

    def apply(
        self,
        function: Callable[..., Any],
        network: nn.Module,
        inputs: tuple[Array, ...],
        **options: int,
    ) -> Array:
        _set_mode(network, training=False)
        placed = inputs if isinstance(inputs[0], Tensor) else self.place_inputs(inputs)
        with torch.inference_mode():
            outputs = function(network, *placed, compiled=self._forward, **options)
        return outputs.cpu().numpy()

    def save_native(
        self, network: nn.Module, inputs: tuple[Array, ...], folder: Path
    ) -> dict[str, str]:
        """Write `model.pt2`: the graph of an evaluation in float32 on the CPU, without a pickle."""
        on_cpu = network if self.device == CPU else copy.deepcopy(network).cpu()
        _set_mode(on_cpu, training=False)
        examples = tuple(map(torch.from_numpy, inputs))
        any_number = tuple({0: torch.export.Dim.AUTO} for _ in examples)
        with torch.no_grad():
            program = torch.export.export(on_cpu, examples, dynamic_shapes=any_number)
        torch.export.save(program, folder / "model.pt2")
        version = str(torch.__version__)
        return {"flavor": "pytorch", "model_data": "data", "pytorch_version": version}

    def compilations(self) -> int:
        if not self._compile:
            return 0
        from torch._dynamo.utils import counters

        return int(counters["stats"]["unique_graphs"])

    def graph_breaks(self) -> Mapping[str, int] | None:
        """Return counts by reason; frames that were given up count under the first reason."""
        if not self._compile:
            return None
        from torch._dynamo.utils import counters

        breaks = {reason: int(count) for reason, count in counters["graph_break"].items()}
        if given_up := int(counters["frames"]["total"] - counters["frames"]["ok"]):
            reason = next(iter(counters["unimplemented"]), "a frame was given up")
            breaks[reason] = breaks.get(reason, 0) + given_up
        return breaks

    def compile_anew(self) -> None:
        if self._compile:
            folder = tempfile.mkdtemp(prefix="torch-compile-")
            os.environ["TORCHINDUCTOR_CACHE_DIR"] = folder
            os.environ["TRITON_CACHE_DIR"] = str(Path(folder) / "triton")
            atexit.register(shutil.rmtree, folder, ignore_errors=True)

    _network_inputs = place_inputs

    def _place(self, array: Array | Tensor) -> Tensor:
        tensor = array if isinstance(array, Tensor) else torch.from_numpy(array)
        dtype = self._dtype if tensor.is_floating_point() else None
        placed = tensor.to(self.device, dtype, non_blocking=True)
        # a tensor comes from `read`, or was placed before
        if isinstance(array, Tensor) or placed.ndim != IMAGES:
            return placed
        # in memory as PyTorch's kernels want them: the network's permutation is then free
        laid_out = placed.permute(0, 3, 1, 2).clone(memory_format=self._layout)
        return laid_out.permute(0, 2, 3, 1)

    def _tensors(self, batch: Batch) -> tuple[tuple[Tensor, ...], Tensor, Tensor]:
        targets = self._place(batch.targets)
        if not targets.is_floating_point():
            targets = targets.long()
        return self.place_inputs(batch.inputs), targets, self._place(batch.weights)

    def _forward(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return `function(network, …)`, compiled or in mixed precision as the variant demands."""
        if self._compile and function not in self._compiled:
            self._compiled[function] = torch.compile(function)
        run = self._compiled.get(function, function)
        if not self._mixed:
            return run

        def mixed(*arguments: Any) -> Any:
            with torch.autocast(self.device, torch.bfloat16):
                return run(*arguments)

        return mixed


def check_autocast(network: nn.Module, device: str) -> None:
    """Raise ModelError for recurrent layers that autocast cannot compute in bfloat16.

    On a GPU cuDNN's get float16 for any dtype (AutocastRNN.cpp: at::kHalf). On a CPU without its
    instructions oneDNN has no such LSTM, though it has other layers.
    """
    for name, module in network.named_modules():
        if not isinstance(module, nn.RNNBase):
            continue
        layer, reason = f"{name or 'a layer'} ({module.mode})", ""
        if device != CPU:
            reason = f"PyTorch computes {layer} in float16 on a GPU; use float32 or tf32"
        elif error := _mixed_error(module.mode):
            reason = f"PyTorch cannot compute {layer} on this CPU ({error}); use float32"
        if reason:
            raise ModelError(ErrorCode.UNSUPPORTED, f"precision 'bfloat16': {reason}")


def _mixed_error(mode: str) -> str:
    """Return why a recurrent layer cannot be computed on the CPU; an empty text if it can."""
    kind = {"LSTM": nn.LSTM, "GRU": nn.GRU}.get(mode, nn.RNN)
    try:
        with torch.random.fork_rng([]), torch.autocast(CPU, torch.bfloat16):
            kind(1, 1)(torch.zeros(1, 1, 1))
    except RuntimeError as error:
        return str(error).partition(".")[0]
    return ""


def _set_mode(network: nn.Module, *, training: bool) -> None:
    """Set the mode if it is another: the call walks over all modules, in each step and request."""
    if network.training is not training:
        network.train(training)


def _logits(network: nn.Module, inputs: tuple[Tensor, ...]) -> Tensor:
    return network(*inputs)


def _mean_loss(
    network: nn.Module, inputs: tuple[Tensor, ...], targets: Tensor, weights: Tensor | None
) -> Tensor:
    """Return the loss. weights: None if all of them are 1."""
    outputs = network(*inputs)
    # of the class: a missing attribute of a module is slow to look up, in each step
    if hasattr(type(network), "example_losses"):
        losses = network.example_losses(inputs, outputs, targets)
    elif weights is None:
        return functional.cross_entropy(outputs, targets)
    else:
        losses = functional.cross_entropy(outputs, targets, reduction="none")
    return losses.mean() if weights is None else (losses * weights).sum() / weights.sum()
