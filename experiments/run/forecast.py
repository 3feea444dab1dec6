"""Forecast of a campaign before it begins: its cells, their time, and the detectable effects."""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from experiments import studies
from experiments.comparison.judgement import ComparisonSpec, judged
from experiments.comparison.report import wording
from experiments.comparison.runs.query import table
from experiments.comparison.statistics import power
from experiments.comparison.statistics.estimates import MINIMUM_VALUES, is_constant
from experiments.comparison.statistics.sequential import FIXED, Looks
from experiments.comparison.statistics.significance import ALPHA
from experiments.comparison.verdicts import sample_size
from experiments.comparison.verdicts.decision import NoEstimate
from experiments.comparison.verdicts.findings import Finding
from experiments.config import variation
from experiments.config.console import Display
from experiments.config.settings import CampaignSettings, names_not_affecting_measurement
from experiments.planning.design import Cell
from experiments.run import journal_runs, preflight, preparation
from experiments.run.cell_run import logged_settings, settings_hash
from experiments.run.plan import Plan
from experiments.run.prepared import PreparedCampaign
from experiments.run.scheduler import cells_of, planned_looks
from tracking import journal, provenance
from tracking.errors import ErrorCode, UsageError
from tracking.records import RunKind, RunOutcome, StoredRun


@dataclass(frozen=True)
class Detectable:
    """Smallest effect that 80 % of such campaigns detect, if runs vary as in the last one.

    Attributes:
        finding: Its outcome and levels, from the last campaign.
        sd: Of the differences of its blocks, on the scale of the test.
        after: Number of blocks of this campaign.
    """

    finding: Finding
    sd: float
    after: int
    value: float


@dataclass(frozen=True)
class Forecast:
    """Forecast of a campaign.

    Attributes:
        cells: In their order.
        data: Description of the data; left_out: pictures, folders and cells that are not.
        seconds: Treatment -> duration of each of its cells in the last campaign.
    """

    settings: CampaignSettings
    plan: Plan
    cells: Sequence[Cell]
    data: str
    warnings: Sequence[str]
    seconds: Mapping[str, Sequence[float]] = field(default_factory=dict)
    detectable: Sequence[Detectable] = ()
    left_out: Sequence[str] = ()

    @property
    def unknown(self) -> list[str]:
        names = [treatment.name for treatment in self.plan.treatments]
        return [name for name in names if not self.seconds.get(name)]

    @property
    def looks(self) -> tuple[int, ...]:
        """Numbers of blocks of interest: at the first look and at the last, or the fixed number."""
        first = (self.settings.blocks,) if self.settings.until_settled else ()
        return tuple(dict.fromkeys((*first, self.settings.most_blocks)))

    def seconds_of(self, blocks: int) -> tuple[float, float, float]:
        """Return the duration of blocks by the median, shortest and longest earlier cells."""
        durations = [seconds for seconds in self.seconds.values() if seconds]
        median = sum(map(statistics.median, durations))
        return blocks * median, blocks * sum(map(min, durations)), blocks * sum(map(max, durations))


