"""Error family; caught only at a process border and at the command line."""

from __future__ import annotations

import re
from collections.abc import Collection
from difflib import get_close_matches
from enum import StrEnum
from pathlib import Path

MAX_LISTED = 20  # names in an error
MAX_FRAMES = 3
_ROOT = Path(__file__).resolve().parents[1]
_FRAME = re.compile(r'^\s*File "(.+)", line (\d+), in (\S+)', re.MULTILINE)
# Folders of packages, which are not part of their names.
_INSTALLED = re.compile(rf".*/(site-packages|lib/python[^/]*)/|{re.escape(str(_ROOT))}/")


class ErrorCode(StrEnum):
    """Reason of an error, for code and tests; the message is for the user."""

    UNKNOWN_NAME = "unknown_name"  # of a setting, model, framework …; the message lists what exists
    INVALID_VALUE = "invalid_value"
    MISSING_VALUE = "missing_value"
    DUPLICATE = "duplicate"
    CONFLICT = "conflict"  # values that exclude each other
    TOO_LARGE = "too_large"
    TOO_FEW = "too_few"
    NOT_FOUND = "not_found"  # a file, folder, run or campaign
    EXISTS = "exists"
    UNREADABLE = "unreadable"
    UNWRITABLE = "unwritable"
    NOT_INSTALLED = "not_installed"
    UNSUPPORTED = "unsupported"  # by this framework, system or experiment
    ENVIRONMENT = "environment"  # a variable that would change what is measured
    NO_DEVICE = "no_device"
    NOT_EQUAL = "not_equal"  # models that do not compute the same
    NOT_EXPORTED = "not_exported"  # a network that an exporter refuses
    DIVERGED = "diverged"
    NO_RUNS = "no_runs"
    ONE_SIDE = "one_side"  # a comparison of a single level
    IN_USE = "in_use"
    UNREACHABLE = "unreachable"  # a server, database or scheduler
    DENIED = "denied"
    CHANGED = "changed"  # since the campaign began
    CHILD_FAILED = "child_failed"
    INTERRUPTED = "interrupted"


class EvenhandError(Exception):
    """Failure that the user reads about in one line (exit code 1)."""

    def __init__(self, code: ErrorCode, message: str) -> None:
        super().__init__(code, message)
        self.code = code
        self.message = message

    def __str__(self) -> str:
        return self.message


class UsageError(EvenhandError):
    """Call that cannot be carried out; the text names what would be right (exit code 2)."""


class ModelError(UsageError):
    """Model, framework, device or file of weights that cannot be used."""


class NoDevice(ModelError):
    """Device that the framework does not see in this process; another framework may."""


def last_lines(output: str) -> str:
    """Return the last line of a failed process's output, with the innermost frames before it."""
    last = (output.strip().splitlines() or ["no message"])[-1]
    return f"{last}{innermost_frames(output)}"


def innermost_frames(traceback: str) -> str:
    """Return the last frames of a traceback in brackets, the innermost first; else an empty text.

    Paths begin with the package: `(keras/src/ops/numpy.py:12 in dot, models/parity.py:7 in main)`.
    """
    frames = [
        f"{_INSTALLED.sub('', path)}:{line} in {function}"
        for path, line, function in _FRAME.findall(traceback)
    ]
    return f" ({', '.join(frames[: -MAX_FRAMES - 1 : -1])})" if frames else ""


def suggestion(name: str, names: Collection[str], help: str = "--help all") -> str:
    """Return what may have been meant, as the end of a sentence.

    Args:
        name: Name that does not exist.
        names: Names that exist.
        help: What lists them.

    Returns:
        The closest name; if none is close, a few names, or what lists many.
    """
    close = get_close_matches(name, names, n=1)
    if close:
        return f"; did you mean {close[0]}?"
    if len(names) <= MAX_LISTED:
        return f"; have {', '.join(names) or 'none'}"
    return f"; {help} lists all {len(names)}"
