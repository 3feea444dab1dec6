"""Levels and outcomes of a race: from a file `race.toml`, or from `--level NAME=COMMAND`."""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    StringConstraints,
    ValidationError,
    model_validator,
)

from experiments.config import durations
from experiments.config.settings import path_problem, read_file
from tracking import limits, plain
from tracking.errors import ErrorCode, UsageError, suggestion
from tracking.redaction import MASK, SECRET, Redaction, secrets

_LEVEL = r"[A-Za-z0-9][\w.+-]{0,59}"
_EXAMPLE = "write --level old='python train.py' --level new='python train.py --fast'"


def _regex(text: str) -> str:
    try:
        groups = re.compile(text).groups
    except (re.error, RecursionError, OverflowError) as error:
        raise ValueError(f"does not compile: {error}") from None
    if text and groups != 1:
        raise ValueError(f"has {groups} groups; write one around the number: 'loss: ([0-9.e+-]+)'")
    return text


def _folder(text: str) -> str:
    if problem := path_problem(text):
        raise ValueError(problem)
    return text


Variable = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]
LevelName = Annotated[str, StringConstraints(pattern=f"^{_LEVEL}$")]
# Programs, variables and paths hold no NUL.
AnyText = Annotated[str, StringConstraints(pattern=r"^[^\x00]*$")]
Text = Annotated[AnyText, StringConstraints(min_length=1, strip_whitespace=True)]