def forecast(study: str, settings: CampaignSettings, display: Display) -> Forecast:
    """Return the forecast of a campaign, from the journals of earlier ones; write nothing.

    The data are prepared as for a campaign, in a folder that is removed.

    Raises:
        UsageError: For settings that a campaign would refuse.
    """
    if settings.resume:
        raise UsageError(
            ErrorCode.CONFLICT, "dry_run forecasts a campaign that begins; leave resume out"
        )
    preparation.check_settings(study, settings)
    plan = Plan.of_study(studies.load(study), settings)
    with tempfile.TemporaryDirectory(prefix="evenhand-dry-run-") as cache:
        levels = [replace(level, cache=cache) for level in variation.each(settings)]
        datasets = [preparation.read_data(study, level, display) for level in levels]
    display.rest()
    warnings = [plan.nothing_to_compare, plan.rates_only]
    warnings += [line for data in datasets for line in data.warnings]
    texts, left_out = [], list[str]()
    for data in datasets:
        skipped = data.not_available.items()
        left_out += [*data.left_out, *(f"{name}: not available: {why}" for name, why in skipped)]
        counts = (f"{n:,} {name.replace('_', ' ')}" for name, n in data.dataset.counts.items() if n)
        if data.dataset.name:
            texts.append(f"{data.dataset.name}: {', '.join(counts)}")
    prepared = PreparedCampaign(study, settings, plan, datasets[0])
    settings = preflight.fit_windows(prepared, display).settings
    cells = _last_cells(study, settings, plan)
    seconds: dict[str, list[float]] = {treatment.name: [] for treatment in plan.treatments}
    for cell in cells:
        seconds[cell.tags["treatment"]].append(((cell.end_ms or 0) - cell.start_ms) / 1_000)
    question = PreparedCampaign(study, settings, plan).question()
    return Forecast(
        settings,
        plan,
        cells_of(plan, settings),
        " | ".join(dict.fromkeys(texts)),
        list(dict.fromkeys(filter(None, warnings))),
        seconds,
        _detectable(question, settings, cells),
        tuple(dict.fromkeys(left_out)),
    )


def _last_cells(study: str, settings: CampaignSettings, plan: Plan) -> list[StoredRun]:
    """Return the cells that succeeded of the last campaign here with the same settings."""
    not_affecting, root = (
        names_not_affecting_measurement(settings),
        Path(settings.journal).resolve(),
    )
    hashes = {
        treatment.name: settings_hash(logged_settings(settings, treatment), not_affecting)
        for treatment in plan.treatments
    }
    machine = provenance.fingerprint()
    for folder, description in reversed(journal.descriptions(root, "") if root.is_dir() else []):
        if description["study"] != study:
            continue
        with suppress(UsageError):  # its records are missing
            runs = [run for run in journal_runs.stored(folder) if _is_same(run, hashes, machine)]
            if runs:
                return runs
    return []


def _is_same(run: StoredRun, hashes: Mapping[str, str], machine: str) -> bool:
    tags = run.tags
    return (
        tags.get("settings_hash") == hashes.get(tags.get("treatment", ""), "")
        and tags.get("machine") == machine
        and tags.get("kind") == RunKind.CELL
        and tags.get("outcome") == RunOutcome.OK
        and bool(run.end_ms)
    )


def _detectable(
    question: ComparisonSpec, settings: CampaignSettings, cells: Sequence[StoredRun]
) -> list[Detectable]:
    """Return the effects of every headline, after the first look and after the last block."""
    try:
        findings = wording.headlines(judged(question, table(cells)))
    except UsageError:  # no cells, or those of a single side
        return []
    varying = []
    for finding in findings:
        has_estimate = finding.row.no_estimate in ("", NoEstimate.TOO_FEW_BLOCKS)
        is_exact = finding.row.minimum_detectable == 0 or is_constant(finding.shifts)
        if has_estimate and len(finding.pairs) >= MINIMUM_VALUES and not is_exact:
            varying.append(finding)
    return [effect for finding in varying for effect in _effects(finding, len(varying), settings)]


def _effects(finding: Finding, tests: int, settings: CampaignSettings) -> list[Detectable]:
    sd, effects = finding.spread, []
    for looks in _looks(settings):
        after = looks.blocks[-1] if looks.blocks else settings.blocks
        alpha = looks.level(ALPHA)
        least = power.minimum_detectable(sd, after, tests=tests, alpha=alpha)
        value = sample_size.as_effect(least, finding.row.kind)
        effects.append(Detectable(finding, sd, after, value))
    return effects


def _looks(settings: CampaignSettings) -> tuple[Looks, ...]:
    if not settings.until_settled:
        return (FIXED,)
    planned = planned_looks(settings)
    looks = Looks(planned, (settings.max_blocks,) * len(planned)).each()
    return tuple(dict.fromkeys((looks[0], looks[-1])))
