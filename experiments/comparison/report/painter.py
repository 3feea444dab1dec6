"""A second process that draws half of the figures of a report of many runs, while this one judges and draws the others."""

from __future__ import annotations

import importlib
import os
import pickle
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from experiments.comparison.report.figures import Figure, Scene

ROOT = Path(__file__).resolve().parents[3]
# Of fewer a report is drawn before the other process has imported what it needs.
MANY_RUNS = 200


class Painter:
    """Started early, since importing takes it a second or two. A painter that is not there, or has died, draws nothing."""

    def __init__(self, runs: int) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        if runs >= MANY_RUNS and len(os.sched_getaffinity(0)) > 1:
            path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
            self._process = subprocess.Popen(
                # -P: not from the working folder, whose `experiments` may be the user's
                [sys.executable, "-P", "-m", __name__],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env={**os.environ, "PYTHONPATH": path},
            )

    def __enter__(self) -> Painter:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._process:
            self._process.kill()
            with suppress(BrokenPipeError):
                self._process.communicate()

    @property
    def there(self) -> bool:
        return self._process is not None

    def ask(self, scene: Scene, names: Sequence[str]) -> None:
        """Hands over what is to be drawn; at once, as soon as the other has imported what it needs."""
        if self._process and self._process.stdin:
            with suppress(BrokenPipeError):
                pickle.dump((scene, tuple(names)), self._process.stdin)
                self._process.stdin.flush()

    def drawn(self) -> list[Figure]:
        """Those figures, once they are done."""
        if not (self._process and self._process.stdout):
            return []
        with suppress(EOFError, pickle.UnpicklingError):
            return list(pickle.load(self._process.stdout))
        return []


def main() -> None:
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    figures = importlib.import_module("experiments.comparison.report.figures")
    with suppress(EOFError):
        scene, names = pickle.load(sys.stdin.buffer)
        pickle.dump(figures.of(scene, names), answers)
        answers.flush()


if __name__ == "__main__":
    main()
