"""Settings are frozen dataclasses: one definition gives the options, the checks, the help and the logged params."""

from __future__ import annotations

import dataclasses
import difflib
import functools
import json
import math
import os
import typing
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from tracking import plain
from tracking.errors import WrongCall

T = TypeVar("T")
S = TypeVar("S", bound="CampaignSettings")
MAX_BYTES = 65_536
MAX_CHARACTERS = 4_096
MAX_VALUES = 256
MAX_PATH_BYTES, MAX_NAME_BYTES = 4_000, 255
# Upper bounds that several settings share: far above what anyone measures, far below what ends in a machine out of memory.
MAX_SEED = 2**32 - 1
MAX_ROWS = 2**20
MAX_SIDE = 4_096
MAX_STEPS = 10_000_000
MAX_WINDOW = 10_000  # so many batches lie on the device at once
MAX_EPOCHS = 100_000
MAX_RATE = 1_000
# More than this of all CPUs, used by others, is seen in the times: of two CPUs it is a fifth of one, which a framework with a
# thread for each waits for at every step, while one that needs a single thread may not notice it.
OTHERS_LIMIT_PERCENT = 10.0
NO_OTHERS_LIMIT = 100.0  # others may do what they do
MAX_BLOCKS = 10_000
MAX_NODES = 10_000
DEFAULT_MAX_BLOCKS = 48


def setting(
    default: Any,
    help: str,
    *,
    minimum: float | None = None,
    maximum: float | None = None,
    choices: Sequence[str] = (),
    path: bool = False,
    group: str = "settings",
    material: bool = True,
    searchable: bool = True,
    silent: bool = False,
    advanced: bool = False,
) -> Any:
    """Return a dataclass field with its one-line help and what it accepts.

    Args:
        default: The value where none is set.
        help: What the setting is, in one line.
        minimum: The least number; a number has both bounds.
        maximum: The greatest number.
        choices: The texts that it accepts; empty: any.
        path: Whether the text may name a file, so that it has to be one that a file system could hold.
        group: The subject in the help.
        material: Whether it can change what a cell measures: cells that differ in it are not pooled.
        searchable: Whether it belongs to a single cell, so that a sweep may search it.
        silent: Whether it is a place on this machine: cells do not get it, runs do not log it.
        advanced: Whether it is listed by `--help all` only, as a setting of a single choice is.
    """
    metadata = {
        "help": help,
        "group": group,
        "advanced": advanced or len(choices) == 1,
        "minimum": minimum,
        "maximum": maximum,
        "choices": tuple(choices),
        "path": path,
        "material": material and not silent,
        "searchable": searchable and not silent,
        "silent": silent,
    }
    return dataclasses.field(default=default, metadata=metadata)


def parameter(default: Any, *instead: str) -> Any:
    """Return a field of `CellParameters`.

    Args:
        default: The value where a study sets none.
        instead: The settings of the study that users set.
    """
    return dataclasses.field(default=default, metadata={"instead": instead, "searchable": False})


@dataclass(frozen=True)
class CellParameters:
    """What a study sets for each cell; no user can."""


def immaterial(settings: Any) -> frozenset[str]:
    """Names of the settings, of a dataclass or of one's value, in which cells may differ and still be pooled."""
    return frozenset(
        field.name for field in _fields(settings) if not field.metadata.get("material", True)
    )


def searchable(settings: Any) -> frozenset[str]:
    """Names of the settings that a sweep may search."""
    kind = settings if isinstance(settings, type) else type(settings)
    return frozenset(field.name for field in for_users(kind) if field.metadata["searchable"])


def silent(settings: Any) -> frozenset[str]:
    """Names of the settings that cells are not told and no run logs."""
    return frozenset(
        field.name for field in _fields(settings) if field.metadata.get("silent", False)
    )


