"""Records of a run, as the journal holds them and the server gets them."""

from __future__ import annotations

import dataclasses
import json
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

# Separates warnings in the tag `warnings` of campaigns and cells.
BETWEEN_WARNINGS = " · "
# Use by other programs of the CPUs that a cell may use, while it was timed.
OTHERS_CPU = "machine/others_cpu_percent"
# Share of samples in which other programs computed on its GPUs meanwhile.
OTHERS_GPU = "machine/others_gpu_percent"
LOADS = (OTHERS_CPU, OTHERS_GPU)
# What its threads and other programs needed beyond its CPUs, in percent of these.
OVERSUBSCRIBED = "machine/oversubscribed_percent"
# Tag: the network that was to be compiled and was not, or not as a whole.
RAN_EAGERLY = "ran_eagerly"
TOKENS_DIGEST = "tokens.digest"  # digest of the tokens of a language model
# Tags: whether XLA compiled the training step, and whether the framework's variant is to be.
JIT_COMPILE, JIT_PLANNED = "jit_compile", "jit_compile.planned"
# Tag of a run that a script made in MLflow: the cell whose command it was.
SCRIPT_OF = "evenhand.cell"
VANISHED = "its process ended without a message (killed, or the machine went down)"


class RunKind(StrEnum):
    """Tag `kind`: the kind of an MLflow run."""

    LAUNCH = "launch"
    CAMPAIGN = "campaign"
    SWEEP = "sweep"
    TRIAL = "trial"
    EXTRACTION = "extraction"
    WARM_UP = "warm_up"
    CELL = "cell"
    COMPARISON = "comparison"
    PARITY = "parity"


class RepeatCause(StrEnum):
    """Reason code of a cell that ended well and is measured once more."""

    BUSY_MACHINE = "busy_machine"
    ODD_BLOCK = "odd_block"


class RunOutcome(StrEnum):
    """Tag `outcome`: the end of a run; all but `ok` come with `outcome_reason`."""

    OK = "ok"
    OUT_OF_MEMORY = "out_of_memory"
    NOT_EQUAL = "not_equal"
    NOT_AVAILABLE = "not_available"
    FAILED = "failed"
    INTERRUPTED = "interrupted"
    PRUNED = "pruned"

    @property
    def status(self) -> str:
        """MLflow's status for this outcome."""
        if self is RunOutcome.OK:
            return "FINISHED"
        return "KILLED" if self in (RunOutcome.INTERRUPTED, RunOutcome.PRUNED) else "FAILED"


@dataclass(frozen=True)
class Point:
    """Value of a metric. `step`: its update, epoch or second."""

    key: str
    value: float
    step: int
    time_ms: int


@dataclass(frozen=True)
class RunOpened:
    """Beginning of a run. `run`: the journal's id, which becomes the tag `origin`."""

    run: str
    time_ms: int
    experiment: str
    name: str
    tags: dict[str, str] = field(default_factory=dict)
    params: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Tags:
    run: str
    values: dict[str, str]


@dataclass(frozen=True)
class Metrics:
    """Values of metrics. `detail`: for programs only, which find the last ones in a hidden tag."""

    run: str
    points: tuple[Point, ...]
    detail: bool = False


@dataclass(frozen=True)
class Artifact:
    """File or folder `path` below the journal's, for the run's artifacts in `folder`."""

    run: str
    path: str
    folder: str = ""


@dataclass(frozen=True)
class DatasetUsed:
    """Data set of a run.

    Attributes:
        source: Absolute path of a file or folder, or a description of generated data.
        schema: MLflow's JSON for the UI's dataset panel.
        context: `training` or `evaluation`.
    """

    run: str
    name: str
    digest: str
    source: str
    schema: str
    profile: str
    context: str


@dataclass(frozen=True)
class ModelSaved:
    """Network to log in MLflow's flavor of its framework.

    Attributes:
        folder: Files of the model, below the journal's folder.
        native: Result of `Framework.save_native`, whose file is in the folder's `data`.
    """

    run: str
    name: str
    folder: str
    native: dict[str, str]
    description: str = ""


@dataclass(frozen=True)
class ModelRegistered:
    """Registered model `name` that has the run's logged model as a version.

    Attributes:
        tags: Of the version; earlier ones below `verdict/` go.
        aliases: Aliases that the version gets.
        removed_aliases: Aliases that no version of the registered model keeps.
    """

    run: str
    name: str
    tags: dict[str, str]
    aliases: tuple[str, ...] = ()
    removed_aliases: tuple[str, ...] = ()


@dataclass(frozen=True)
class RunClosed:
    """End of a run. `status`: MLflow's, if it is not that of the outcome."""

    run: str
    time_ms: int
    outcome: str
    reason: str = ""
    status: str = ""


Record = (
    RunOpened | Tags | Metrics | Artifact | DatasetUsed | ModelSaved | ModelRegistered | RunClosed
)
_TYPES: dict[str, Any] = {kind.__name__: kind for kind in typing.get_args(Record)}


def to_line(record: Record) -> str:
    """Return a record as one line of JSON, without a newline."""
    fields = {"record": type(record).__name__, **dataclasses.asdict(record)}
    return json.dumps(fields, separators=(",", ":"))


def from_line(line: str) -> Record:
    """Return the record of a line of JSON.

    Raises:
        ValueError: It is not a record.
    """
    try:
        fields = json.loads(line)
        kind = _TYPES[fields.pop("record")]
        if kind is Metrics:
            fields["points"] = [Point(**point) for point in fields["points"]]
        lists = {name: tuple(value) for name, value in fields.items() if isinstance(value, list)}
        record: Record = kind(**fields | lists)
        if isinstance(record, RunClosed):
            RunOutcome(record.outcome)
    except (ValueError, LookupError, TypeError, AttributeError):
        raise ValueError("it is not a record of this version") from None
    return record


@dataclass(frozen=True)
class StoredRun:
    """Run as a tracking store or a journal has it, with the last value of each metric."""

    run_id: str
    name: str
    status: str
    start_ms: int
    end_ms: int | None
    params: Mapping[str, str]
    metrics: Mapping[str, float]
    tags: Mapping[str, str]
