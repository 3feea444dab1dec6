"""A run of the acceptance kit, its results as JSON and as Markdown."""

from __future__ import annotations

import json
import math
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from experiments.selftest.catalogue import CHECKS
from experiments.selftest.checks import (
    FAILED,
    PASSED,
    SKIPPED,
    Check,
    CheckResult,
    Context,
    Figure,
    Skip,
)
from models import frameworks
from models.contract import ModelError
from tracking import clock, plain, provenance
from tracking.errors import EvenhandError

FORMAT = 1
NEEDS_GPU = "needs an NVIDIA GPU; this run is on the CPU"


def run_check(check: Check, context: Context) -> CheckResult:
    """Run one check; however it ends, that is its result."""
    began = time.perf_counter()
    if not (context.has_gpu or check.on_cpu):
        return CheckResult(check.number, check.name, check.must_hold, SKIPPED, 0.0, NEEDS_GPU)
    figures: Sequence[Figure] = ()
    try:
        with tempfile.TemporaryDirectory(dir=context.folder) as folder:
            figures = check.function(replace(context, folder=Path(folder)))
        unmet = [figure.name for figure in figures if figure.holds is False]
        status, reason = (FAILED, f"does not hold: {', '.join(unmet)}") if unmet else (PASSED, "")
        if not unmet and not any(figure.holds for figure in figures):
            status, reason = (
                SKIPPED,
                "; ".join(filter(None, (figure.reason for figure in figures)))
                or "nothing was measured",
            )
    except Skip as error:
        status, reason = SKIPPED, str(error)
    except (EvenhandError, ModelError) as error:
        status, reason = FAILED, str(error)
    except Exception as error:  # one check's fault must not hide the others' results
        status, reason = FAILED, f"{type(error).__name__}: {error}"
    seconds = round(time.perf_counter() - began, 1)
    return CheckResult(
        check.number,
        check.name,
        check.must_hold,
        status,
        seconds,
        " ".join(reason.split()),
        tuple(figures),
    )


def run_checks(
    numbers: Sequence[int],
    context: Context,
    progress: Callable[[Check, int, int], None] = lambda *_: None,
    finished: Callable[[CheckResult], None] = lambda _: None,
) -> list[CheckResult]:
    """Run checks by number, or all of them."""
    checks = [check for check in CHECKS if not numbers or check.number in numbers]
    results = []
    for done, check in enumerate(checks):
        progress(check, done, len(checks))
        results.append(run_check(check, context))
        finished(results[-1])
    return results


def as_values(results: Sequence[CheckResult], device: str) -> dict[str, Any]:
    """Return everything of a run, for a JSON file: infinite and undefined figures are texts there."""
    return {
        "selftest": FORMAT,
        "device": device,
        "ended_ms": clock.now_ms(),
        "commit": provenance.commit(),
        "machine": {name: value for name, value in provenance.machine().items() if name != "host"},
        "packages": provenance.packages(frameworks.distributions()),
        "counts": {
            status: sum(result.status == status for result in results)
            for status in (PASSED, FAILED, SKIPPED)
        },
        "checks": [
            {
                **asdict(result),
                "figures": [
                    {**asdict(figure), "value": _finite(figure.value)} for figure in result.figures
                ],
            }
            for result in results
        ],
    }


def as_json(values: dict[str, Any]) -> str:
    return json.dumps(values, indent=1, allow_nan=False) + "\n"


def as_markdown(values: dict[str, Any]) -> str:
    """Return the summary for a report of a fault."""
    machine, counts = values["machine"], values["counts"]
    cards = ", ".join(machine["gpus"]) or "none"
    lines = [
        f"# evenhand selftest on {values['device']}",
        "",
        f"{counts[PASSED]} passed, {counts[FAILED]} failed, {counts[SKIPPED]} skipped.",
        "",
        f"- ended: {time.strftime('%Y-%m-%d %H:%M', time.gmtime(values['ended_ms'] / 1_000))} UTC",
        f"- system: {_cell(machine['system'])}, {machine['memory_gib']} GiB of memory",
        f"- CPU: {_cell(machine['cpu'])}, {machine['cores']} cores",
        f"- GPU: {_cell(cards)}",
        f"- packages: {', '.join(f'{name} {version}' for name, version in values['packages'].items())}",
        f"- commit: {values['commit'] or 'not known'}",
        "",
        "Each check does work whose answer is known. `docs/gpu.md` explains them by number.",
        "",
        "| # | check | result | seconds | must hold | why it did not pass |",
        "|--:|---|---|--:|---|---|",
    ]
    for check in values["checks"]:
        cells = [str(check["number"]), check["name"], check["status"], str(check["seconds"])]
        cells += [check["must_hold"], check["reason"]]
        lines.append(f"| {' | '.join(map(_cell, cells))} |")
    lines += ["", "| # | figure | value | limit | holds |", "|--:|---|--:|---|---|"]
    for check in values["checks"]:
        for figure in check["figures"]:
            holds = {True: "yes", False: "**no**", None: "–"}[figure["holds"]]
            has_value = figure["value"] is not None
            value = _number(figure["value"]) if has_value else f"not measured: {figure['reason']}"
            limit = figure["limit"] or ("none, reported only" if has_value else "–")
            cells = [str(check["number"]), figure["name"], value, limit]
            lines.append(f"| {' | '.join(map(_cell, cells))} | {holds} |")
    return "\n".join(lines) + "\n"


def _finite(value: float | str | None) -> float | str | None:
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _number(value: float | str) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _cell(text: str) -> str:
    return plain.line(str(text)).replace("|", "\\|")
