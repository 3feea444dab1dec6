"""Entry point of the command line: dispatch, error lines and exit codes."""

from __future__ import annotations

import errno
import gc
import os
import select
import signal
import sys
import warnings
from collections.abc import Sequence

from experiments.cli import arguments, entries, help
from experiments.cli.codes import DONE, FAILED, WRONG_CALL
from experiments.config import shell
from experiments.config.stopping import STOP, Interrupted
from tracking import mlflow_defaults, plain
from tracking.errors import ErrorCode, EvenhandError, UsageError, suggestion

FULL = (errno.ENOSPC, errno.EDQUOT)


def run() -> int:
    _escape_output()
    # objects of imports and comparisons stay alive: fewer collections take a tenth of the time
    gc.set_threshold(50_000, 20, 20)
    STOP.watch()
    return main(sys.argv[1:])


def main(words: Sequence[str]) -> int:
    """Run a call and return its exit code; every failure is one line of text."""
    mlflow_defaults.apply()
    try:
        return _dispatch(words)
    except KeyboardInterrupt as error:
        if not STOP.number:
            return _report_raised(error)
        _print_error(f"stopped by {STOP.name}")
        return 128 + STOP.number
    except EvenhandError as error:
        if isinstance(error, Interrupted):
            _print_error(f"{error}. Continue with: {error.command}")
            return 128 + (STOP.number or signal.SIGINT)
        _print_error(str(error))
        return WRONG_CALL if isinstance(error, UsageError) else FAILED
    except BaseException as error:  # the user's code runs here too, and may raise anything
        return _report_unexpected(error)


def _dispatch(words: Sequence[str]) -> int:
    name, *rest = words or ["--help"]
    if name in ("-h", "--help", "help"):
        print(help.overview())
    elif name == "--version":
        print(f"evenhand {shell.version()}")
    elif {"-h", "--help"} & set(rest):
        print(help.page(entries.load(name), rest))
    elif name.startswith("-"):
        right = suggestion(name, help.OPTIONS)
        text = f"there is no option '{plain.short(name)}' before a name{right}"
        raise UsageError(ErrorCode.UNKNOWN_NAME, text)
    else:
        entry = entries.load(name)
        return entry.run(arguments.with_named_models(arguments.options(rest, entry)))
    return DONE


def _report_unexpected(error: BaseException) -> int:
    """Report an error that no module expects: a closed pipe, a full disk, or a fault."""
    if isinstance(error, BrokenPipeError) and _is_output_closed():
        sys.stdout = None  # or flushing it at the end fails again
        return DONE
    if isinstance(error, OSError) and error.errno in FULL:
        path = error.filename or os.getcwd()
        _print_error(f"{error.strerror}: {path}; free some space, or choose another folder")
        return WRONG_CALL
    path = shell.keep_traceback(error)
    text = f"{type(error).__name__}: {plain.short(str(error))}"
    _print_error(f"a fault of evenhand: {text}; the traceback is in {path}")
    return FAILED


def _report_raised(error: KeyboardInterrupt) -> int:
    """Report an interrupt without a signal: the user's code has raised it."""
    at = error.__traceback__
    while at and at.tb_next:
        at = at.tb_next
    place = f"{plain.path(at.tb_frame.f_code.co_filename)}, line {at.tb_lineno}" if at else "code"
    _print_error(f"{place}: KeyboardInterrupt is raised without a signal; raise another error")
    return WRONG_CALL


def _is_output_closed() -> bool:
    """Return whether the reader of standard output has ended, as in `| head`."""
    output = select.poll()
    output.register(sys.stdout)
    return any(event & select.POLLERR for _, event in output.poll(0))


def _print_error(text: str) -> None:
    print(f"evenhand: {plain.line(text)}", file=sys.stderr)


def _escape_output() -> None:
    """Escape characters that a terminal cannot write, in output and in warnings of libraries."""
    sys.stdout.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    format_warning = warnings.formatwarning
    warnings.formatwarning = lambda *args, **kwargs: plain.visible(format_warning(*args, **kwargs))
