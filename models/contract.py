"""What a model pair and a framework promise: the only vocabulary that experiments use to speak of either."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar, Protocol, SupportsFloat

from numpy.typing import NDArray

from models.errors import ModelError as ModelError
from models.variant import Variant as Variant

Array = NDArray[Any]
Weights = dict[str, Array]
Span = tuple[float, float]
# What it gives is a context: a step, to a profiler.
Mark = Callable[[], AbstractContextManager[object]]
PROFILED = "profiled"


def check_weights(weights: Mapping[str, Array], shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Raises ModelError naming the first missing, superfluous or misshapen array."""
    for name, shape in shapes.items():
        if name not in weights:
            others = (f", {other!r} is superfluous" for other in weights if other not in shapes)
            sizes = f"the network has {len(shapes)} arrays, the weights {len(weights)}"
            raise ModelError(f"weights: {name!r} is missing{next(others, '')}; {sizes}")
        if tuple(weights[name].shape) != tuple(shape):
            raise ModelError(
                f"weights: {name!r} has shape {tuple(weights[name].shape)}, the network wants {tuple(shape)}"
            )
    for name in weights:
        if name not in shapes:
            raise ModelError(f"weights: {name!r} is superfluous; the network has no such array")


def check_sizes(model: str, spec: Any, **least: int) -> None:
    """Raises ModelError naming the first size of a network below its least, or a dropout that is not in [0, 1)."""
    values = asdict(spec)
    for name, smallest in least.items():
        if values[name] < smallest:
            raise ModelError(f"{model}: {name} must be at least {smallest}, not {values[name]}")
    if not 0 <= values.get("dropout", 0) < 1:
        raise ModelError(f"{model}: dropout must be in [0, 1), not {values['dropout']}")


@dataclass(frozen=True)
class OptimizerConfig:
    """How weights are updated. name: `adam`, `sgd`: PyTorch's semantics in every framework; `adam-stock`: each framework's own.

    momentum and weight_decay (L2, in the gradient) are SGD's.
    """

    name: str
    learning_rate: float
    momentum: float = 0.0
    weight_decay: float = 0.0

    NAMES: ClassVar[tuple[str, ...]] = ("adam", "sgd", "adam-stock")

    def __post_init__(self) -> None:
        if self.name not in self.NAMES:
            raise ModelError(f"no optimizer {self.name!r}; have {', '.join(self.NAMES)}")
        if self.name != "sgd" and (self.momentum or self.weight_decay):
            raise ModelError(f"momentum and weight decay are those of sgd, not of {self.name}")


@dataclass(frozen=True)
class Batch:
    """NumPy arrays of one optimizer step; the same bytes go to every framework.

    inputs: what the network's forward takes, in order. targets: int32 (n,) class indices, or what the network's own loss takes.
    weights: float32 (n,), 0 for padding. even: whether a step may take all weights for 1, so that the loss is a plain mean; None
    where nobody has looked.
    """

    inputs: tuple[Array, ...]
    targets: Array
    weights: Array
    even: bool | None = None


@dataclass(frozen=True)
class Reads:
    """What real examples of a network of sequences are made of, where its spec has `reads` and `batch_of`.

    kind: the module of `experiments.datasets.sequences` that reads them; sizes: what it is told. longest: that the network takes
    of any part; None where it has no bound.
    """

    kind: str
    sizes: Mapping[str, int]
    longest: int | None = None


class EvenSoFar:
    """Whether all weights of every batch so far were 1.

    The first other weight decides for all that come: two programs would else be compiled, one of them in the midst of a training.
    """

    def __init__(self) -> None:
        self._so_far = True

    def __call__(self, batch: Batch) -> bool:
        """Looks at a batch that is placed."""
        if self._so_far:
            self._so_far = bool((batch.weights == 1).all()) if batch.even is None else batch.even
        return self._so_far


@dataclass(frozen=True)
class ImageFiles:
    """Images on disk for a framework's own input pipeline: which, in which order, and how each is moved before it is normalised.

    images: a .npy file, uint8 (…, side, side, channels). rows: int64 (n,); labels: int32 (n,), of these rows.
    files: bytes (n,), the JPEG or PNG of 8 bits without transparency that a row was made of, to be decoded, turned upright and
    brought to side × side by a bilinear filter with antialiasing; empty where the row of `images` is to be read.
    orientations: int8 (n,), EXIF's, 1…8. shifts: int (n, 2), where the window begins in the picture with `pad` black pixels
    around it; mirrored: bool (n,), left to right after that. mean, deviation: float32 (channels,), of pixels scaled to 0…1.
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
    """What a framework's own profiler saw: spans (start, end) in seconds on a clock of its own, of any thread or stream.

    steps: what was marked. operators: by kind, those that compute and inside of which no other ran; on a GPU its kernels.
    composed: operators inside of which others ran. copies: those that only move values. unrecorded: code that runs operators
    which the profiler does not show one by one. framework: all else of the framework's own code. counts: over all steps, `ops`
    (operators, copies among them) and `launches` (kernels of a GPU or of XLA). uncounted: why one of them is not known.
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
class Dropping:
    """A layer at which training drops, as the parity gate sees it.

    given: what the layer is given where nothing is dropped before it, channels last, flat; of several calls, one after the other.
    drawn: what it makes of ones (n, …), channels last, 2 along every axis along which it is given several.
    """

    given: Array
    drawn: Array


