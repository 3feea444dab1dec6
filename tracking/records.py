"""The records a run is made of, and every tag and metric name: what the journal holds and the server is told."""

from __future__ import annotations

import dataclasses
import json
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

# Warnings stand in the tag `warnings` of campaigns and cells, with this between.
BETWEEN_WARNINGS = " · "
# MLflow's, and none.
STATUSES = ("", "RUNNING", "SCHEDULED", "FINISHED", "FAILED", "KILLED")
# What others used of all CPUs while a cell was timed.
OTHERS_CPU = "machine/others_cpu_percent"
# The share of samples in which others computed on its GPUs meanwhile.
OTHERS_GPU = "machine/others_gpu_percent"
# Tag: which network was to be compiled and was not, or not as a whole.
RAN_EAGERLY = "ran_eagerly"
# Tags: whether XLA compiled the training step, and whether the framework's variant is to be.
JIT_COMPILE, JIT_PLANNED = "jit_compile", "jit_compile.planned"
VANISHED = "its process ended without a message (killed, or the machine went down)"


class RunKind(StrEnum):
    """Tag `kind`: what an MLflow run stands for."""

    LAUNCH = "launch"
    CAMPAIGN = "campaign"
    SWEEP = "sweep"
    TRIAL = "trial"
    EXTRACTION = "extraction"
    CELL = "cell"
    COMPARISON = "comparison"
    PARITY = "parity"


class RepeatCause(StrEnum):
    """Code of the reason for which a cell that ended well is measured once more."""

    BUSY_MACHINE = "busy_machine"
    ODD_BLOCK = "odd_block"


class RunOutcome(StrEnum):
    """Tag `outcome`: how a run ended; everything but `ok` comes with `outcome_reason`."""

    OK = "ok"
    OUT_OF_MEMORY = "out_of_memory"
    NOT_EQUAL = "not_equal"
    FAILED = "failed"
    INTERRUPTED = "interrupted"
    PRUNED = "pruned"

    @property
    def status(self) -> str:
        """MLflow's status for this outcome."""
        return {
            RunOutcome.OK: "FINISHED",
            RunOutcome.INTERRUPTED: "KILLED",
            RunOutcome.PRUNED: "KILLED",
        }.get(self, "FAILED")


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
    """`data`: a folder below the journal's that `loader`, a module with `_load_pyfunc`, turns into a model; no pickled code.

    columns: name → MLflow's type of what a client may send, each on its own (a `binary` one is base64 in `example`); none: the
    names of `example`, all of them texts. outputs: the same of the answer; none: the text `output`.
    """

    run: str
    name: str
    loader: str
    data: str
    example: dict[str, str]
    output: str
    requirements: tuple[str, ...]
    columns: dict[str, str] = field(default_factory=dict)
    outputs: dict[str, str] = field(default_factory=dict)
    description: str = ""


@dataclass(frozen=True)
class RunClosed:
    """status: MLflow's, where it is not the outcome's own."""

    run: str
    time_ms: int
    outcome: str
    reason: str = ""
    status: str = ""


Record = RunOpened | Tags | Metrics | Artifact | DatasetUsed | ModelSaved | RunClosed
_TYPES: dict[str, Any] = {
    t.__name__: t for t in (RunOpened, Tags, Metrics, Artifact, DatasetUsed, ModelSaved, RunClosed)
}


def to_line(record: Record) -> str:
    """A record as one line of JSON, without a newline."""
    return json.dumps(
        {"record": type(record).__name__, **dataclasses.asdict(record)}, separators=(",", ":")
    )


def from_line(line: str) -> Record:
    """The inverse of `to_line`. Raises ValueError on anything else, with what is wrong."""
    try:
        fields = json.loads(line)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    except ValueError:
        raise ValueError("it is not JSON") from None
    name = fields.pop("record", None) if isinstance(fields, dict) else None
    if not isinstance(name, str) or name not in _TYPES:
        raise ValueError("it is no record that is known")
    return _record(name, fields)


def _record(name: str, fields: dict[str, Any]) -> Record:
    known = _FIELDS[name]
    if unknown := sorted(fields.keys() - known.keys()):
        raise ValueError(f"{name} has no field {ascii(unknown[0])[:40]}")
    try:
        record: Record = _TYPES[name](**{key: known[key](value) for key, value in fields.items()})
    except (TypeError, ValueError, RecursionError):  # a field is missing, or is not of its type
        raise ValueError(f"{name} lacks a field, or one is of another type") from None
    if isinstance(record, RunClosed) and record.status not in STATUSES:
        raise ValueError(f"RunClosed has a status that is not known: {ascii(record.status)[:40]}")
    if isinstance(record, RunClosed) and not (record.status or record.outcome in set(RunOutcome)):
        raise ValueError(
            f"RunClosed has an outcome that is not known: {ascii(record.outcome)[:40]}"
        )
    return record


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError
    return value


def _whole(value: Any) -> int:
    if type(value) is not int:
        raise TypeError
    return value


def _texts(value: Any) -> dict[str, str]:
    if not isinstance(value, dict) or not all(isinstance(one, str) for one in value.values()):
        raise TypeError
    return value


def _list(value: Any) -> tuple[str, ...]:
    if not isinstance(value, list):
        raise TypeError
    return tuple(map(_text, value))


def _points(value: Any) -> tuple[Point, ...]:
    points = tuple(Point(**one) for one in value)
    for one in points:
        if (
            type(one.value) not in (float, int)
            or type(one.step) is not int
            or type(one.time_ms) is not int
        ):
            raise TypeError
        _text(one.key)
    return points


_READERS: dict[Any, Callable[[Any], Any]] = {
    str: _text,
    int: _whole,
    dict[str, str]: _texts,
    tuple[str, ...]: _list,
    tuple[Point, ...]: _points,
}
_FIELDS = {
    name: {key: _READERS[hint] for key, hint in typing.get_type_hints(kind).items()}
    for name, kind in _TYPES.items()
}


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
