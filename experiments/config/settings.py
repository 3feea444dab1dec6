"""Settings as frozen dataclasses.

One definition gives the options, the checks, the help and the logged params.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import os
import typing
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, TypeVar

from models import devices
from models.frameworks import TRAINING_PRECISIONS
from tracking import plain
from tracking.errors import ErrorCode, UsageError, suggestion

T = TypeVar("T")
S = TypeVar("S", bound="CampaignSettings")
MAX_BYTES = 65_536
fields: Callable[[Any], tuple[dataclasses.Field[Any], ...]] = dataclasses.fields
BOOLEANS = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
KINDS = {bool: "true or false", int: "a whole number", float: "a number"}
MAX_VALUES = 256
MAX_PATH_BYTES, MAX_NAME_BYTES = 4_000, 255
# Upper bounds that several settings share: far above any measurement, and far below a machine
# without memory.
MAX_SEED = 2**32 - 1
MAX_ROWS = 2**20
MAX_SIDE = 4_096
MAX_STEPS = 10_000_000
MAX_EPOCHS = 100_000
MAX_RATE = 1_000
# A load of other programs above this share of all CPUs changes the times. Of two CPUs it is a
# fifth of one: a framework with a thread for each CPU waits for it at every step, and one with a
# single thread may not notice it.
OTHERS_LIMIT_PERCENT = 10.0
# Preset of every study: the smallest run that shows that everything works.
SMOKE, MAX_SMOKE_BLOCKS = "smoke", 2
MAX_BLOCKS = 10_000
DEFAULT_MAX_BLOCKS = 48
FAIL_IF = "verdicts that make the exit code 4: worse, slower:throughput, failed:10 (percent)"


def setting(
    default: Any,
    help: str,
    *,
    minimum: float | None = None,
    maximum: float | None = None,
    choices: Sequence[str] = (),
    path: bool = False,
    group: str = "settings",
    affects_measurement: bool = True,
    searchable: bool = True,
    not_logged: bool = False,
    advanced: bool = False,
    repeatable: bool = False,
) -> Any:
    """Return a dataclass field with its one-line help and what it accepts.

    Args:
        default: The value where none is set.
        help: What the setting is, in one line.
        minimum: The least number; a number has both bounds.
        maximum: The greatest number.
        choices: The texts that it accepts; empty: any.
        path: Whether the text may name a file: a file system must be able to hold it.
        group: The subject in the help.
        affects_measurement: Whether it can change what a cell measures: cells that differ are
            not pooled.
        searchable: Whether it belongs to a single cell, so that a sweep may search it.
        not_logged: Whether it is a place on this machine, or the name of the run: cells do not get
            it, runs do not log it as a param.
        advanced: Whether it is listed by `--help all` only, as a setting of a single choice is.
        repeatable: Whether a call may have it several times, with a value of the list each time.
    """
    metadata = {
        "help": help,
        "group": group,
        "advanced": advanced or len(choices) == 1,
        "minimum": minimum,
        "maximum": maximum,
        "choices": tuple(choices),
        "path": path,
        "affects_measurement": affects_measurement and not not_logged,
        "searchable": searchable and not not_logged,
        "not_logged": not_logged,
        "repeatable": repeatable,
    }
    return dataclasses.field(default=default, metadata=metadata)


# Setting of a campaign, not of its cells.
campaign_setting = partial(setting, affects_measurement=False, searchable=False)


def parameter(default: Any, *instead: str) -> Any:
    """Return a field that a study sets for each cell, and users cannot set.

    Args:
        default: The value in a campaign's settings.
        instead: The settings of the study that users set.
    """
    metadata = {**setting(default, "", searchable=False).metadata, "instead": instead}
    return dataclasses.field(default=default, metadata=metadata)


# Groups and bases have no instances. To make methods of a dataclass takes a millisecond, at every
# start: they get none.
@dataclass(frozen=True, init=False, repr=False, eq=False)
class DesignSettings:
    """Compared treatments and the number of blocks."""

    preset: str = campaign_setting(
        "demo", "a set of settings; others of the call override it", group="design"
    )
    settings: str = setting(
        "",
        "a JSON file of settings, such as a sweep's; other settings of the call override it",
        path=True,
        group="design",
        not_logged=True,
        advanced=True,
    )
    frameworks: tuple[str, ...] = setting(
        ("pytorch", "tensorflow"),
        "what is compared, the baseline first",
        group="design",
        affects_measurement=False,
    )
    blocks: int = campaign_setting(
        6,
        "repetitions in fresh processes; a verdict needs 6",
        minimum=1,
        maximum=MAX_BLOCKS,
        group="design",
    )
    until: str = campaign_setting(
        "fixed",
        "fixed: exactly `blocks`; settled: more, until every primary outcome has a verdict",
        choices=("fixed", "settled"),
        group="design",
    )
    max_blocks: int = campaign_setting(
        DEFAULT_MAX_BLOCKS,
        "with until=settled, the most blocks; `blocks` is then the first look",
        minimum=1,
        maximum=MAX_BLOCKS,
        group="design",
        advanced=True,
    )
    vary: str = campaign_setting(
        "",
        "values of one setting in the same blocks, the baseline first: threads=1,2, env.NAME=a,b "
        "or, with commas in them, a,b|c,d",
        group="design",
    )
    levels: tuple[str, ...] = campaign_setting(
        (),
        "versions of a package in the same blocks, an environment each, the baseline first: "
        "torch==2.14,torch==2.15",
        group="design",
    )
    budget: str = campaign_setting(
        "none",
        "with until=settled, longest time of a launch, such as 90s, 30m or 2h; none: no limit",
        group="design",
        advanced=True,
    )
    seed: int = setting(
        0,
        "of data, initial weights, and the order of steps and cells",
        minimum=0,
        maximum=MAX_SEED,
        group="design",
        searchable=False,
    )
    repeat_odd_block: bool = campaign_setting(
        True,
        "with 6 or 7 fixed blocks, measure one that is unlike all others once more",
        group="design",
        advanced=True,
    )
    name: str = setting(
        "",
        "the campaign's name in MLflow and in comparisons; none: study, preset and what differs",
        group="design",
        not_logged=True,
        advanced=True,
    )
    team: str = campaign_setting(
        "", "whose runs these are (tag team)", group="design", advanced=True
    )
    dry_run: bool = setting(
        False,
        "print cells, expected time and detectable effects; measure nothing",
        group="design",
        not_logged=True,
    )
    resume: str = setting(
        "",
        "a run id, or last: run what is missing, or more blocks",
        group="design",
        not_logged=True,
    )

    @property
    def until_settled(self) -> bool:
        return self.until == "settled"

    @property
    def most_blocks(self) -> int:
        return self.max_blocks if self.until_settled else self.blocks


@dataclass(frozen=True, init=False, repr=False, eq=False)
class MachineSettings:
    """Use of the machine by a cell."""

    device: str = setting(
        "auto",
        "auto takes the GPU if there is one",
        choices=devices.CHOICES,
        group="machine",
    )
    conv_algorithm: str = setting(
        "profiled",
        "choice of a GPU's convolutions in every framework: measured, by rules, or repeatable; "
        "on a CPU: oneDNN's, or the framework's own",
        choices=("profiled", "heuristic", "fixed", "onednn", "plain"),
        group="machine",
        advanced=True,
    )
    threads: int = setting(
        0,
        "CPU threads of every framework; 0: one for each CPU",
        minimum=0,
        maximum=1_024,
        group="machine",
    )
    pin: str = setting(
        "none",
        "auto: cells run on fixed cores, one thread of each; of three or more the first stays free",
        choices=("none", "auto"),
        group="machine",
        advanced=True,
    )
    others_limit_percent: float = campaign_setting(
        OTHERS_LIMIT_PERCENT,
        "allowed difference of cells and sides in the CPU share of other programs; 100: any",
        minimum=0,
        maximum=100,
        group="machine",
    )
    cool_down_seconds: float = setting(
        120.0,
        "longest wait before a cell on the CPU for the temperature of the start; 0: none",
        minimum=0,
        maximum=86_400,
        group="machine",
        searchable=False,
        advanced=True,
    )
    sensor_seconds: float = setting(
        0.0,
        "period of the sensors, 0.05 or more; 0: 0.1 s on a GPU, else 0.5 s",
        minimum=0,
        maximum=3_600,
        group="machine",
        searchable=False,
        advanced=True,
    )
    pythons: tuple[str, ...] = campaign_setting(
        (),
        "interpreters of frameworks with separate environments: tensorflow=/PATH/bin/python,…",
        group="machine",
        advanced=True,
    )
    malloc: str = setting(
        "system",
        "freed memory: system: the C library decides; keep: it stays with the process",
        choices=("system", "keep"),
        group="machine",
        advanced=True,
    )
    memory_limit: str = setting(
        "none",
        "what a cell may allocate on the host, such as 2GiB; none: no limit",
        group="machine",
        advanced=True,
    )


@dataclass(frozen=True, init=False, repr=False, eq=False)
class ClockSettings:
    """Readings of the clock, and turns of cells."""

    timing: str = setting(
        "auto",
        "step: synchronise after every step; free: once a window of window_steps; both: in turns; "
        "auto: both where all cells run on a GPU, else step",
        choices=("auto", "step", "free", "both"),
        group="clock",
        searchable=False,
    )
    window_steps: int = setting(
        0,
        "steps that run freely between two readings of the clock; 0: 10, or as many as fit",
        minimum=0,
        maximum=10_000,
        group="clock",
        searchable=False,
        advanced=True,
    )
    pairing: str = setting(
        "sequential",
        "sequential: one cell after the other; interleaved: the cells of a block take turns",
        choices=("sequential", "interleaved"),
        group="clock",
        searchable=False,
    )


@dataclass(frozen=True, init=False, repr=False, eq=False)
class ClusterSettings:
    """Jobs of a Slurm cluster."""

    executor: str = campaign_setting(
        "local",
        "where cells run: on this machine, or as jobs of a Slurm cluster (docs/cluster.md)",
        choices=("local", "slurm"),
        group="cluster",
        advanced=True,
    )
    partition: str = campaign_setting(
        "",
        "with executor=slurm, the partition that jobs are sent to; none: the cluster's default",
        group="cluster",
        advanced=True,
    )
    nodes: int = campaign_setting(
        1,
        "with executor=slurm, jobs that share the blocks, a node each",
        minimum=1,
        maximum=10_000,
        group="cluster",
        advanced=True,
    )
    gres: str = campaign_setting(
        "",
        "with executor=slurm, what each node must have, in Slurm's words: gpu:1",
        group="cluster",
        advanced=True,
    )
    time_limit: str = campaign_setting(
        "1h",
        "with executor=slurm, longest time of a job, which is then requeued and continues",
        group="cluster",
        advanced=True,
    )

    @property
    def on_cluster(self) -> bool:
        return self.executor != "local"


@dataclass(frozen=True, init=False, repr=False, eq=False)
class VerdictSettings:
    """Controls, and what the verdicts are about."""

    aa: bool = campaign_setting(
        False, "the baseline twice in every block: it must be equal (A/A)", group="verdict"
    )
    inject_delay: float = setting(
        0.0,
        "the baseline once more in every block, slowed by this share (5%): it must be found",
        minimum=0,
        maximum=10,
        group="verdict",
        searchable=False,
        advanced=True,
    )
    allow_unequal: bool = campaign_setting(
        False,
        "measure networks that the parity gate does not call equal, and mark the report",
        group="verdict",
        advanced=True,
    )
    protocol: str = campaign_setting(
        "sound",
        "paper: the published procedure is shown beside the verdicts",
        choices=("sound", "paper"),
        group="verdict",
        advanced=True,
    )
    margin: float = campaign_setting(
        0.03, "the smallest ratio that matters", minimum=0.001, maximum=0.5, group="verdict"
    )
    primary: tuple[str, ...] = campaign_setting(
        (), "one to three outcomes, tested before all others; none: the study's", group="verdict"
    )
    fail_if: tuple[str, ...] = campaign_setting((), FAIL_IF, group="verdict")


@dataclass(frozen=True, init=False, repr=False, eq=False)
class RecordSettings:
    """Files of a campaign."""

    figures: bool = campaign_setting(
        True,
        "draw the report's figures; without them the report is ready sooner",
        group="records",
        advanced=True,
    )
    journal: str = setting(
        ".evenhand/journal",
        "folder of the local journal: every record is written there before it is sent",
        path=True,
        group="records",
        not_logged=True,
        advanced=True,
    )
    cache: str = setting(
        ".evenhand/cache",
        "folder for data and features, so that they are computed once",
        path=True,
        group="records",
        not_logged=True,
        advanced=True,
    )


CLUSTER = frozenset(field.name for field in fields(ClusterSettings))


# Help lists the groups from the last to the first.
@dataclass(frozen=True)
class CampaignSettings(
    RecordSettings, VerdictSettings, ClusterSettings, ClockSettings, MachineSettings, DesignSettings
):
    """Settings that every experiment has."""

    # Settings that have no meaning in this study, and that users cannot set.
    not_offered: ClassVar[frozenset[str]] = frozenset()

    @property
    def workers_of_a_cell(self) -> int:
        """Most processes of a cell that train together."""
        return 1

    @property
    def nodes_of_a_job(self) -> int:
        """Nodes of a job: more than one only if a cell needs several at a time."""
        return 1

    @property
    def cpus_of_a_node(self) -> int:
        """Fewest CPUs that a node must have; 0: as many as it has."""
        return 0


@dataclass(frozen=True, init=False, repr=False, eq=False)
class TrainingSettings(CampaignSettings):
    """Settings of experiments that train networks."""

    optimizer: str = setting(
        "adam",
        "adam: PyTorch's semantics everywhere; adam-stock: each framework's own",
        choices=("adam", "adam-stock"),
        group="training",
    )
    learning_rate: float = setting(
        0.001, "of the optimizer", minimum=1e-9, maximum=MAX_RATE, group="training"
    )
    precision: str = setting(
        "float32",
        "tf32: rounded products, GPUs; bfloat16: mixed",
        choices=TRAINING_PRECISIONS,
        group="training",
    )


@dataclass(frozen=True, init=False, repr=False, eq=False)
class ProfileSettings:
    """Profile in addition to the measurement."""

    profile: bool = setting(
        False,
        "a few more steps under each framework's profiler: where their time goes; "
        "the trace is kept for TensorBoard",
        group="records",
        affects_measurement=False,
        advanced=True,
    )


@dataclass(frozen=True)
class SgdSettings:
    """Options of SGD."""

    momentum: float = setting(
        0.0, "of sgd", minimum=0, maximum=0.9999, group="training", advanced=True
    )
    weight_decay: float = setting(
        0.0, "of sgd: L2, in the gradient", minimum=0, maximum=1, group="training", advanced=True
    )


@dataclass(frozen=True, init=False, repr=False, eq=False)
class ModelSettings(TrainingSettings):
    """Settings of trainings by epochs, whose networks then answer requests and may be kept."""

    batch_size: int = setting(64, "images a step", minimum=1, maximum=MAX_ROWS, group="training")
    epochs: int = setting(
        10, "passes over the training images", minimum=1, maximum=MAX_EPOCHS, group="training"
    )
    steps_per_epoch: int = setting(
        0,
        "0: all training examples",
        minimum=0,
        maximum=MAX_STEPS,
        group="training",
        advanced=True,
    )
    warmup_steps: int = setting(
        5,
        "steps left out of the summaries (kept in values.parquet)",
        minimum=1,
        maximum=MAX_STEPS,
        group="training",
    )
    phase_seconds: float = setting(
        0.0,
        "on a GPU: a new campaign has more epochs and requests, for all frameworks alike, until "
        "training and requests last as long in the fastest; 0: as set",
        minimum=0,
        maximum=3_600,
        group="training",
        advanced=True,
        searchable=False,
    )
    inference_batch_sizes: tuple[int, ...] = setting(
        (1, 64), "images a request", minimum=1, maximum=MAX_ROWS, group="inference"
    )
    inference_requests: int = setting(
        100,
        "timed requests a batch size; p95 needs 72, p99 368",
        minimum=2,
        maximum=MAX_STEPS,
        group="inference",
    )
    warmup_requests: int = setting(
        5,
        "requests a batch size left out of the summaries (kept in values.parquet)",
        minimum=1,
        maximum=MAX_STEPS,
        group="inference",
        advanced=True,
    )
    save_model: str = campaign_setting(
        "first",
        "log the trained network as an MLflow model: of the first block, of all, none",
        choices=("first", "all", "none"),
        group="records",
        advanced=True,
    )
    register: str = setting(
        "",
        "registered model that gets a version of each framework, with the verdict as tags",
        group="records",
        not_logged=True,
        advanced=True,
    )


def parse(
    kind: type[T],
    presets: Mapping[str, Mapping[str, Any]],
    options: Mapping[str, str],
    of_folder: Mapping[str, str] = MappingProxyType({}),
) -> T:
    """Return settings from text: defaults, then the preset's, the folder's, and the call's.

    Args:
        kind: Type of the settings.
        presets: Their values by name.
        options: Settings of the call; those of the file `settings` come before them.
        of_folder: Settings of the working folder; those that the type does not have are left out.

    Raises:
        UsageError: for the first mistake, in one line.
    """
    names = [field.name for field in for_users(kind)]
    if "settings" in names and options.get("settings"):
        options = {**read_texts(Path(_check_text("settings", options["settings"]))), **options}
    for name in options:
        refuse_unknown(name, names, kind)
    options = {name: of_folder[name] for name in of_folder if name in names} | dict(options)
    hints = typing.get_type_hints(kind)
    values = {name: convert(name, text, hints[name]) for name, text in options.items()}
    settings = kind(**{**of_preset(presets, options), **values})
    check(settings)
    return settings


def names_not_affecting_measurement(settings: Any) -> frozenset[str]:
    """Return the names of the settings in which cells may differ and still be pooled."""
    return _names(settings, lambda rules: not rules["affects_measurement"])


def searchable(settings: Any) -> frozenset[str]:
    """Return the names of the settings of a single cell that this kind of study offers."""
    names = _names(settings, lambda rules: rules["searchable"])
    return names - getattr(settings, "not_offered", frozenset())


def not_logged_names(settings: Any) -> frozenset[str]:
    """Return the names of the settings that are not sent to cells and not logged."""
    return _names(settings, lambda rules: rules["not_logged"])


def parameter_names(settings: Any) -> frozenset[str]:
    """Return the names of the fields that a study sets for each cell."""
    return _names(settings, lambda rules: "instead" in rules)


def _names(settings: Any, accepts: Callable[[Mapping[str, Any]], bool]) -> frozenset[str]:
    """Return the names of fields, of a dataclass or its instance, whose metadata are accepted."""
    return frozenset(field.name for field in fields(settings) if accepts(field.metadata))


def for_users(kind: type[Any]) -> list[dataclasses.Field[Any]]:
    """Return the settings that a caller can set: all but the parameters of cells."""
    hidden = parameter_names(kind) | getattr(kind, "not_offered", frozenset())
    return [field for field in fields(kind) if field.name not in hidden]


def refuse_parameter(kind: type[Any], name: str, where: str = "") -> None:
    """Raise UsageError for a parameter of cells, with what to set instead."""
    if name in parameter_names(kind):
        (field,) = (field for field in fields(kind) if field.name == name)
        raise UsageError(
            ErrorCode.UNKNOWN_NAME,
            f"{where}{name} is set by the study, cell by cell; "
            f"set {' or '.join(field.metadata['instead'])} instead",
        )


def refuse_unknown(name: str, names: Collection[str], *kinds: type[Any]) -> None:
    """Raise UsageError for a name that is none of a call's settings, which are of these types."""
    if name not in names:
        for kind in kinds:
            refuse_parameter(kind, name)
        raise UsageError(
            ErrorCode.UNKNOWN_NAME,
            f"there is no setting '{plain.short(name)}'{suggestion(name, names)}",
        )


