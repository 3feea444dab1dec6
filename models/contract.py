"""The contract of models and frameworks: the vocabulary that experiments use for both."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar, Protocol, SupportsFloat

from numpy.typing import NDArray

from models.errors import ErrorCode as ErrorCode
from models.errors import ModelError as ModelError

Array = NDArray[Any]
Weights = dict[str, Array]
Span = tuple[float, float]
# Returns the context of a step, for a profiler.
Mark = Callable[[], AbstractContextManager[object]]
PROFILED = "profiled"


def check_weights(weights: Mapping[str, Array], shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Raise ModelError naming the first missing, superfluous or misshapen array."""
    problems = [f"{name!r} is missing" for name in shapes if name not in weights][:1]
    problems += [f"{name!r} is superfluous" for name in weights if name not in shapes][:1]
    problems = problems or [
        f"{name!r} has shape {tuple(weights[name].shape)}, the network wants {tuple(shape)}"
        for name, shape in shapes.items()
        if tuple(weights[name].shape) != tuple(shape)
    ]
    if problems:
        sizes = f"the network has {len(shapes)} arrays, the weights {len(weights)}"
        raise ModelError(ErrorCode.NOT_EQUAL, f"weights: {', '.join(problems[:2])}; {sizes}")


@dataclass(frozen=True)
class OptimizerConfig:
    """Rule by which weights are updated.

    name: `adam`, `sgd`: PyTorch's semantics in every framework; `adam-stock`: the framework's
    default Adam. momentum and weight_decay (L2, in the gradient) belong to SGD.
    """

    name: str
    learning_rate: float
    momentum: float = 0.0
    weight_decay: float = 0.0

    NAMES: ClassVar[tuple[str, ...]] = ("adam", "sgd", "adam-stock")

    def __post_init__(self) -> None:
        if self.name not in self.NAMES:
            raise ModelError(
                ErrorCode.UNKNOWN_NAME, f"no optimizer {self.name!r}; have {', '.join(self.NAMES)}"
            )
        if self.name != "sgd" and (self.momentum or self.weight_decay):
            raise ModelError(
                ErrorCode.CONFLICT,
                f"momentum and weight decay are those of sgd, not of {self.name}",
            )


@dataclass(frozen=True)
class Batch:
    """NumPy arrays of one optimizer step; the same bytes go to every framework.

    inputs: the arguments of the network's forward pass. targets: int32 (n,) class indices, or what
    the network's `example_losses` takes. weights: float32 (n,), 0 for padding. uniform_weights:
    whether a step may take all weights for 1, so that the loss is a plain mean; None if this is not
    known yet.
    """

    inputs: tuple[Array, ...]
    targets: Array
    weights: Array
    uniform_weights: bool | None = None


class UniformWeights:
    """Predicate: all weights of all batches so far were 1.

    The first other weight decides for all later batches. Otherwise two programs would be compiled,
    one of them in the middle of a training.
    """

    def __init__(self) -> None:
        self._so_far = True

    def __call__(self, batch: Batch) -> bool:
        if self._so_far:
            self._so_far = (
                bool((batch.weights == 1).all())
                if batch.uniform_weights is None
                else batch.uniform_weights
            )
        return self._so_far


@dataclass(frozen=True)
class ImageFiles:
    """Images on disk for a framework's input pipeline, in order, and how each is moved.

    images: a .npy file, uint8 (…, side, side, channels). rows: int64 (n,), into it; labels: int32
    (n,). files: bytes (n,), the JPEG or PNG of 8 bits without transparency that a row was made of,
    to be decoded, turned upright and resized to side × side by a bilinear filter with antialiasing;
    empty to read the row of `images`. orientations: int8 (n,), EXIF's, 1…8. shifts: int (n, 2),
    where the window begins in the picture with `pad` black pixels around it; mirrored: bool (n,),
    left to right after that. mean, deviation: float32 (channels,), of pixels scaled to 0…1.
    """

    images: str
    rows: Array
    labels: Array
    files: Array
    orientations: Array
    shifts: Array
    mirrored: Array
    pad: int
    mean: Array
    deviation: Array
    batch_size: int


