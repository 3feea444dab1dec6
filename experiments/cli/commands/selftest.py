"""`evenhand selftest`: known work, measured on this machine."""

from __future__ import annotations

import json
import math
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from experiments.cli.codes import DONE, FAILED
from experiments.cli.commands import Command, Display
from experiments.config.settings import require_writable, setting

if TYPE_CHECKING:
    from experiments.selftest.checks import CheckResult

FORMAT, FILE = 1, "selftest.json"


@dataclass(frozen=True)
class Selftest:
    """Checks of the acceptance kit, and the device that they run on."""

    device: str = setting(
        "auto",
        "device of the known work; auto: the GPU if there is one",
        choices=("auto", "cpu", "cuda"),
        group="checks",
    )
    checks: tuple[int, ...] = setting(
        (),
        "numbers of checks, several with commas; none: all",
        minimum=1,
        maximum=16,
        group="checks",
    )
    frameworks: tuple[str, ...] = setting(
        ("pytorch", "pytorch+compile", "keras-torch", "keras-jax", "tensorflow"),
        "frameworks of the checks; those that are not installed are skipped",
        group="checks",
    )
    output: str = setting(
        ".evenhand/selftest", f"folder that gets {FILE}", path=True, group="output"
    )


def run(settings: Selftest, display: Display) -> int:
    from experiments.config import devices
    from models import frameworks

    for name in settings.frameworks:
        frameworks.check(name)
    device, path = devices.present(settings.device), Path(settings.output, FILE)
    require_writable(path.parent, "output=DIR")
    results = _run_checks(settings, device, display)
    values = _as_values(results, device)
    path.write_text(json.dumps(values, indent=1, allow_nan=False) + "\n", encoding="utf-8")
    counts = ", ".join(f"{count} {status}" for status, count in values["counts"].items())
    display.say(f"{counts}; figures and limits: {path}")
    return FAILED if values["counts"]["failed"] else DONE


def _run_checks(settings: Selftest, device: str, display: Display) -> list[CheckResult]:
    from experiments.selftest.catalogue import CHECKS
    from experiments.selftest.checks import SKIPPED, Context, run_check

    checks = [check for check in CHECKS if not settings.checks or check.number in settings.checks]
    results = []
    display.begin(f"selftest on {device}")
    with tempfile.TemporaryDirectory() as folder:
        for done, check in enumerate(checks):
            display.step(f"{check.number} {check.name}", done, len(checks))
            result = run_check(check, Context(device, settings.frameworks, Path(folder)))
            results.append(result)
            reason = f": {result.reason}" if result.reason else ""
            text = f"{check.number:2} {check.name}: {result.status}{reason}, {result.seconds:.0f} s"
            if result.status == SKIPPED:
                display.say(f"– {text}")
            else:
                display.finish(text, good=not reason)
    return results


def _as_values(results: list[CheckResult], device: str) -> dict[str, Any]:
    """Return the content of the JSON file, in which infinite and undefined figures are texts."""
    from experiments.selftest.checks import FAILED, PASSED, SKIPPED
    from models import frameworks
    from tracking import clock, provenance

    checks = [asdict(result) for result in results]
    for figure in (figure for check in checks for figure in check["figures"]):
        if isinstance(figure["value"], float) and not math.isfinite(figure["value"]):
            figure["value"] = str(figure["value"])
    statuses = [result.status for result in results]
    return {
        "selftest": FORMAT,
        "device": device,
        "ended_ms": clock.now_ms(),
        "commit": provenance.commit(),
        "machine": {name: value for name, value in provenance.machine().items() if name != "host"},
        "packages": provenance.packages(frameworks.distributions()),
        "counts": {status: statuses.count(status) for status in (PASSED, FAILED, SKIPPED)},
        "checks": checks,
    }


COMMAND = Command(
    "Measure known work on this machine's device: an acceptance test of the measurement",
    Selftest,
    run,
)
