"""`evenhand selftest`: the acceptance kit's results in the terminal and in two files."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from experiments.cli.commands.selftest import Selftest
from experiments.config import devices
from experiments.config import settings as settings_
from experiments.config.console import Display
from experiments.selftest import running
from experiments.selftest.checks import FAILED, PASSED, Check, CheckResult, Context
from models import frameworks

JSON, MARKDOWN = "selftest.json", "selftest.md"


def selftest(settings: Selftest, display: Display) -> tuple[dict[str, Any], tuple[Path, Path]]:
    """Run the checks and return their results, and the files that hold them.

    Raises:
        WrongCall: for a GPU that is missing, and for a folder that cannot be written.
        ModelError: for a framework that does not exist.
    """
    for name in settings.frameworks:
        frameworks.check(name)
    device, folder = devices.present(settings.device), Path(settings.output)
    settings_.require_writable(folder, "output=DIR")

    def progress(check: Check, done: int, total: int) -> None:
        display.step(f"{check.number} {check.name}", done, total)

    def finished(result: CheckResult) -> None:
        reason = f": {result.reason}" if result.reason else ""
        text = f"{result.number:2} {result.name}: {result.status}{reason}, {result.seconds:.0f} s"
        if result.status in (PASSED, FAILED):
            display.finish(text, good=result.status == PASSED)
        else:
            display.say(f"– {text}")

    display.begin(f"selftest on {device}")
    with tempfile.TemporaryDirectory() as work:
        context = Context(device, settings.frameworks, Path(work))
        results = running.run_checks(settings.checks, context, progress, finished)
    values = running.as_values(results, device)
    paths = (folder / JSON, folder / MARKDOWN)
    paths[0].write_text(running.as_json(values), encoding="utf-8")
    paths[1].write_text(running.as_markdown(values), encoding="utf-8")
    return values, paths