@dataclass(frozen=True)
class Profile:
    """Spans (start, end) of a framework's profiler, of any thread or stream, in seconds.

    steps: marked steps. operators: by kind, operators that compute and contain no others; on a GPU
    its kernels. composed: operators that contain others. copies: operators that only move values.
    unrecorded: code whose operators the profiler does not show. framework: the rest of the
    framework's code. counts: over all steps, `ops` (operators, copies included) and `launches`
    (kernels of a GPU or of XLA). uncounted: the reason why one of them is not known.
    """

    steps: Sequence[Span]
    operators: Mapping[str, Sequence[Span]]
    composed: Sequence[Span] = ()
    copies: Sequence[Span] = ()
    unrecorded: Sequence[Span] = ()
    framework: Sequence[Span] = ()
    counts: Mapping[str, int] = field(default_factory=dict)
    uncounted: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class DropoutProbe:
    """A layer that drops values in training.

    given: its inputs while nothing is dropped before it, channels last, flat; of several calls, one
    after the other. drawn: its outputs for ones (n, …), channels last, with 2 along each axis
    of the inputs that is longer than 1.
    """

    inputs: Array
    mask: Array


class StepClock(Protocol):
    """Clock of single steps, or of windows of several without a wait for the device in between.

    `begin` and `end` are called while the device has nothing to do.
    """

    @property
    def window_steps(self) -> int:
        """Return the steps of the next window.

        Returns:
            At least 1. The last window of an epoch may have fewer.
        """

    def begin(self) -> None:
        """Start the clock.

        The window's batches are placed, and the device has nothing to do.
        """

    def end(self, *losses: SupportsFloat) -> None:
        """Read the last loss of the window, stop the clock, then read the other losses.

        Args:
            losses: Of the window's steps, in order.
        """