def cell_values(settings: CampaignSettings) -> dict[str, Any]:
    """Return the settings that are sent to a cell: none of places on this machine or a cluster.

    A checkpoint records them, and a cell continues wherever it is.
    """
    left_out = not_logged_names(settings) | CLUSTER
    values = dataclasses.asdict(settings).items()
    return {name: value for name, value in values if name not in left_out}


def of_preset(
    presets: Mapping[str, Mapping[str, Any]], options: Mapping[str, str]
) -> dict[str, Any]:
    """Return the values of the preset that a call names, or of `demo`.

    Raises:
        UsageError: for a preset that does not exist.
    """
    if not presets:
        return {}
    preset = options.get("preset", "demo")
    if preset not in presets:
        raise UsageError(
            ErrorCode.UNKNOWN_NAME,
            f"there is no preset '{plain.short(preset)}'; have {', '.join(presets)}",
        )
    return {**presets[preset], "preset": preset}


def read_texts(path: Path) -> dict[str, str]:
    """Return the settings of a JSON file: texts, numbers, truth values and flat lists."""
    label = f"settings={plain.path(path)}"
    try:
        text = read_file(path, label)
        values = dict(json.loads(text, object_pairs_hook=_unique).items())
    except (OSError, RecursionError, ValueError, AttributeError) as error:
        raise UsageError(
            ErrorCode.UNREADABLE,
            f'{label} cannot be read: {plain.short(str(error))}; write JSON, {{"batch_size": 64}}',
        ) from None
    texts = {}
    for name, value in values.items():
        parts = value if isinstance(value, list) else [value]
        if not all(isinstance(part, str | int | float | bool) for part in parts):
            raise UsageError(
                ErrorCode.INVALID_VALUE,
                f"{label}: {plain.short(name)} is neither a text, a number, true, false, "
                f"nor a list of them",
            )
        texts[name] = ",".join(map(to_text, parts))
    return texts


