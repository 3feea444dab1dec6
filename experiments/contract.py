"""Contracts: what a study is, what a workload does for it, what a cell is told and promises."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from experiments.config import settings as settings_
from experiments.config.settings import CampaignSettings
from experiments.metrics import Outcome

if TYPE_CHECKING:
    from experiments.cell.checkpoint import TrainingState
    from experiments.comparison.report.sections import Section
    from experiments.comparison.verdicts.findings import Comparison as Comparison
    from experiments.config.console import Table
    from models.contract import Array, Batch, Framework, Weights
    from models.parity import Side
    from tracking.records import Record
else:  # studies annotate with it; importing it would import pandas
    Comparison = Any

# A message of a child whose framework does not see the device that it is to use.
NO_DEVICE = "no_device"
# What a check found that its framework sees, where it was to open `auto`.
DEVICE = "device"
Progress = Callable[[str, int, int | None], None]
S = TypeVar("S", bound=CampaignSettings)


@dataclass(frozen=True)
class Treatment:
    """One cell of every block: its framework, its stage of the workload, its own settings.

    settings: levels of the user's settings, and the parameters that the study sets.
    group: what is compared with what; a group's cells run one after the other.
    control: why it is there, for a cell without a verdict ("A/A"); empty for what is compared.
    sensed: whether the sensors are read while it runs.
    environment: variables of its cells' processes; None: one that they do not have.
    """

    name: str
    framework: str
    stage: str = "train"
    settings: Mapping[str, Any] = field(default_factory=dict)
    group: str = ""
    control: str = ""
    sensed: bool = True
    environment: Mapping[str, str | None] = field(default_factory=dict)

    def merged(self, settings: S) -> S:
        """Return the settings of its cells: the user's, with its own values and parameters."""
        return settings_.of_cell(settings, self.settings)


@dataclass(frozen=True)
class Extra:
    """Results that a study adds to its verdicts.

    sentences, tables: for the terminal. files: name -> text, stored with the report.
    sections: tables of the report.
    """

    sentences: list[str]
    tables: Sequence[Table] = ()
    files: Mapping[str, str] = field(default_factory=dict)
    metrics: Mapping[str, float] = field(default_factory=dict)
    sections: Sequence[Section] = ()


@dataclass(frozen=True)
class Scaling:
    """How the training of a study scales with the batch size.

    examples: the name in `DatasetInfo.counts` of the examples of an epoch.
    measured_steps: the fewest steps after the warm-up.
    """

    examples: str
    measured_steps: int = 12


def _no_texts(_: Any) -> tuple[str, ...]:
    return ()


@dataclass(frozen=True, kw_only=True)
class Study:
    """An experiment that can be run, as data; checked when its file is imported.

    name: of its file. settings: what users set. workload: the folder with its stages.
    models: the networks that a campaign measures; the parity gate proves them equal.
    outcomes: what is judged, in the order of the report; primary: one to three of them.
    factor: what is compared. baseline: its level that others are judged against; None: the first.
    treatments: its cells; None: every framework, and the controls.
    strata: columns whose values are judged separately, never pooled.
    allowed_to_differ: settings in which compared cells differ besides the factor.
    side: what the parity gate takes for a treatment, where sides differ in more than a framework.
    scaling: how long a training is at another batch size; None: trainings have no length.
    grows_with: the setting that memory grows with, where running out of it is a result.
    warnings: what a user should know before the first cell.
    also: what the report has besides verdicts. published, source: figures that it quotes.
    """

    name: str
    title: str
    workload: str
    settings: type[CampaignSettings]
    presets: Mapping[str, Mapping[str, Any]]
    models: Callable[[Any], tuple[str, ...]]
    outcomes: tuple[Outcome, ...]
    primary: tuple[str, ...]
    factor: str = "framework"
    baseline: Callable[[Any], str] | None = None
    treatments: Callable[[Any], tuple[Treatment, ...]] | None = None
    strata: Callable[[Any], tuple[str, ...]] = _no_texts
    allowed_to_differ: tuple[str, ...] = ()
    side: Callable[[Treatment], Side] | None = None
    scaling: Scaling | None = None
    grows_with: str = ""
    warnings: Callable[[Any], tuple[str, ...]] = _no_texts
    also: Callable[[Any, Comparison, Progress], Extra] | None = None
    published: tuple[Mapping[str, str], ...] = ()
    source: str = ""

    def __post_init__(self) -> None:
        """Refuse a study that could not run: presets of unknown settings, unknown outcomes."""
        known = {one.name for one in settings_.for_users(self.settings)}
        for preset, values in self.presets.items():
            if unknown := values.keys() - known:
                raise TypeError(
                    f"study {self.name}: preset {preset} sets unknown {sorted(unknown)}"
                )
        if "demo" not in self.presets:
            raise TypeError(f"study {self.name} has no preset 'demo'")
        if unknown := set(self.primary) - {one.metric for one in self.outcomes}:
            raise TypeError(
                f"study {self.name}: primary {sorted(unknown)} is not among its outcomes"
            )


@dataclass(frozen=True, kw_only=True)
class Workload:
    """What the parent does for a kind of work; its stages are modules with a function `run`.

    prepare: checks settings and data, and makes the inputs of the cells; raises WrongCall.
    after_checks: adds what the frameworks' checks reported. after_extraction: warnings about it.
    """

    prepare: Callable[[Any, Progress], Prepared]
    after_checks: Callable[[Prepared, Sequence[Mapping[str, str]]], Prepared] | None = None
    after_extraction: Callable[[Any, Prepared], tuple[str, ...]] | None = None