class _Table(BaseModel):
    """Table of the file, without unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Conditions(_Table):
    """Conditions under which a command runs.

    cwd: relative to the file. requirements: arguments of an installer, one each.
    """

    cwd: Annotated[Text, AfterValidator(_folder)] = "."
    env: dict[Variable, AnyText] = {}
    timeout: str = "none"
    commit: Text | None = None
    requirements: tuple[Text, ...] = ()
    python: Text | None = None


class Level(Conditions):
    """Command with its conditions."""

    command: Text

    @property
    def secrets(self) -> list[str]:
        """Values that are never recorded, those that the command inherits included."""
        return secrets({**os.environ, **self.env}, self.command, *self.requirements)

    @property
    def recorded(self) -> dict[str, Any]:
        """Level as it is recorded: without secrets, and its variables as a text."""
        variables = " ".join(
            f"{name}={MASK if SECRET.search(name) else text}" for name, text in self.env.items()
        )
        values = {**self.model_dump(mode="json", exclude={"env"}), "variables": variables}
        recorded: dict[str, Any] = Redaction(self.secrets).all(values)
        return recorded


class ReportedOutcome(_Table):
    """Outcome that a script reports.

    kind: what is judged, a ratio of both sides or a difference. margin: as a share for a ratio, in
    the unit for a difference. regex: its first group is the value in the script's output. summary:
    which of several values counts: `step:N` is that of a step.
    """

    better: Literal["lower", "higher"]
    kind: Literal["ratio", "difference"] | None = None
    margin: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    unit: str = ""
    regex: Annotated[str, AfterValidator(_regex)] = ""
    summary: Annotated[str, StringConstraints(pattern=r"^(last|best|step:[0-9]{1,18})$")] = "last"

    @model_validator(mode="after")
    def _check_margin(self) -> Self:
        if self.kind == "difference" and self.margin is None:
            raise ValueError("a difference needs a margin, in the unit of the values")
        return self


class _Outcomes(BaseModel):
    """Table `[outcomes]`: names of primary outcomes, and a table for each that scripts report."""

    model_config = ConfigDict(frozen=True, extra="allow")
    __pydantic_extra__: dict[str, ReportedOutcome] = Field(init=False)

    primary: tuple[Text, ...] = ()

    @model_validator(mode="after")
    def _check_names(self) -> Self:
        for name in self.__pydantic_extra__:
            if trouble := limits.key_trouble(name):
                raise ValueError(trouble)
        return self


class _OutcomesFile(_Table):
    """File in which commands may be missing."""

    defaults: Conditions = Conditions()
    levels: dict[LevelName, Level] = {}
    outcomes: _Outcomes = _Outcomes()


class _File(_OutcomesFile):
    levels: dict[LevelName, Level] = Field(min_length=1)


F = TypeVar("F", bound=_OutcomesFile)


class Race(_Table):
    """Levels of a race, the baseline first, and what their scripts report.

    folder: the one that relative paths begin at.
    """

    folder: Path
    levels: dict[str, Level]
    outcomes: dict[str, ReportedOutcome] = {}
    primary: tuple[str, ...] = ()


def load_outcomes(path: Path, label: str) -> tuple[Mapping[str, ReportedOutcome], tuple[str, ...]]:
    """Return the declared outcomes of a file, and the names of the primary ones.

    Args:
        path: Of the file, which need not have levels.
        label: How a message names it.

    Raises:
        UsageError: For the first mistake, with the path of its key.
    """
    outcomes = _read(_OutcomesFile, path, label).outcomes
    return outcomes.__pydantic_extra__, outcomes.primary


def load(file: str, levels: Sequence[str], timeout: str) -> Race:
    """Return a race.

    Args:
        file: Path of the file; empty if there is none.
        levels: Texts `NAME=COMMAND`, if there is no file.
        timeout: Of commands for which the file has none.

    Raises:
        UsageError: For the first mistake, with the path of its key.
    """
    if file and levels:
        raise UsageError(
            ErrorCode.CONFLICT, f"file={file} and level both name commands; leave one of them out"
        )
    race = _from_file(Path(file).expanduser(), timeout) if file else _from_texts(levels, timeout)
    for name, level in race.levels.items():
        durations.seconds(f"timeout of level {name}", level.timeout)
    return race


def _from_file(path: Path, timeout: str) -> Race:
    file = _read(_File, path, f"file={plain.path(path)}")
    defaults = {"timeout": timeout, **file.defaults.model_dump(exclude_unset=True)}
    merged = {}
    for name, level in file.levels.items():
        variables = {"env": file.defaults.env | level.env}
        merged[name] = Level(**defaults | level.model_dump(exclude_unset=True) | variables)
    return Race(
        folder=path.resolve().parent,
        levels=merged,
        outcomes=file.outcomes.__pydantic_extra__,
        primary=file.outcomes.primary,
    )


def _read(kind: type[F], path: Path, label: str) -> F:
    try:
        values = tomllib.loads(read_file(path, label).decode())
    except (OSError, ValueError, RecursionError) as error:
        raise UsageError(
            ErrorCode.UNREADABLE,
            f"{label} cannot be read: {plain.short(str(error))}; write TOML as in "
            "docs/tutorials/your-script.md",
        ) from None
    try:
        return kind.model_validate(values)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
    *parents, key = (str(part) for part in first["loc"] if part != "[key]")
    right, reason = "", first["msg"].removeprefix("Value error, ")
    if first["type"] == "extra_forbidden":
        table = Level if parents[:1] == ["levels"] else Conditions
        if parents[:1] == ["outcomes"]:
            table = ReportedOutcome  # type: ignore[assignment]
        fields = table.model_fields if parents else kind.model_fields
        reason, right = "is not known", suggestion(key, list(fields))
    raise UsageError(
        ErrorCode.UNKNOWN_NAME if right else ErrorCode.INVALID_VALUE,
        f"{label}: {plain.short('.'.join([*parents, key]))}: {reason}{right}",
    )


def _from_texts(texts: Sequence[str], timeout: str) -> Race:
    if not texts:
        raise UsageError(ErrorCode.MISSING_VALUE, f"a race needs commands; {_EXAMPLE}")
    levels = dict[str, Level]()
    for text in texts:
        name, equals, command = text.partition("=")
        if not (equals and command.strip() and re.fullmatch(_LEVEL, name)):
            raise UsageError(
                ErrorCode.INVALID_VALUE,
                f"level={plain.short(text)} is no NAME=COMMAND with a name of letters, digits and "
                f"_.+-; {_EXAMPLE}",
            )
        if name in levels:
            raise UsageError(ErrorCode.DUPLICATE, f"level {name} is named twice; keep one")
        levels[name] = Level(command=command, timeout=timeout)
    return Race(folder=Path.cwd(), levels=levels)