class StepClock(Protocol):
    """Times steps one by one, or windows of several that the device is not waited for in between.

    `begin` and `end` are called with nothing of the framework pending on the device.
    """

    @property
    def window_steps(self) -> int:
        """Steps of the window that comes next, at least 1. The last of an epoch may have fewer."""

    def begin(self) -> None: ...

    def end(self, *losses: SupportsFloat) -> None:
        """losses: of the window's steps, in order. The last is read, the clock stops, and the others are read after that."""

    def on_device(self, seconds: Sequence[float]) -> None:
        """What each step but the first of the window that ended last took by the device's clock, if it has one."""


class StepEvents(Protocol):
    """Marks on the device's own time line, which nothing waits for: one after every step of a window."""

    def mark(self) -> None: ...

    def seconds(self) -> list[float]:
        """Return the seconds from mark to mark: of all steps but the window's first. The device has finished.

        The device was idle when the window began: the first step's time would contain the wait for the host.
        """


class Framework(ABC):
    """One framework in one process. The loss is the weighted mean cross-entropy on logits: sum(w·ce) / sum(w).

    A network with a method `example_losses(inputs, outputs, targets)`, whose result is (n,), has these in its place.
    A network is whatever the framework calls one; nothing outside the adapter looks inside.
    Weights have the names and layouts of a PyTorch state_dict in every framework (kernels OIHW, linear OI, LSTM gates i f g o).
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
        """name: with its variant, as in `models.frameworks.available()`. threads: 0 leaves them alone.

        conv_algorithm: how a GPU's library chooses the algorithm of a convolution, see `models.frameworks.CONV_ALGORITHMS`.
        """

    @abstractmethod
    def versions(self) -> dict[str, str]:
        """Package versions and the switches that change speed (threads, TF32, determinism), for environment.json."""

    @abstractmethod
    def build(self, model: str, spec: Any) -> Any:
        """The network `models.<model>.<architecture>.build(spec)` on the device."""

    @abstractmethod
    def parameter_counts(self, network: Any) -> tuple[int, int]:
        """(trainable, non-trainable) parameters: buffers such as running statistics are non-trainable."""

    @abstractmethod
    def weights(self, network: Any) -> Weights: ...

    @abstractmethod
    def load_weights(self, network: Any, weights: Mapping[str, Array]) -> None:
        """Raises ModelError naming the first missing, superfluous or misshapen array."""

    @abstractmethod
    def optimizer(self, network: Any, config: OptimizerConfig) -> Any:
        """What updates the network. Raises ModelError for an optimizer that is missing."""

    @abstractmethod
    def optimizer_implementation(self, optimizer: Any) -> str:
        """Return which code updates the weights: its class, and the kernels that ran, found on tiny weights.

        For the report. Called after what is measured, as it may run and load kernels.
        """

    @abstractmethod
    def set_learning_rate(self, optimizer: Any, learning_rate: float) -> None:
        """Sets the learning rate from the next step on."""

    @abstractmethod
    def optimizer_state(self, optimizer: Any) -> Weights: ...

    @abstractmethod
    def load_optimizer_state(self, optimizer: Any, state: Mapping[str, Array]) -> None: ...

    def read(self, files: ImageFiles, workers: int) -> Iterable[Batch]:
        """Whole batches by the framework's own input pipeline, `workers` at a time, in tensors of its own for `place`.

        Called once an epoch: what can serve all of them, as a worker process, is kept. Raises ModelError naming a damaged file.
        """
        raise ModelError(f"{self.name} has no input pipeline of its own here")

    def profile(self, folder: Path, work: Callable[[Mark], object]) -> Profile:
        """Does the work under the framework's profiler, whose trace goes into the folder, as TensorBoard reads it.

        The work marks its steps. It is done once more where the profiler cannot time and count in one.
        """
        raise ModelError(f"{self.name} has no profiler here")

    @abstractmethod
    def place(self, batch: Batch) -> Batch:
        """The batch on the device, in the framework's own types and layout: a step on it converts and copies nothing."""

    @abstractmethod
    def place_inputs(self, inputs: tuple[Array, ...]) -> tuple[Any, ...]:
        """The same for the inputs of `infer` and `apply`."""

    @abstractmethod
    def train_step(self, network: Any, optimizer: Any, batch: Batch) -> Any:
        """One update, dropout on. May return before the device has finished; the loss handle is read with float()."""

    def train_epoch(
        self, network: Any, optimizer: Any, batches: Iterable[Batch], clock: StepClock
    ) -> None:
        """Every batch once, a window between `clock.begin()` and `clock.end(*losses)`, its batches made and placed before.

        A window is of one step, unless the clock asks for more: within it nothing waits for the device and no loss is read.
        """
        made = iter(batches)
        while window := [self.place(batch) for batch in islice(made, clock.window_steps)]:
            events = self.step_events(len(window)) if len(window) > 1 else None
            losses = []
            self.synchronise()
            clock.begin()
            for placed in window:
                losses.append(self.train_step(network, optimizer, placed))
                if events:
                    events.mark()
            self.synchronise()
            clock.end(*losses)
            if events:
                clock.on_device(events.seconds())
            window.clear()  # before the next batches are placed: the device holds those of one window

    @abstractmethod
    def evaluate(self, network: Any, batch: Batch) -> tuple[float, float]:
        """(sum of weighted cross-entropies, sum of weights), dropout off, no update."""

    @abstractmethod
    def gradients(self, network: Any, batch: Batch) -> Weights:
        """Gradient of the loss per trainable tensor, dropout off; for the parity gate."""

    @abstractmethod
    def dropping(self, network: Any, inputs: tuple[Array, ...], draws: int) -> dict[str, Dropping]:
        """What drops in one pass in training mode, by the layer's torch path, `draws` values each; for the parity gate.

        Layers that are never called, or are told that it is no training, are left out. Moves running statistics.
        """

    def layer_values(
        self,
        network: Any,
        inputs: tuple[Array, ...],
    ) -> dict[str, Array]:
        """Return fingerprints of what each layer takes and returns in one pass, nothing dropped.

        By torch path, in the order in which the layers return; see `models.layer_values`. For the
        parity gate, which names the first layer that differs. No layers here.
        """
        return {}

    @abstractmethod
    def drop_nothing(self, network: Any) -> None:
        """Sets the rate of every layer that drops to 0; for the parity gate, whose steps must not be random."""

    def unbiased(self, network: Any, inputs: tuple[Array, ...]) -> dict[str, int]:
        """Values a channel, N, by the path of each layer whose running variance is kept times N / (N - 1); none of them here.

        For the parity gate. Moves running statistics.
        """
        return {}

    @abstractmethod
    def infer(self, network: Any, inputs: tuple[Array, ...]) -> Array:
        """Forward outputs as NumPy, dropout off, compiled where the variant compiles."""

    @abstractmethod
    def apply(
        self, function: Callable[..., Any], network: Any, inputs: tuple[Array, ...], **options: int
    ) -> Array:
        """`function(network, *inputs, **options)` of a model's architecture file as NumPy: several passes, as in a search.

        Run as `infer` runs the network: dropout off, compiled where the variant compiles. Keras' functions are compiled as a
        whole. PyTorch's, whose loops are Python's, get `compiled` besides: it compiles the function that they hand to it.
        """

    @abstractmethod
    def compilations(self) -> int:
        """How many programs this process has traced or compiled so far; 0 where everything is run as it comes.

        A step on a batch of a new shape may begin with one: it is then no step like the others.
        """

    def graph_breaks(self) -> Mapping[str, int] | None:
        """How often this process left a graph for Python so far, by reason; None where what is compiled is compiled whole."""
        return None

    def compile_anew(self) -> None:  # noqa: B027 - most keep nothing
        """From now on nothing is taken that another process has compiled: every first step is one."""

    def leave_graphs(self, off: Collection[str]) -> None:
        """Graphs that are made from now on are left as they are by those of `models.frameworks.(OTHER_)GRAPH_OPTIMIZERS`."""
        if off:
            raise ModelError(f"{self.name} has no graph optimizers to be switched off")

    def graph_nodes(
        self,
        network: Any,
        optimizer: Any,
        batch: Batch,
    ) -> Mapping[str, tuple[int, int]]:
        """Nodes of a training step's graph before and after its optimizers, by kind; of no graph, none. Makes a step."""
        return {}

    def jit_compile(self, network: Any) -> bool | None:
        """Return whether XLA compiles the network's training step; None if this framework has no such choice."""
        return None

    def waits_in_step(self, network: Any) -> str:
        """Return what makes a training step wait for the device before its end; empty if nothing does."""
        return ""

    def step_events(self, steps: int) -> StepEvents | None:
        """Marks for so many steps that begin now; None where the framework has no events on this device."""
        return None

    @abstractmethod
    def synchronise(self) -> None:
        """Returns when the device has finished all it was given."""

    @abstractmethod
    def peak_device_bytes(self) -> int | None:
        """Return the peak bytes of arrays on the accelerator, since the process began or `reset_peak`; None on the CPU."""

    def reset_peak(self) -> bool:
        """Count the peak of `peak_device_bytes` from here on; called after the warm-up.

        Returns whether it did: False on the CPU, and where the framework cannot.
        """
        return False
