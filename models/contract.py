"""The contract of models and frameworks: the vocabulary that experiments use for both."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
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
    the network's `example_losses` takes. weights: float32 (n,), 0 for padding. even: whether a step
    may take all weights for 1, so that the loss is a plain mean; None if this is not known yet.
    """

    inputs: tuple[Array, ...]
    targets: Array
    weights: Array
    even: bool | None = None


@dataclass(frozen=True)
class DataRequirements:
    """Real examples of a network of sequences, whose spec has `reads` and `batch_of`.

    kind: its reader in `experiments.datasets.sequences`. sizes: arguments of the reader.
    longest: the longest part that the network takes; None for no bound.
    """

    kind: str
    sizes: Mapping[str, int]
    longest: int | None = None


class UniformWeights:
    """Predicate: all weights of all batches so far were 1.

    The first other weight decides for all later batches. Otherwise two programs would be compiled,
    one of them in the middle of a training.
    """

    def __init__(self) -> None:
        self._so_far = True

    def __call__(self, batch: Batch) -> bool:
        if self._so_far:
            self._so_far = bool((batch.weights == 1).all()) if batch.even is None else batch.even
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
        """Steps of the next window, at least 1. The last of an epoch may have fewer."""

    def begin(self) -> None: ...

    def end(self, *losses: SupportsFloat) -> None:
        """Read the last loss of the window, stop the clock, then read the other losses."""


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
            device: `auto`, `cpu` or `cuda`.
            threads: of the CPU; 0 for the framework's default.
            precision: one of `models.frameworks.PRECISIONS`.
            seed: of dropout and everything else that the framework draws.
            conv_algorithm: one of `models.frameworks.CONV_ALGORITHMS`.
        """

    @abstractmethod
    def versions(self) -> dict[str, str]:
        """Return versions and the switches that change speed (threads, TF32, determinism)."""

    @abstractmethod
    def build(self, model: str, spec: Any) -> Any:
        """Return the network `models.<model>.<architecture>.build(spec)` on the device."""

    @abstractmethod
    def parameter_counts(self, network: Any) -> tuple[int, int]:
        """Return (trainable, non-trainable) parameters; running statistics are non-trainable."""

    @abstractmethod
    def weights(self, network: Any) -> Weights: ...

    @abstractmethod
    def load_weights(self, network: Any, weights: Mapping[str, Array]) -> None:
        """Set all weights. Raise ModelError as `check_weights` does."""

    @abstractmethod
    def optimizer(self, network: Any, config: OptimizerConfig) -> Any: ...

    @abstractmethod
    def optimizer_implementation(self, optimizer: Any) -> str:
        """Return the class and the kernels that update the weights, after the measurement."""

    @abstractmethod
    def set_learning_rate(self, optimizer: Any, learning_rate: float) -> None: ...

    @abstractmethod
    def optimizer_state(self, optimizer: Any) -> Weights: ...

    @abstractmethod
    def load_optimizer_state(self, optimizer: Any, state: Mapping[str, Array]) -> None: ...

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
        """Return the batch on the device, so that a step converts and copies nothing."""

    @abstractmethod
    def place_inputs(self, inputs: tuple[Array, ...]) -> tuple[Any, ...]:
        """Return the inputs of `infer` and `apply` on the device."""

    @abstractmethod
    def train_step(self, network: Any, optimizer: Any, batch: Batch) -> Any:
        """Update once, dropout on. Return the loss, whose float() waits for the device."""

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
        """Return (sum of weighted cross-entropies, sum of weights), dropout off."""

    @abstractmethod
    def gradients(self, network: Any, batch: Batch) -> Weights:
        """Return the gradient of the loss by each trainable tensor, dropout off."""

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
        """Set the rate of each layer that drops to 0: the gate's steps must not be random."""

    def unbiased(self, network: Any, inputs: tuple[Array, ...]) -> dict[str, int]:
        """Return the values a channel, N, of layers with unbiased running variance, by path.

        Their running variance has a factor N / (N - 1). Moves running statistics.
        """
        return {}

    @abstractmethod
    def infer(self, network: Any, inputs: tuple[Array, ...]) -> Array:
        """Return the outputs as NumPy, dropout off, compiled if the variant compiles."""

    @abstractmethod
    def apply(
        self, function: Callable[..., Any], network: Any, inputs: tuple[Array, ...], **options: int
    ) -> Array:
        """Return `function(network, *inputs, **options)` as NumPy: several passes, as in a search.

        Runs as `infer` does. Keras' functions are compiled as a whole. PyTorch's get an argument
        `compiled`, which compiles a function.
        """

    @abstractmethod
    def compilations(self) -> int:
        """Return how many programs this process has traced or compiled so far."""

    def graph_breaks(self) -> Mapping[str, int] | None:
        """Return counts of graph breaks so far, by reason; None if graphs cannot break."""
        return None

    def compile_anew(self) -> None:  # noqa: B027 - most keep nothing
        """Ignore programs that another process has compiled from now on."""

    def leave_graphs(self, off: Collection[str]) -> None:
        """Switch off some `models.frameworks.(OTHER_)GRAPH_OPTIMIZERS` of later graphs."""
        if off:
            raise ModelError(
                ErrorCode.UNSUPPORTED, f"{self.name} has no graph optimizers to be switched off"
            )

    def graph_nodes(
        self, network: Any, optimizer: Any, batch: Batch
    ) -> Mapping[str, tuple[int, int]]:
        """Make a step; return its graph's nodes before and after its optimizers, by kind."""
        return {}

    def jit_compile(self, network: Any) -> bool | None:
        """Return whether XLA compiles the training step; None if there is no such choice."""
        return None

    @abstractmethod
    def synchronise(self) -> None:
        """Wait until the device has finished."""

    @abstractmethod
    def peak_device_bytes(self) -> int | None:
        """Return the peak bytes on the accelerator since `reset_peak`; None on the CPU."""

    def reset_peak(self) -> bool:
        """Restart the peak of `peak_device_bytes`; return False if that is not possible."""
        return False
