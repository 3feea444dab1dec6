"""The records a run is made of, and every tag and metric name: what the journal holds and the server is told."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

# What is said loudly stands in the tag `warnings` of campaigns and cells, with this between.
BETWEEN_WARNINGS = " · "
VANISHED = "its process ended without a word (killed, or the machine went down)"


class Kind(StrEnum):
    """Tag `kind`: what an MLflow run stands for."""

    LAUNCH = "launch"
    CAMPAIGN = "campaign"
    SWEEP = "sweep"
    TRIAL = "trial"
    EXTRACTION = "extraction"
    CELL = "cell"
    AUTOLOG = "autolog"
    COMPARISON = "comparison"
    PARITY = "parity"


class Outcome(StrEnum):
    """Tag `outcome`: how a run ended; everything but `ok` comes with `outcome_reason`."""

    OK = "ok"
    OUT_OF_MEMORY = "out_of_memory"
    FAILED = "failed"
    INTERRUPTED = "interrupted"
    NOT_AVAILABLE = "not_available"
    PRUNED = "pruned"

    @property
    def status(self) -> str:
        """MLflow's status for this outcome."""
        return {Outcome.OK: "FINISHED", Outcome.INTERRUPTED: "KILLED", Outcome.PRUNED: "KILLED"}.get(self, "FAILED")


@dataclass(frozen=True)
class Point:
    """One value of a metric; `step` is the update, epoch or second it belongs to."""

    key: str
    value: float
    step: int
    time_ms: int


@dataclass(frozen=True)
class RunOpened:
    """`run` is the journal's own id; it becomes the tag `origin`, so that a replay finds the run again."""

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
    run: str
    points: tuple[Point, ...]


@dataclass(frozen=True)
class Artifact:
    """`path`: file or folder below the journal's folder; `folder`: where it goes among the run's artifacts."""

    run: str
    path: str
    folder: str = ""


@dataclass(frozen=True)
class DatasetUsed:
    """`schema` is MLflow's JSON for the UI's dataset panel; `context` is `training` or `evaluation`."""

    run: str
    name: str
    digest: str
    source: str
    schema: str
    profile: str
    context: str


@dataclass(frozen=True)
class ModelSaved:
    """`data`: a folder below the journal's that `loader`, a module with `_load_pyfunc`, turns into a model; no pickled code."""

    run: str
    name: str
    loader: str
    data: str
    example: dict[str, str]
    output: str
    requirements: tuple[str, ...]


@dataclass(frozen=True)
class RunClosed:
    """status: MLflow's, where it is not the outcome's own."""

    run: str
    time_ms: int
    outcome: str
    reason: str = ""
    status: str = ""


Record = RunOpened | Tags | Metrics | Artifact | DatasetUsed | ModelSaved | RunClosed
_TYPES: dict[str, Any] = {t.__name__: t for t in (RunOpened, Tags, Metrics, Artifact, DatasetUsed, ModelSaved, RunClosed)}


def to_line(record: Record) -> str:
    """One JSON object a record, without a newline."""
    return json.dumps({"record": type(record).__name__, **dataclasses.asdict(record)}, separators=(",", ":"))


def from_line(line: str) -> Record:
    """The inverse of `to_line`. Raises ValueError on anything else."""
    fields = json.loads(line)
    kind = _TYPES[fields.pop("record")]
    if kind is Metrics:
        fields["points"] = tuple(Point(**point) for point in fields["points"])
    if kind is ModelSaved:
        fields["requirements"] = tuple(fields["requirements"])
    record: Record = kind(**fields)
    return record


@dataclass(frozen=True)
class StoredRun:
    """A run as a tracking store (or a journal) tells it: the latest value of every metric."""

    run_id: str
    name: str
    status: str
    start_ms: int
    end_ms: int | None
    params: Mapping[str, str]
    metrics: Mapping[str, float]
    tags: Mapping[str, str]