def read_file(path: Path, label: str, most_bytes: int = MAX_BYTES) -> bytes:
    """Return the bytes of a file that a user names.

    Raises:
        OSError: It cannot be read.
        UsageError: It is too large, or not a regular file: a pipe would block the reader.
    """
    if os.path.exists(path) and not os.path.isfile(path):
        raise UsageError(ErrorCode.UNREADABLE, f"{label} is no regular file")
    with path.open("rb") as file:
        content = file.read(most_bytes + 1)
    if len(content) > most_bytes:
        raise UsageError(ErrorCode.TOO_LARGE, f"{label} has more than {most_bytes:,} bytes")
    return content


def _unique(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    for name, count in Counter(name for name, _ in pairs).items():
        if count > 1:
            label = f"settings: {plain.short(name)} is in the file {count} times"
            raise UsageError(ErrorCode.DUPLICATE, f"{label}; keep one")
    return dict(pairs)


def check(settings: Any) -> None:
    """Check that every value is within its rules.

    Raises:
        UsageError: for the first that is not.
    """
    for field in fields(settings):
        value, rules = getattr(settings, field.name), field.metadata
        items = value if isinstance(value, tuple) else (value,)
        if len(items) > MAX_VALUES:
            raise UsageError(
                ErrorCode.TOO_LARGE,
                f"{field.name} names {len(items):,} values; at most {MAX_VALUES}",
            )
        for item in items:
            if problem := _problem(item, rules):
                raise UsageError(
                    ErrorCode.INVALID_VALUE, f"{field.name}={plain.short(to_text(item))} {problem}"
                )
        if not items and field.default:
            raise UsageError(ErrorCode.MISSING_VALUE, f"{field.name} is empty; name at least one")
        if len(set(items)) < len(items):
            raise UsageError(
                ErrorCode.DUPLICATE, f"{field.name}={plain.short(to_text(value))} names one twice"
            )


def _problem(value: Any, rules: Mapping[str, Any]) -> str:
    """Return why a value breaks the rules of its setting, or an empty text."""
    if isinstance(value, float) and not math.isfinite(value):
        return "is not a finite number"
    if rules.get("choices") and value not in rules["choices"]:
        return f"is not known; choose {', '.join(rules['choices'])}"
    if rules.get("path"):
        return path_problem(value)
    if rules.get("minimum") is not None and value < rules["minimum"]:
        return f"is too small; at least {rules['minimum']}"
    if rules.get("maximum") is not None and value > rules["maximum"]:
        return f"is too large; at most {rules['maximum']}"
    return ""


def path_problem(text: str) -> str:
    """Return why no file system here can hold a path, whether or not it exists."""
    try:
        path = os.fsencode(Path(text).expanduser().resolve())
    except (RuntimeError, OSError, ValueError):
        return "leads nowhere: through links in a circle, or into a home that does not exist"
    if len(path) > MAX_PATH_BYTES or any(len(part) > MAX_NAME_BYTES for part in path.split(b"/")):
        return (
            f"is too long; a path has at most {MAX_PATH_BYTES:,} bytes, "
            f"a name in it {MAX_NAME_BYTES}"
        )
    return ""


def require_writable(folder: Path, settings: str, mode: int = 0o777) -> None:
    """Make a folder that the user has named, if it is missing.

    Args:
        folder: The folder.
        settings: The settings that name it.
        mode: Permissions of a new folder.

    Raises:
        UsageError: if it cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=mode)
        probe = folder / f".probe-{os.getpid()}"
        probe.write_text("")
        probe.unlink()
    except OSError as error:
        raise UsageError(
            ErrorCode.UNWRITABLE,
            f"cannot write in {folder.resolve()}: {error.strerror}; "
            f"choose another folder for it ({settings})",
        ) from None


def convert(name: str, text: str, kind: Any) -> Any:
    """Return the value of a field's type that a text of the command line stands for.

    Raises:
        UsageError: if there is no such value.
    """
    text = _check_text(name, text)
    if typing.get_origin(kind) is tuple:
        (item,) = set(typing.get_args(kind)) - {Ellipsis}
        parts = _listed(name, text) if text.startswith("[") else map(str.strip, text.split(","))
        return tuple(convert(name, part, item) for part in parts if part)
    if kind is str:
        return text
    try:
        if kind is bool:
            return BOOLEANS[text.lower()]
        return float(text[:-1]) / 100 if kind is float and text.endswith("%") else kind(text)
    except (ValueError, KeyError):
        raise UsageError(
            ErrorCode.INVALID_VALUE, f"{name}={plain.short(text)} is not {KINDS[kind]}"
        ) from None


def _listed(name: str, text: str) -> list[str]:
    """Return the values of a list in JSON, which may contain commas."""
    with contextlib.suppress(ValueError, RecursionError):
        values = json.loads(text)
        if all(isinstance(value, str) for value in values):
            return list(values)
    raise UsageError(
        ErrorCode.INVALID_VALUE,
        f'{name}={plain.short(text)} is no list of texts in JSON; write ["a", "b"] or a,b',
    )


def _check_text(name: str, text: str) -> str:
    """Return a text unchanged if it is printable."""
    if plain.CONTROLS.search(text):
        raise UsageError(
            ErrorCode.INVALID_VALUE,
            f"{name}={plain.short(text)} has control characters, or bytes that are not UTF-8; "
            f"write it without them",
        )
    return text


def as_text(settings: Any) -> dict[str, str]:
    """Return every setting as the text that MLflow logs."""
    return {field.name: to_text(getattr(settings, field.name)) for field in fields(settings)}


def to_text(value: Any) -> str:
    if isinstance(value, tuple):
        return ",".join(map(to_text, value))
    if isinstance(value, bool):
        return str(value).lower()
    return "" if value is None else str(value)


def from_values(kind: type[T], values: Mapping[str, Any]) -> T:
    """Return settings from JSON values, as the journal stores them.

    Raises:
        UsageError: if a setting has a value of another type, or if one that affects the measurement
            was not recorded.
    """
    recorded = {}
    hints = typing.get_type_hints(kind)
    for field in fields(kind):
        if field.name in values:
            value = values[field.name]
            if not _has_type(value, hints[field.name]):
                raise UsageError(
                    ErrorCode.UNREADABLE,
                    f"resume: the campaign recorded {field.name}={plain.short(json.dumps(value))}, "
                    "of another type; start a new one",
                )
            recorded[field.name] = tuple(value) if isinstance(value, list) else value
        elif field.metadata["affects_measurement"] and field.name not in parameter_names(kind):
            raise UsageError(
                ErrorCode.CHANGED,
                f"resume: the campaign did not record {field.name}; start a new one",
            )
    return kind(**recorded)


def _has_type(value: Any, kind: Any) -> bool:
    """Return whether a JSON value is one of a setting's type."""
    if typing.get_origin(kind) is tuple:
        (part_kind, _) = typing.get_args(kind)
        return isinstance(value, list | tuple) and all(_has_type(part, part_kind) for part in value)
    return type(value) is kind or (kind is float and type(value) is int)
