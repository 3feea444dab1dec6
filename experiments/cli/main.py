"""The command line: the only place that reads the call, writes error lines and decides exit codes."""

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
from models.errors import ModelError
from tracking import mlflow_defaults, plain
from tracking.errors import EvenhandError, WrongCall

FULL = (errno.ENOSPC, errno.EDQUOT)


def run() -> int:
    """Entry point of the console script."""
    _print_plainly()
    gc.set_threshold(
        50_000, 20, 20
    )  # what imports and comparisons make stays: looking through it takes a tenth of the time
    return main(sys.argv[1:])


def main(words: Sequence[str]) -> int:
    """Does what the words ask for and returns the exit code; every way in which that can end is one line of text."""
    mlflow_defaults.apply()
    try:
        return _dispatch(words)
    except Interrupted as error:
        _complain(f"{error}. Continue with: {error.command}")
        return 128 + (STOP.number or signal.SIGINT)
    except KeyboardInterrupt:
        _complain(f"stopped by {STOP.name}")
        return 128 + (STOP.number or signal.SIGINT)
    except (WrongCall, ModelError) as error:
        _complain(str(error))
        return WRONG_CALL
    except EvenhandError as error:
        _complain(str(error))
        return FAILED
    except BaseException as error:  # code of the user's runs here too, and may raise anything
        return _unforeseen(error)


def _dispatch(words: Sequence[str]) -> int:
    if shell.COMPLETING in os.environ:
        from experiments.cli import completion

        print(completion.answer(os.environ[shell.COMPLETING]))
        return DONE
    if not words or words[0] in ("-h", "--help"):
        print(help.overview())
        return DONE
    name, *rest = words
    if name == "--version":
        print(f"evenhand {shell.version()}")
        return DONE
    if name == "--completion":
        from experiments.cli import completion

        print(completion.script(rest))
        return DONE
    entry = entries.load(name)
    if set(rest) & {"-h", "--help"}:
        print(help.page(entry, rest))
        return DONE
    return entry.run(arguments.with_named_models(arguments.options(rest, entry)))


def _unforeseen(error: BaseException) -> int:
    """What no part of the product expects is a fault of its own, but for a full disk and a reader who has seen enough."""
    if isinstance(error, BrokenPipeError) and _reader_left():
        return DONE
    if isinstance(error, OSError) and error.errno in FULL:
        _complain(
            f"{error.strerror}: {error.filename or os.getcwd()}; make room, or choose another folder"
        )
        return WRONG_CALL
    path = shell.keep_traceback(error)
    _complain(
        f"a fault of evenhand's own: {type(error).__name__}: {plain.short(str(error))}; the traceback is in {path}"
    )
    return FAILED


def _reader_left() -> bool:
    """Whether nobody reads standard output any more, as behind `| head`."""
    output = select.poll()
    output.register(sys.stdout)
    if not any(event & select.POLLERR for _, event in output.poll(0)):
        return False
    sys.stdout = None  # or its last words would fail once more at the end
    return True


def _complain(text: str) -> None:
    print(f"evenhand: {plain.line(text)}", file=sys.stderr)


def _print_plainly() -> None:
    """What a terminal cannot write is escaped; so is what libraries quote in their warnings, as names in a figure."""
    sys.stdout.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    formatted = warnings.formatwarning
    warnings.formatwarning = lambda *told, **more: plain.visible(formatted(*told, **more))
