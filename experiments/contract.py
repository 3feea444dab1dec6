"""Contracts of studies, workloads and cells."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from experiments.config.settings import (
    SMOKE,
    CampaignSettings,
    cell_values,
    for_users,
    from_values,
    parameter_names,
)
from experiments.metrics import Outcome
from tracking.records import RunKind

if TYPE_CHECKING:
    from experiments.cell.checkpoint import TrainingState
    from experiments.comparison.report.sections import Section
    from experiments.comparison.verdicts.findings import Comparison as Comparison
    from models.contract import Array, Batch, Framework, Weights
    from models.parity import Side
    from tracking.records import Point, Record, StoredRun
else:  # studies annotate with it; importing it would import pandas
    Comparison = Any

# Message of a child whose framework does not see its device.
NO_DEVICE = "no_device"
# Result of a check: the device that its framework sees, if it opened `auto`.
DEVICE = "device"
# Results of a check: seconds of a training step, and of a request with making its inputs.
STEP_SECONDS, REQUEST_SECONDS = "check.step_seconds", "check.request_seconds"
# File of a cell's folder, from which the parent counts FLOPs.
WORK = "work.json"
# Input of a check that measures the limits of the machine: FLOP/s that are enough; result: JSON of
# `Limits`.
LIMITS = "check.limits"
# Input of a runtime's cells: folder of exported files. Prefix of a check's results: reasons why
# networks are not exported, by the beginning of the names of their treatments.
EXPORTED, NOT_EXPORTED = "exported", "check.not_exported."
# Tag of a cell: processes of its program that had to be ended.
OUTLIVED = "outlived"
Progress = Callable[[str, int, int | None], None]
S = TypeVar("S", bound=CampaignSettings)
S_co = TypeVar("S_co", bound=CampaignSettings, covariant=True)
# Settings of the preset `smoke`, in studies that have them; all others are those of `demo`.
SMALLEST: Mapping[str, Any] = {
    "blocks": 1,
    "epochs": 1,
    "inference_requests": 20,
    "seconds": 0.1,
    "others_limit_percent": 100.0,
    "cool_down_seconds": 0.0,
}


@dataclass(frozen=True)
class Treatment:
    """Combination of levels that every block measures once.

    framework: empty for cells that open none.
    settings: levels of the user's settings, and the parameters that the study sets.
    group: compared with each other; cells of a group run one after the other.
    control: label of a cell without a verdict ("A/A"), or empty.
    environment: variables of its cells' processes; None removes one.
    version: level of `levels`, whose packages its cells' interpreter has.
    """

    name: str
    framework: str
    stage: str = "train"
    settings: Mapping[str, Any] = field(default_factory=dict)
    group: str = ""
    control: str = ""
    environment: Mapping[str, str | None] = field(default_factory=dict)
    version: str = ""

    def merged(self, settings: S) -> S:
        return replace(settings, **self.settings)


@dataclass(frozen=True)
class ReportAddition:
    """Results that a study adds to its verdicts.

    sentences: for the terminal and the report. files: name -> text, stored with the report.
    sections: tables of the report.
    """

    sentences: Sequence[str] = ()
    files: Mapping[str, str] = field(default_factory=dict)
    sections: Sequence[Section] = ()


@dataclass(frozen=True)
class Scaling:
    """Rule by which a training's length depends on the batch size.

    examples: the key in `DatasetInfo.counts` of the examples of an epoch.
    measured_steps: the fewest steps after the warm-up.
    """

    examples: str
    measured_steps: int = 12


@dataclass(frozen=True, kw_only=True)
class Study:
    """Experiment as data, checked when its file is imported.

    name: of its file. settings: the user's. workload: the folder with its stages.
    presets: `demo` and others; every study also has `smoke`, a run of
    the smallest size without a verdict. demo_on_gpu: values of `demo` where all cells run on a GPU.
    models: the networks that a campaign measures; the parity gate proves them equal.
    outcomes: judged metrics, in the order of the report; primary: one to three of them.
    factor: the compared setting. baseline: its level that others are judged against; None: the
    first. treatments: its cells; None: every framework, and the controls.
    strata: columns whose values are judged separately, never pooled.
    allowed_to_differ: settings in which compared cells differ besides the factor.
    side: the parity gate's side of a framework with settings, if they shape the network.
    scaling: length of a training at other batch sizes; None: trainings have no length.
    grows_with: the setting that memory grows with, if running out of it is a result.
    warnings: shown before the first cell.
    also: parts of the report besides verdicts.
    reported: outcomes that the user's code reports; every other metric of a run is judged, too.
    primary_of: the user's primary outcomes, if settings contain them otherwise than as `primary`.
    title_of: title of a campaign whose settings name what is compared; None: `title`.
    source_of: folder of the measured code, if it is the user's; None: this project.
    takes_runtimes: whether it compares the inference of runtimes, which do not train.
    published, source: figures that it quotes.
    """

    name: str
    title: str
    workload: str
    settings: type[CampaignSettings]
    presets: Mapping[str, Mapping[str, Any]]
    demo_on_gpu: Mapping[str, Any] = field(default_factory=dict)
    models: Callable[[Any], tuple[str, ...]]
    outcomes: tuple[Outcome, ...]
    primary: tuple[str, ...]
    factor: str = "framework"
    baseline: Callable[[Any], str] | None = None
    treatments: Callable[[Any], tuple[Treatment, ...]] | None = None
    strata: Callable[[Any], tuple[str, ...]] = lambda _: ()
    allowed_to_differ: tuple[str, ...] = ()
    side: Callable[[str, Any], Side] | None = None
    scaling: Scaling | None = None
    grows_with: str = ""
    warnings: Callable[[Any], tuple[str, ...]] = lambda _: ()
    also: Callable[[Any, Comparison], ReportAddition] | None = None
    reported: Callable[[Any], tuple[Outcome, ...]] | None = None
    primary_of: Callable[[Any], tuple[str, ...]] = lambda _: ()
    title_of: Callable[[Any], str] | None = None
    takes_runtimes: bool = False
    source_of: Callable[[Any], Path] | None = None
    published: tuple[Mapping[str, str], ...] = ()
    source: str = ""

    def __post_init__(self) -> None:
        """Refuse a study that names settings or outcomes that do not exist."""
        offered = {field.name for field in for_users(self.settings)}
        of_cells = offered | parameter_names(self.settings) | {"framework"}
        for preset, values in {**self.presets, "demo on a GPU": self.demo_on_gpu}.items():
            self._refuse_unknown(f"preset {preset}", values.keys() - offered)
        if "demo" not in self.presets:
            raise TypeError(f"study {self.name} has no preset 'demo'")
        smallest = {name: value for name, value in SMALLEST.items() if name in offered}
        smoke = {**self.presets["demo"], **smallest, **self.presets.get(SMOKE, {})}
        object.__setattr__(self, "presets", {**self.presets, SMOKE: smoke})
        self._refuse_unknown("factor", {self.factor} - of_cells)
        self._refuse_unknown("allowed_to_differ", set(self.allowed_to_differ) - of_cells)
        self._refuse_unknown("grows_with", {self.grows_with} - of_cells - {""})
        metrics = {outcome.metric for outcome in self.outcomes}
        self._refuse_unknown("primary", set(self.primary) - metrics)

    def _refuse_unknown(self, where: str, names: Collection[str]) -> None:
        if names:
            raise TypeError(f"study {self.name}: {where} names unknown {sorted(names)}")


@dataclass(frozen=True, kw_only=True)
class Workload:
    """Parent's part of a kind of work; its stages are modules with a function `run`.

    prepare: checks settings and data, and makes the inputs of the cells; raises UsageError.
    not_available: returns why a cell with these settings cannot run while others can, or "".
    after_checks: adds the results of the frameworks' checks. shortened: returns the settings with a
    length of training by these results. measured_in_a_row: returns the steps between two other
    works of a cell; None if steps cannot run freely. after_extraction: returns warnings.
    after_cell: returns metrics and tags of a cell that has ended, by its run and inputs, from runs
    that its program made in MLflow; that program then finds the campaign's server and experiment.
    end_leftovers: ends processes that killed cells below a folder have left running; returns their
    names as a text, empty if there were none.
    """

    prepare: Callable[[Any, Progress], Prepared]
    not_available: Callable[[Any], str] = lambda _: ""
    after_checks: Callable[[Prepared, Sequence[Mapping[str, str]]], Prepared] | None = None
    shortened: Callable[[Any, Prepared, Sequence[Mapping[str, str]]], Any] | None = None
    measured_in_a_row: Callable[[Any, Prepared], int] | None = None
    after_extraction: Callable[[Any, Prepared], tuple[str, ...]] | None = None
    after_cell: (
        Callable[[str, Mapping[str, Any], RunStore], tuple[Mapping[str, float], Mapping[str, str]]]
        | None
    ) = None
    end_leftovers: Callable[[Path], str] | None = None


@dataclass(frozen=True)
class Job:
    """Stage that runs in a separate process before the cells, with its inputs.

    name: of its run, next to the kind of that run. is_needed: whether cells need its result; else
    it prepares a machine, and runs on every node of a cluster.
    """

    stage: str
    framework: str
    inputs: Mapping[str, Any] = field(default_factory=dict)
    name: str = ""
    kind: RunKind = RunKind.EXTRACTION
    is_needed: bool = True


@dataclass(frozen=True)
class DatasetInfo:
    """Content of MLflow's dataset panel.

    name: empty for commands, which are no data set. counts: its profile. columns: its schema,
    name → MLflow type.
    """

    name: str
    digest: str
    source: str
    counts: Mapping[str, int]
    columns: Mapping[str, str]


@dataclass(frozen=True)
class Prepared:
    """Result of a workload's preparation.

    inputs: sent to every cell. before: run once, ahead of the blocks.
    warnings: for the terminal, the tag `warnings` and the report.
    files: name → text, the campaign's artifacts.
    of_treatment: the same of treatments whose settings change their data.
    not_available: treatments that cannot run, and the reason.
    left_out: pictures and folders that are not read, each with the reason.
    folders: that cells need; the nodes of a cluster have to share them.
    """

    dataset: DatasetInfo
    inputs: Mapping[str, Any]
    before: tuple[Job, ...] = ()
    warnings: tuple[str, ...] = ()
    tags: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)
    of_treatment: Mapping[str, Prepared] = field(default_factory=dict)
    not_available: Mapping[str, str] = field(default_factory=dict)
    left_out: tuple[str, ...] = ()
    folders: tuple[str, ...] = ()


@dataclass(frozen=True)
class Node:
    """Machine of a job that has several. command: prefix of commands that run there."""

    name: str
    address: str
    command: tuple[str, ...] = ()


@dataclass(frozen=True)
class CellSpec(Generic[S_co]):
    """Message that starts a child, as JSON.

    Paths are absolute, except those in records, which are relative to `journal`.

    settings: of its treatment, with the timing that `auto` stands for.
    cpus: those that it may run on; empty: as its parent.
    in_turns: whether other cells of its block are alive at the same time.
    nodes: machines that it may use, this one first; empty: only this one.
    environment: variables of its process; None removes one.
    clock: start of its parent's clock, see `tracking.clock`; 0: it starts its own.
    """

    run: str
    workload: str
    stage: str
    framework: str
    device: str
    threads: int
    block: int
    settings: S_co
    inputs: dict[str, Any]
    journal: str
    folder: str
    checkpoint: str
    cpus: tuple[int, ...] = ()
    in_turns: bool = False
    nodes: tuple[Node, ...] = ()
    environment: Mapping[str, str | None] = field(default_factory=dict)
    clock: float = 0.0
    study: str = ""

    @classmethod
    def from_values(cls, values: Mapping[str, Any], kind: type[S]) -> CellSpec[S]:
        """Return a cell from JSON values, which may have more than its fields."""
        settings = from_values(kind, values["settings"])
        nodes = tuple(
            Node(**node | {"command": tuple(node["command"])}) for node in values["nodes"]
        )
        rest = {field.name: values[field.name] for field in fields(cls)}
        return CellSpec(**rest | {"settings": settings, "nodes": nodes})

    def to_values(self) -> dict[str, Any]:
        """Return JSON values, with the settings that are sent to cells."""
        return {**asdict(self), "settings": cell_values(self.settings)}

    @property
    def path(self) -> Path:
        return Path(self.journal) / self.folder


AnyCell = CellSpec[CampaignSettings]


class RunStore(Protocol):
    """Tracking server, as far as a workload reads it after a cell."""

    def tagged(self, key: str, value: str) -> list[StoredRun]:
        """Return the runs of all experiments with this tag.

        Args:
            key: Name of the tag.
            value: Its text.
        """

    def points(self, run_id: str, key: str) -> list[Point]:
        """Return the whole history of a metric.

        Args:
            run_id: Id of a run.
            key: Name of the metric.
        """


@dataclass(frozen=True)
class Limits:
    """Limits of the machine, as a framework met them.

    threads: 0 for the framework's default. peak_flops: of products of matrices, FLOP/s.
    bandwidth: of the memory, bytes/s; 0 if it is not known.
    """

    framework: str
    device: str
    precision: str
    threads: int
    peak_flops: float
    bandwidth: float

    @property
    def place(self) -> tuple[str, str, int]:
        """Settings that decide on them besides the machine."""
        return self.device, self.precision, self.threads


@dataclass
class TimedPhase:
    """Interval that is timed.

    Attributes:
        began: Begin by the clock of `tracking.clock`, in seconds.
        examples: In it, which its end sets.
        pauses: Begin and end of parts that do not count, in order.
    """

    began: float
    examples: int = 0
    pauses: Sequence[tuple[float, float]] = ()


class Output(Protocol):
    """Connection of a child to its parent."""

    def record(self, record: Record) -> None: ...

    def metrics(self, values: Mapping[str, float], step: int = 0) -> None:
        """Report metrics of the cell's run.

        Args:
            values: Values by the name of the metric.
            step: Training step after which they hold.
        """

    def artifact(self, name: str, folder: str = "") -> None:
        """Record a file or folder as an artifact of the cell's run.

        Args:
            name: Its path below the cell's folder, where it has to exist.
            folder: Folder of the run's artifacts that it goes to; empty: the topmost.
        """

    def progress(self, phase: str, done: int, total: int | None) -> None:
        """Show how far a phase has come. Calls in quick succession may be dropped.

        Args:
            phase: Name of the phase, as it is displayed.
            done: Steps, or calls, so far.
            total: Steps of the whole phase; None if they are not known.
        """

    def ranks(self, processes: Mapping[int, int]) -> None:
        """Report the processes that train together, which the sensors then read too.

        Args:
            processes: Process id by rank.
        """

    def phase(
        self, name: str, prefix: str = "", place: int = 1
    ) -> AbstractContextManager[TimedPhase]:
        """Time a phase, which the sensors summarise.

        The load of other programs is read at its beginning and its end. Where cells take turns, it
        begins once the other cells of the block have come to it.

        Args:
            name: Name of the phase.
            prefix: Of the names of the sensors' metrics.
            place: Of the phase among those of the block.
        """

    def turn(self, steps: int = 1) -> None:
        """Report finished steps or requests while no clock runs: another cell may be next.

        If the cell's turn is over, the call returns when the next one begins.

        Args:
            steps: Steps or requests since the last call.

        Raises:
            EvenhandError: The campaign gives no further turn.
        """

    def end_turns(self) -> None:
        """Work side by side with cells that took turns: nothing is timed any more."""

    def working_seconds(self) -> float:
        """Return the seconds of a clock that stands still while the cell waits for its turn."""


class Task(Protocol):
    """Training in terms of NumPy arrays, the same for every framework.

    answer_length: of a request, in steps; 0 if it is one forward pass.
    """

    model: str
    spec: Any
    answer_length: int
    steps_per_epoch: int
    examples_a_step: int
    parameters: tuple[int, int]

    def initial_weights(self) -> Weights:
        """Return the weights that a training starts from.

        Returns:
            Arrays by the name of the parameter, the same for every framework in a block.
        """

    def training(self, epoch: int, framework: Framework) -> Iterable[Batch]:
        """Return the batches of an epoch, in an order that depends on seed, block and epoch only.

        Args:
            epoch: Number of the epoch, from 0.
            framework: Framework whose input pipeline reads the files, if the settings ask for it.

        Returns:
            `steps_per_epoch` batches of `examples_a_step` examples.
        """

    def validation(self) -> Iterable[Batch]:
        """Return the batches of the held-out examples, in the same order every time.

        Returns:
            Batches in which padding has weight 0.
        """

    def learning_rate(self, epoch: int) -> float | None:
        """Return the learning rate of an epoch.

        Args:
            epoch: Number of the epoch, from 0.

        Returns:
            The rate from its first step on; None leaves it unchanged.
        """

    def validate(self, framework: Framework, network: Any) -> dict[str, float]:
        """Evaluate a network on the held-out examples, after an epoch.

        Args:
            framework: Framework of the network.
            network: Network as it is trained so far.

        Returns:
            Values by the name of the metric, with `val/loss`.
        """

    def request(self, batch_size: int, index: int) -> tuple[Array, ...]:
        """Return the inputs of a request, as those of a `Batch`.

        Args:
            batch_size: Examples of the request, the first axis of each array.
            index: Number of the request, from 0.
        """

    def answer(self, framework: Framework, network: Any, request: tuple[Any, ...]) -> Any:
        """Answer a request, which is timed as a whole.

        Args:
            framework: Framework of the network.
            network: Trained network.
            request: Inputs that the framework has placed on its device.

        Returns:
            The answer in host memory: the device has finished.
        """

    def derived(self, metrics: Mapping[str, float], state: TrainingState) -> dict[str, float]:
        """Return further metrics of a training.

        Args:
            metrics: Summary of the training, by the name of the metric.
            state: State after the last epoch.
        """

    def quality(self, framework: Framework, network: Any) -> dict[str, float]:
        """Return the metrics of the trained network that no validation has after every epoch.

        Args:
            framework: Framework of the network.
            network: Trained network.
        """

    def save_artifacts(self, framework: Framework, network: Any, output: Output) -> None:
        """Save files about the trained network in the cell's folder.

        Args:
            framework: Framework of the network.
            network: Trained network.
            output: Records the files as artifacts.
        """