@dataclass(frozen=True)
class CampaignSettings:
    """Settings that every experiment has."""

    # Type of what the study sets for each cell.
    parameters: ClassVar[type[CellParameters]] = CellParameters

    preset: str = setting(
        "demo",
        "a named set of settings; anything given beside it wins",
        group="design",
        material=False,
        searchable=False,
    )
    settings: str = setting(
        "",
        "a JSON file of settings, as a sweep leaves one; anything given beside it wins",
        path=True,
        group="design",
        silent=True,
        advanced=True,
    )
    frameworks: tuple[str, ...] = setting(
        ("pytorch", "tensorflow"),
        "what is compared, the baseline first",
        group="design",
        material=False,
    )
    blocks: int = setting(
        6,
        "times that everything is repeated in fresh processes, in random order; a verdict needs 6",
        minimum=1,
        maximum=MAX_BLOCKS,
        group="design",
        material=False,
        searchable=False,
    )
    until: str = setting(
        "fixed",
        "fixed: as many blocks as `blocks` says; settled: more, until every primary outcome has a verdict",
        choices=("fixed", "settled"),
        group="design",
        material=False,
        searchable=False,
    )
    max_blocks: int = setting(
        DEFAULT_MAX_BLOCKS,
        "with until=settled, the most blocks; `blocks` is then the first look",
        minimum=1,
        maximum=MAX_BLOCKS,
        group="design",
        material=False,
        searchable=False,
        advanced=True,
    )
    vary: str = setting(
        "",
        "values of one setting of a cell, measured in the same blocks, the baseline first: threads=1,2, "
        "env.NAME=a,b or, with commas in them, a,b|c,d",
        group="design",
        material=False,
        searchable=False,
    )
    budget: str = setting(
        "none",
        "with until=settled, how long one launch may take, such as 90s, 30m or 2h; none: as long as it takes",
        group="design",
        material=False,
        searchable=False,
        advanced=True,
    )
    seed: int = setting(
        0,
        "of the data, the initial weights, the order of steps and cells",
        minimum=0,
        maximum=MAX_SEED,
        group="design",
        searchable=False,
    )
    device: str = setting(
        "auto",
        "auto takes the GPU if there is one",
        choices=("auto", "cpu", "cuda"),
        group="machine",
    )
    conv_algorithm: str = setting(
        "profiled",
        "how a GPU's convolutions are chosen, in every framework alike: tried out, by rules, or repeatable; on a CPU: "
        "oneDNN's, or the framework's own",
        choices=("profiled", "heuristic", "fixed", "onednn", "plain"),
        group="machine",
        advanced=True,
    )
    threads: int = setting(
        0,
        "CPU threads of every framework alike; 0: one for each CPU it may use",
        minimum=0,
        maximum=1_024,
        group="machine",
    )
    timing: str = setting(
        "auto",
        "step: the device is waited for after every step; free: once a window of window_steps; "
        "both: in turns; auto: both where all cells run on a GPU, else step",
        choices=("auto", "step", "free", "both"),
        group="clock",
        searchable=False,
    )
    window_steps: int = setting(
        10,
        "steps that run freely between two readings of the clock",
        minimum=1,
        maximum=MAX_WINDOW,
        group="clock",
        searchable=False,
        advanced=True,
    )
    pairing: str = setting(
        "sequential",
        "sequential: one cell after the other; interleaved: all cells of a block are alive and take turns",
        choices=("sequential", "interleaved"),
        group="clock",
        searchable=False,
    )
    reserve_cores: int = setting(
        0,
        "CPUs that cells do not run on, left to the parent and all else; 0: none",
        minimum=0,
        maximum=1_023,
        group="machine",
        advanced=True,
    )
    pin: str = setting(
        "none",
        "auto: cells stay on a fixed set of cores, one thread of each, and the parent on another where there are three",
        choices=("none", "auto"),
        group="machine",
        advanced=True,
    )
    executor: str = setting(
        "local",
        "where cells run: on this machine, or as jobs of a Slurm cluster (docs/cluster.md)",
        choices=("local", "slurm"),
        group="cluster",
        material=False,
        searchable=False,
        advanced=True,
    )
    partition: str = setting(
        "",
        "with executor=slurm, the partition that jobs are sent to; none: the cluster's default",
        group="cluster",
        material=False,
        searchable=False,
        advanced=True,
    )
    nodes: int = setting(
        1,
        "with executor=slurm, the jobs that blocks are dealt to, each with a whole node; of a sweep, its workers",
        minimum=1,
        maximum=MAX_NODES,
        group="cluster",
        material=False,
        searchable=False,
        advanced=True,
    )
    gres: str = setting(
        "",
        "with executor=slurm, what each node must have, in Slurm's words: gpu:1",
        group="cluster",
        material=False,
        searchable=False,
        advanced=True,
    )
    time_limit: str = setting(
        "1h",
        "with executor=slurm, how long a job may run; then it is requeued and goes on from its last checkpoint",
        group="cluster",
        material=False,
        searchable=False,
        advanced=True,
    )
    others_limit_percent: float = setting(
        OTHERS_LIMIT_PERCENT,
        "CPU share of other programs above which a cell is repeated once, and above which times get no verdict; 100: off",
        minimum=0,
        maximum=100,
        group="machine",
        material=False,
        searchable=False,
        advanced=True,
    )
    repeat_odd_block: bool = setting(
        True,
        "measure a single block that is unlike all others once more after the last block; with until=fixed",
        group="design",
        material=False,
        searchable=False,
        advanced=True,
    )
    cool_down_seconds: float = setting(
        120.0,
        "longest wait before a cell on the CPU until the temperature of the start is reached, where a sensor exists; 0: none",
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
    pythons: tuple[str, ...] = setting(
        (),
        "interpreters of frameworks that are installed in environments of their own: tensorflow=/PATH/bin/python,…",
        group="machine",
        material=False,
        searchable=False,
        advanced=True,
    )
    malloc: str = setting(
        "system",
        "freed memory: system: the C library decides, in some processes anew in every step; keep: it stays with the process",
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
    aa: bool = setting(
        False,
        "the baseline once more in every block: it must come out as equal (A/A)",
        group="verdict",
        material=False,
        searchable=False,
    )
    inject_delay: float = setting(
        0.0,
        "the baseline once more in every block, each step slowed by this share (5%): it must be found",
        minimum=0,
        maximum=10,
        group="verdict",
        searchable=False,
        advanced=True,
    )
    allow_unequal: bool = setting(
        False,
        "measure networks that the parity gate does not call equal, and mark the report",
        group="verdict",
        material=False,
        searchable=False,
        advanced=True,
    )
    protocol: str = setting(
        "sound",
        "paper: the published procedure is shown beside the verdicts",
        choices=("sound", "paper"),
        group="verdict",
        material=False,
        searchable=False,
        advanced=True,
    )
    margin: float = setting(
        0.03,
        "the smallest ratio that matters, fixed before measuring",
        minimum=0.001,
        maximum=0.5,
        group="verdict",
        material=False,
        searchable=False,
    )
    primary: tuple[str, ...] = setting(
        (),
        "one to three outcomes that the study is about, tested before all others; none: the study's own",
        group="verdict",
        material=False,
        searchable=False,
    )
    figures: bool = setting(
        True,
        "draw the report's figures; without them the report is ready sooner",
        group="records",
        material=False,
        searchable=False,
        advanced=True,
    )
    team: str = setting(
        "", "whose runs these are (tag team)", group="records", material=False, searchable=False
    )
    journal: str = setting(
        ".evenhand/journal",
        "folder of the local journal: every record is written there before it is sent",
        path=True,
        group="records",
        silent=True,
        advanced=True,
    )
    cache: str = setting(
        ".evenhand/cache",
        "folder for data and features, so that they are computed once",
        path=True,
        group="records",
        silent=True,
        advanced=True,
    )
    dry_run: bool = setting(
        False,
        "print the cells, what earlier ones took and what they could detect; measure and write nothing",
        group="design",
        silent=True,
    )
    resume: str = setting(
        "", "a campaign's run id, or last: run only what is missing", group="records", silent=True
    )

    @property
    def until_settled(self) -> bool:
        """Whether the number of blocks is not fixed."""
        return self.until == "settled"

    @property
    def on_cluster(self) -> bool:
        """Whether cells run on other machines than the one that this process runs on."""
        return self.executor != "local"

    @property
    def workers_of_a_cell(self) -> int:
        """Most processes of a cell that train together."""
        return 1

    @property
    def nodes_of_a_job(self) -> int:
        """How many nodes a job has: one, unless a cell needs several at a time."""
        return 1

    @property
    def cpus_of_a_node(self) -> int:
        """The fewest CPUs that a node must have; 0: as many as it has."""
        return 0

    @property
    def most_blocks(self) -> int:
        """The most blocks there can be."""
        return self.max_blocks if self.until_settled else self.blocks


def of_group(settings: Any, group: str) -> frozenset[str]:
    """Names of the settings of one subject."""
    return frozenset(
        field.name for field in _fields(settings) if field.metadata.get("group") == group
    )


def parse(kind: type[T], presets: Mapping[str, Mapping[str, Any]], given: Mapping[str, str]) -> T:
    """Settings from text: defaults, the preset's (where there are any), then what was given. Raises WrongCall, one line."""
    fields = {field.name: field for field in _fields(kind)}
    if "settings" in fields and given.get("settings"):
        given = {**read(Path(_text("settings", given["settings"]))), **given}
    for name in given:
        refuse_parameter(kind, name)
        if name not in fields:
            names = [field.name for field in for_users(kind)]
            raise WrongCall(f"there is no setting '{plain.short(name)}'{suggestion(name, names)}")
    types_ = typing.get_type_hints(kind)
    values = {name: convert(name, text, types_[name]) for name, text in given.items()}
    settings = kind(**{**of_preset(presets, given), **values})
    check(settings)
    return settings


def for_users(kind: type[Any]) -> list[dataclasses.Field[Any]]:
    """Return the settings that a caller can set: a study sets its parameters, cell by cell."""
    parameters = _parameters(kind)
    return [field for field in _fields(kind) if field.name not in parameters]


def refuse_parameter(kind: type[Any], name: str, where: str = "") -> None:
    """Raise WrongCall for a parameter of cells, with what to set instead."""
    if name in _parameters(kind):
        instead = " or ".join(_parameters(kind)[name].metadata["instead"])
        raise WrongCall(f"{where}{name} is set by the study, cell by cell; set {instead} instead")


def _parameters(kind: type[Any]) -> dict[str, dataclasses.Field[Any]]:
    is_study = issubclass(kind, CampaignSettings)
    return {field.name: field for field in _fields(kind.parameters)} if is_study else {}


def of_cell(settings: S, values: Mapping[str, Any]) -> S:
    """Return the settings of a cell.

    Args:
        settings: The user's, or those of a cell.
        values: The cell's own values of settings, and its parameters.
    """
    kind: Any = type(settings)
    if not isinstance(settings, settings.parameters):
        kind = _cell_type(kind)
    cell: S = kind(**{**vars(settings), **values})
    return cell


@functools.cache
def _cell_type(kind: type[Any]) -> type[Any]:
    return dataclasses.make_dataclass(kind.__name__, (), bases=(kind.parameters, kind), frozen=True)


def of_preset(presets: Mapping[str, Mapping[str, Any]], given: Mapping[str, str]) -> dict[str, Any]:
    """What the preset asked for sets; nothing where there are no presets. Raises WrongCall for one that is not known."""
    if not presets:
        return {}
    preset = given.get("preset", "demo")
    if preset not in presets:
        raise WrongCall(f"there is no preset '{plain.short(preset)}'; have {', '.join(presets)}")
    return {**presets[preset], "preset": preset}


def read(path: Path) -> dict[str, str]:
    """Settings of a JSON file: an object of texts, numbers, truth values and flat lists. Raises WrongCall."""
    named = f"settings={plain.short(str(path))}"
    try:
        with path.open("rb") as file:
            text = file.read(MAX_BYTES + 1)
        if len(text) > MAX_BYTES:
            raise WrongCall(f"{named} has more than {MAX_BYTES:,} bytes: no file of settings has")
        found = json.loads(text, object_pairs_hook=_each_once)
    except OSError as error:
        raise WrongCall(f"{named} cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        reason = str(error) if isinstance(error, ValueError) else "nested too deeply"
        raise WrongCall(f"{named} is not JSON: {reason}") from None
    if not isinstance(found, dict):
        raise WrongCall(f'{named} holds no object; write {{"batch_size": 64}}')
    for name, value in found.items():
        parts = value if isinstance(value, list) else [value]
        if not all(isinstance(part, str | int | float | bool) for part in parts):
            raise WrongCall(
                f"{named}: {plain.short(name)} is neither a text, a number, true, false, nor a list of them"
            )
    return {
        name: to_text(tuple(value) if isinstance(value, list) else value)
        for name, value in found.items()
    }


def _each_once(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise WrongCall(f"{plain.short(name)} is given twice in the file of settings; keep one")
        found[name] = value
    return found


def _fields(settings: Any) -> tuple[dataclasses.Field[Any], ...]:
    return dataclasses.fields(settings)


def check(settings: Any) -> None:
    """Raises WrongCall for the first value out of range."""
    for field in _fields(settings):
        value, rules = getattr(settings, field.name), field.metadata
        if isinstance(value, tuple) and len(value) > MAX_VALUES:
            raise WrongCall(f"{field.name} names {len(value):,} values; at most {MAX_VALUES}")
        for one in value if isinstance(value, tuple) else (value,):
            given = f"{field.name}={plain.short(to_text(one))}"
            if isinstance(one, float) and not math.isfinite(one):
                raise WrongCall(f"{given} is not a finite number")
            if rules.get("choices") and one not in rules["choices"]:
                raise WrongCall(f"{given} is not known; choose {', '.join(rules['choices'])}")
            if rules.get("path") and (problem := _path_problem(one)):
                raise WrongCall(f"{given} {problem}")
            if rules.get("minimum") is not None and one < rules["minimum"]:
                raise WrongCall(f"{given} is too small; at least {rules['minimum']}")
            if rules.get("maximum") is not None and one > rules["maximum"]:
                raise WrongCall(f"{given} is too large; at most {rules['maximum']}")
        if isinstance(value, tuple) and not value and field.default:
            raise WrongCall(f"{field.name} is empty; name at least one")
        if isinstance(value, tuple) and len(set(value)) < len(value):
            raise WrongCall(f"{field.name}={plain.short(to_text(value))} names one twice")


def _path_problem(text: str) -> str:
    """Why no file system here holds such a path, or empty; whether there is one is another question."""
    try:
        whole = os.fsencode(Path(text).expanduser().resolve())
    except (RuntimeError, OSError, ValueError):
        return "leads nowhere: through links in a circle, or into the home of nobody"
    if len(whole) > MAX_PATH_BYTES or any(len(part) > MAX_NAME_BYTES for part in whole.split(b"/")):
        return f"is too long; a path has at most {MAX_PATH_BYTES:,} bytes, a name in it {MAX_NAME_BYTES}"
    return ""


def require_writable(folder: Path, settings: str, mode: int = 0o777) -> None:
    """Makes a folder that the user has named, if need be. settings: those that name it. Raises WrongCall."""
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=mode)
        probe = folder / f".probe-{os.getpid()}"
        probe.write_text("")
        probe.unlink()
    except OSError as error:
        raise WrongCall(
            f"cannot write in {folder.resolve()}: {error.strerror}; choose another folder for it ({settings})"
        ) from None


def convert(name: str, text: str, kind: Any) -> Any:
    """Text from the command line as a value of a field's type. Raises WrongCall."""
    text = _text(name, text)
    if typing.get_origin(kind) is tuple:
        return tuple(
            convert(name, part.strip(), typing.get_args(kind)[0])
            for part in text.split(",")
            if part.strip()
        )
    if kind is bool:
        if text.lower() in ("true", "yes", "1", "false", "no", "0"):
            return text.lower() in ("true", "yes", "1")
        raise WrongCall(f"{name}={plain.short(text)} is neither true nor false")
    return text if kind is str else _number(name, text, kind)


def _text(name: str, text: str) -> str:
    if len(text) > MAX_CHARACTERS:
        raise WrongCall(
            f"{name}={plain.short(text)} has {len(text):,} characters; at most {MAX_CHARACTERS:,}"
        )
    if plain.CONTROLS.search(text):
        raise WrongCall(
            f"{name}={plain.short(text)} has control characters, or bytes that are not UTF-8; write it without them"
        )
    return text


def _number(name: str, text: str, kind: type[int] | type[float]) -> int | float:
    """A number from text; only ASCII digits are taken."""
    try:
        text.encode("ascii")
        return float(text[:-1]) / 100 if kind is float and text.endswith("%") else kind(text)
    except ValueError:
        what = "a whole number" if kind is int else "a number"
        raise WrongCall(f"{name}={plain.short(text)} is not {what}") from None


def as_text(settings: Any) -> dict[str, str]:
    """Every setting as the text that MLflow logs."""
    return {field.name: to_text(getattr(settings, field.name)) for field in _fields(settings)}


def to_text(value: Any) -> str:
    if isinstance(value, tuple):
        return ",".join(map(to_text, value))
    if isinstance(value, bool):
        return str(value).lower()
    return "" if value is None else str(value)


def from_values(kind: type[T], values: Mapping[str, Any]) -> T:
    """Settings from JSON values, as the journal keeps them."""
    fields = {field.name: field for field in _fields(kind)}
    for name, field in fields.items():
        if name not in values and field.metadata["material"]:
            raise WrongCall(f"resume: the campaign did not record {name}; start anew")
    return kind(**{name: _of_json(values[name]) for name in fields if name in values})


def _of_json(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def suggestion(name: str, names: Collection[str]) -> str:
    """Return what may have been meant, as the end of a sentence."""
    close = difflib.get_close_matches(name, names, n=1)
    return f"; did you mean {close[0]}?" if close else f"; have {', '.join(names)}"