@dataclass(frozen=True)
class Job:
    """A piece of work of its own process: the stage's name, its framework and what only it is told."""

    stage: str
    framework: str
    inputs: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class DatasetInfo:
    """What MLflow's dataset panel shows; `counts` becomes its profile, `columns` its schema (name → MLflow type)."""

    name: str
    digest: str
    source: str
    counts: Mapping[str, int]
    columns: Mapping[str, str]


@dataclass(frozen=True)
class Prepared:
    """What the parent found out. `inputs` go to every cell; `before` run once, ahead of the blocks.

    `warnings` are said in the terminal, in the tag `warnings` and on top of the report.
    `files`: name → text, the campaign's artifacts. `of_treatment`: the same of the treatments whose settings change their data.
    `refused`: treatments that the parity gate does not call equal, and what differs: they are not measured.
    `left_out`: pictures and folders that are not read, each with the reason.
    """

    dataset: DatasetInfo
    inputs: Mapping[str, Any]
    before: tuple[Job, ...] = ()
    warnings: tuple[str, ...] = ()
    tags: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)
    of_treatment: Mapping[str, Prepared] = field(default_factory=dict)
    refused: Mapping[str, str] = field(default_factory=dict)
    left_out: tuple[str, ...] = ()


@dataclass(frozen=True)
class Node:
    """Machine of a job that has several. command: words before a command that is to run there."""

    name: str
    address: str
    command: tuple[str, ...] = ()


@dataclass(frozen=True)
class CellSpec:
    """All that a child is told, as JSON. Paths are absolute but for what records carry: those are relative to `journal`.

    cpus: those that it may run on; none: as its parent may. in_turns: whether other cells of its block are alive beside it.
    nodes: machines that it may use, this one first; none: this one alone.
    environment: variables of its process; None: one that it does not have.
    clock: what its parent's clock began with, see `tracking.clock`; 0: its own.
    """

    run: str
    workload: str
    stage: str
    framework: str
    device: str
    threads: int
    block: int
    settings: dict[str, Any]
    inputs: dict[str, Any]
    journal: str
    folder: str
    checkpoint: str
    experiment: str = ""
    campaign: str = ""
    cpus: tuple[int, ...] = ()
    in_turns: bool = False
    nodes: tuple[Node, ...] = ()
    environment: Mapping[str, str | None] = field(default_factory=dict)
    clock: float = 0.0

    @classmethod
    def of(cls, told: Mapping[str, Any]) -> CellSpec:
        """From JSON, where more may be told than a cell knows."""
        nodes = tuple(Node(**node | {"command": tuple(node["command"])}) for node in told["nodes"])
        return cls(**{known.name: told[known.name] for known in fields(cls)} | {"nodes": nodes})

    @property
    def path(self) -> Path:
        """Folder for the run's own files."""
        return Path(self.journal) / self.folder


class Output(Protocol):
    """The child's connection to its parent. waited_seconds: for its turn, so far; 0 where it takes none."""

    @property
    def waited_seconds(self) -> float: ...

    def record(self, record: Record) -> None: ...

    def metrics(self, values: Mapping[str, float], step: int = 0) -> None: ...

    def artifact(self, name: str, folder: str = "") -> None: ...

    def progress(self, phase: str, done: int, total: int | None) -> None: ...

    def ranks(self, processes: Mapping[int, int]) -> None:
        """The processes that train together, of which the sensors of each are kept: rank -> process id."""

    def begin(self, place: int = 1) -> None:
        """What is timed begins now, and ends with the next `window`: others' use of the machine is read at both moments.

        place: of the phase among those of the block: where cells take turns, one that comes to it early waits for the others.
        """

    def turn(self, steps: int = 1) -> None:
        """So many steps or requests are over, and no clock runs: where cells take turns, the others may be next."""

    def window(
        self,
        phase: str,
        start_seconds: float,
        end_seconds: float,
        examples: int,
        prefix: str = "",
        pauses: Sequence[tuple[float, float]] = (),
    ) -> None:
        """What was timed when, for the sensors; `prefix` goes before the names of their metrics.

        pauses: what lay in between and is no part of it, in order: began and ended.
        """


class Task(Protocol):
    """A training as the measurement sees it: NumPy in, NumPy out, the same for every framework."""

    model: str
    spec: Any
    steps_per_epoch: int
    examples_a_step: int
    parameters: tuple[int, int]

    def initial_weights(self) -> Weights: ...

    def training(self, epoch: int, framework: Framework) -> Iterable[Batch]: ...

    def validation(self) -> Iterable[Batch]: ...

    def learning_rate(self, epoch: int) -> float | None:
        """For this epoch, from 0; None where it stays what it was."""

    def validate(self, framework: Framework, network: Any) -> dict[str, float]:
        """Metrics after every epoch, `val/loss` among them."""

    def request(self, batch_size: int, index: int) -> tuple[Array, ...]: ...

    def answer(self, framework: Framework, network: Any, request: tuple[Any, ...]) -> Any:
        """request: as the framework has placed it."""

    def derived(self, metrics: Mapping[str, float], state: TrainingState) -> dict[str, float]: ...

    def quality(self, framework: Framework, network: Any) -> dict[str, float]: ...

    def save_artifacts(self, framework: Framework, network: Any, output: Output) -> None: ...