class Framework(ABC):
    """A framework in this process. The loss is the weighted mean cross-entropy: sum(w·ce) / sum(w).

    The `example_losses(inputs, outputs, targets)` of a network, (n,), replace the cross-entropies.
    Only the adapter looks inside a network. Weights have the names and layouts of a PyTorch
    state_dict in every framework (kernels OIHW, linear OI, LSTM gates i f g o).
    """

    architecture: ClassVar[str]

    name: str
    device: str

    @abstractmethod
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
        """Open the framework.

        Args:
            name: with its variant, as in `models.frameworks.available()`.
            device: one of `devices.CHOICES`.
            threads: of the CPU; 0 for the framework's default.
            precision: one of `models.frameworks.PRECISIONS`.
            seed: of dropout and everything else that the framework draws.
            conv_algorithm: one of `models.frameworks.CONV_ALGORITHMS`.
        """

    @abstractmethod
    def versions(self) -> dict[str, str]:
        """Return versions and the switches that change speed.

        Returns:
            Texts by name, such as threads, TF32 and determinism.
        """

    @abstractmethod
    def build(self, model: str, spec: Any) -> Any:
        """Return a network on the device.

        Args:
            model: Name of a model, whose `<architecture>.build(spec)` makes the network.
            spec: Its sizes.
        """

    @abstractmethod
    def parameter_counts(self, network: Any) -> tuple[int, int]:
        """Count the parameters of a network.

        Returns:
            (trainable, non-trainable); running statistics are non-trainable.
        """

    @abstractmethod
    def weights(self, network: Any) -> Weights:
        """Return copies of all weights and running statistics.

        Returns:
            Arrays by PyTorch's names, in its layouts.
        """

    @abstractmethod
    def load_weights(self, network: Any, weights: Mapping[str, Array]) -> None:
        """Set all weights and running statistics.

        Args:
            network: Network of this framework.
            weights: Arrays by PyTorch's names, in its layouts.

        Raises:
            ModelError: An array is missing, superfluous or misshapen.
        """

    @abstractmethod
    def optimizer(self, network: Any, config: OptimizerConfig) -> Any:
        """Return an optimizer of the network's trainable weights.

        Args:
            network: Network of this framework.
            config: Rule of its updates.
        """

    @abstractmethod
    def optimizer_implementation(self, optimizer: Any) -> str:
        """Describe what updates the weights; called after the measurement.

        Returns:
            Class and kernels, such as `torch.optim.Adam: fused`.
        """

    @abstractmethod
    def set_learning_rate(self, optimizer: Any, learning_rate: float) -> None:
        """Change the learning rate from the next step on.

        Args:
            optimizer: Optimizer of `optimizer`.
            learning_rate: New rate; state such as momenta stays.
        """

    @abstractmethod
    def optimizer_state(self, optimizer: Any) -> Weights:
        """Return copies of what an optimizer has accumulated.

        Returns:
            Arrays by names of this framework's own; the learning rate is none of them.
        """

    @abstractmethod
    def load_optimizer_state(self, optimizer: Any, state: Mapping[str, Array]) -> None:
        """Continue with the state of an optimizer of the same rule and network.

        Args:
            optimizer: Optimizer of `optimizer`.
            state: Result of `optimizer_state`.

        Raises:
            ModelError: The state belongs to another network.
        """

    def read(self, files: ImageFiles, workers: int) -> Iterable[Batch]:
        """Return whole batches from the framework's input pipeline, in its tensors, for `place`.

        Called once an epoch; worker processes serve all epochs. Raise ModelError naming a damaged
        file.
        """
        raise ModelError(
            ErrorCode.UNSUPPORTED, f"{self.name} has no input pipeline of its own here"
        )

    def profile(self, folder: Path, work: Callable[[Mark], object]) -> Profile:
        """Do the work, which marks its steps, under the framework's profiler.

        The trace goes into the folder, for TensorBoard. The work is repeated if the profiler cannot
        time and count in one pass.
        """
        raise ModelError(ErrorCode.UNSUPPORTED, f"{self.name} has no profiler here")

    @abstractmethod
    def place(self, batch: Batch) -> Batch:
        """Move a batch to the device, so that a step converts and copies nothing.

        Returns:
            The batch in the framework's tensors. A placed batch is not moved again.
        """

    @abstractmethod
    def place_inputs(self, inputs: tuple[Array, ...]) -> tuple[Any, ...]:
        """Move inputs to the device.

        Args:
            inputs: As those of a `Batch`.

        Returns:
            Tensors for `infer` and `apply`.
        """

    @abstractmethod
    def train_step(self, network: Any, optimizer: Any, batch: Batch) -> Any:
        """Update the weights once, dropout on.

        Returns:
            The loss before the update, a number on the device; its float() waits for it.
        """

    def train_epoch(
        self, network: Any, optimizer: Any, batches: Iterable[Batch], clock: StepClock
    ) -> None:
        """Train on each batch once, each window between `clock.begin()` and `clock.end(*losses)`.

        Its batches are made and placed before. Within a window nothing waits for the device and no
        loss is read.
        """
        batches = iter(batches)
        while window := [self.place(batch) for batch in islice(batches, clock.window_steps)]:
            self.synchronise()
            clock.begin()
            losses = [self.train_step(network, optimizer, placed) for placed in window]
            self.synchronise()
            clock.end(*losses)
            window.clear()  # the device holds the batches of one window

    @abstractmethod
    def evaluate(self, network: Any, batch: Batch) -> tuple[float, float]:
        """Evaluate a batch, dropout off.

        Returns:
            (sum of weighted cross-entropies, sum of weights).
        """

    @abstractmethod
    def gradients(self, network: Any, batch: Batch) -> Weights:
        """Differentiate the loss of a batch, dropout off.

        Returns:
            Gradients by the names of the trainable tensors, in PyTorch's layouts.
        """

    @abstractmethod
    def dropping(
        self, network: Any, inputs: tuple[Array, ...], draws: int
    ) -> dict[str, DropoutProbe]:
        """Return the layers that drop in one pass in training mode, by path, with so many draws.

        Layers that are not called, or not in training mode, are left out. Moves running statistics.
        """

    def layer_values(self, network: Any, inputs: tuple[Array, ...]) -> dict[str, Array]:
        """Return fingerprints of the outputs of each layer's calls, by path, dropout off.

        In the order in which the layers return; see `models.frameworks.introspection`.
        """
        return {}

    @abstractmethod
    def drop_nothing(self, network: Any) -> None:
        """Set the rate of each layer that drops to 0.

        The steps of the parity gate must not be random.
        """

    def unbiased(self, network: Any, inputs: tuple[Array, ...]) -> dict[str, int]:
        """Return the values a channel, N, of layers with unbiased running variance, by path.

        Their running variance has a factor N / (N - 1). Moves running statistics.
        """
        return {}

    def deploy(
        self, network: Any, batches: Sequence[tuple[Array, ...]], folder: Path
    ) -> dict[str, float]:
        """Make a network ready for `infer`; a framework has nothing to do.

        A runtime loads the network's file, which another process exports unless the folder has it,
        and which has to compute what the network computes.

        Args:
            network: Network with its weights.
            batches: Inputs on which both are compared. Sizes in which they differ stay free.
            folder: Of exported files.

        Returns:
            Metrics: seconds of loading, bytes of the file.

        Raises:
            ModelError: The exporter refuses the network (NOT_EXPORTED), or the file computes
                something else (NOT_EQUAL).
        """
        return {}

    @abstractmethod
    def infer(self, network: Any, inputs: tuple[Array, ...]) -> Array:
        """Run a network, dropout off, compiled if the variant compiles.

        Args:
            network: Network of this framework.
            inputs: Arrays, or tensors of `place_inputs`.

        Returns:
            The outputs in host memory, float32 or float64.
        """

    @abstractmethod
    def apply(
        self, function: Callable[..., Any], network: Any, inputs: tuple[Array, ...], **options: int
    ) -> Array:
        """Return `function(network, *inputs, **options)` as NumPy: several passes, as in a search.

        Runs as `infer` does. Keras' functions are compiled as a whole. PyTorch's get an argument
        `compiled`, which compiles a function.
        """

    def save_native(
        self,
        network: Any,
        inputs: tuple[Array, ...],
        folder: Path,
    ) -> dict[str, str]:
        """Write a network in the framework's own format, which needs no code of this project.

        Only the number of rows stays free; other sizes are those of the inputs.

        Args:
            network: Network of this framework, which stays as it is.
            inputs: Of two rows or more.
            folder: Where the file goes.

        Returns:
            MLflow's name of the format under `flavor`, with its other entries in `MLmodel`, for
            which the file is in `data`; empty if the framework has no such format.
        """
        return {}

    @abstractmethod
    def compilations(self) -> int:
        """Count compilations.

        Returns:
            Programs that this process has traced or compiled so far.
        """

    def graph_breaks(self) -> Mapping[str, int] | None:
        """Count graph breaks so far.

        Returns:
            Counts by reason; None if graphs of this framework cannot break.
        """
        return None

    def compile_anew(self) -> None:  # noqa: B027 - most keep nothing
        """Ignore programs that another process has compiled.

        Called once, before a network is built.
        """

    def disable_graph_optimizer(self, name: str) -> None:
        """Leave one of `models.frameworks.GRAPH_OPTIMIZERS` out of later graphs."""
        raise ModelError(ErrorCode.UNSUPPORTED, f"{self.name} has no graph optimizer {name}")

    def jit_compile(self, network: Any) -> bool | None:
        """Return the decision on XLA.

        Returns:
            Whether XLA compiles the training step; None if there is no such choice.
        """
        return None

    @abstractmethod
    def synchronise(self) -> None:
        """Wait until the device has finished.

        The clock calls this on both sides of what it times.
        """

    @abstractmethod
    def peak_device_bytes(self) -> int | None:
        """Return the peak of memory on the accelerator.

        Returns:
            Bytes since `reset_peak`; None on the CPU.
        """

    def reset_peak(self) -> bool:
        """Restart the peak of `peak_device_bytes`.

        Returns:
            False if that is not possible.
        """
        return False
