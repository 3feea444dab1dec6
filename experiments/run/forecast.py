"""What a campaign would be, before it begins: its cells, what they took earlier, what they could detect. Nothing is written."""

from __future__ import annotations

import math
import shutil
import statistics
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from scipy import special

from experiments import studies
from experiments.comparison.judgement import ComparisonSpec, judged
from experiments.comparison.report import wording
from experiments.comparison.runs.query import table
from experiments.comparison.statistics import power
from experiments.comparison.statistics.estimates import MINIMUM_VALUES, is_constant
from experiments.comparison.statistics.sequential import FIXED, Looks
from experiments.comparison.statistics.significance import ALPHA
from experiments.comparison.verdicts import outlook
from experiments.comparison.verdicts.decision import NoEstimate
from experiments.comparison.verdicts.findings import Finding
from experiments.config import devices, variation
from experiments.config import settings as settings_
from experiments.config.console import Display
from experiments.config.settings import CampaignSettings
from experiments.contract import DatasetInfo
from experiments.planning.design import Cell
from experiments.run import journal_runs, preflight, preparation, rules
from experiments.run import plan as plan_
from experiments.run.cell_run import logged_settings, settings_hash
from experiments.run.plan import Plan
from experiments.run.reporting import question_of
from experiments.run.scheduler import cells_of, planned_looks
from tracking import journal, provenance
from tracking.errors import WrongCall
from tracking.records import RunKind, RunOutcome, StoredRun

# Earlier campaigns that are read, the newest first: a machine changes, and reading a thousand takes longer than it tells.
MAX_CAMPAIGNS = 20
# Half of the interval of an SD that is told: 80 %, as beside "how many more blocks".
TAIL = 0.1


@dataclass(frozen=True)
class Detectable:
    """The true difference that four of five campaigns of so many blocks show, if runs vary as in earlier ones.

    finding: of which outcome and levels, from the newest of them. sd: of the differences of a block, on the scale of the test,
    from `blocks` blocks. low, high: at the ends of the SD's 80 % interval. after: blocks of this campaign.
    """

    finding: Finding
    sd: float
    blocks: int
    after: int
    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Forecast:
    """cells: in their order. seconds, bytes: treatment -> what each of its earlier cells took, and left in the journal.

    data: what was found of the data; left_out: pictures and folders that are not read; prepared: what would be warned of.
    checked: what is looked at before the first cell, a line each. free_bytes: on the disk of the journal.
    """

    settings: CampaignSettings
    plan: Plan
    cells: Sequence[Cell]
    data: str
    warnings: Sequence[str]
    checked: Sequence[str]
    free_bytes: int
    machine: str
    campaigns: int = 0
    seconds: Mapping[str, Sequence[float]] = field(default_factory=dict)
    bytes: Mapping[str, Sequence[float]] = field(default_factory=dict)
    detectable: Sequence[Detectable] = ()
    left_out: Sequence[str] = ()

    @property
    def unknown(self) -> list[str]:
        """Treatments that have no earlier cell."""
        return [one.name for one in self.plan.treatments if not self.seconds.get(one.name)]

    @property
    def looks(self) -> tuple[int, ...]:
        """The numbers of blocks that are of interest: of the first look and of the last, or the one there is."""
        first = (self.settings.blocks,) if self.settings.until_settled else ()
        return tuple(dict.fromkeys((*first, self.settings.most_blocks)))

    def seconds_of(self, blocks: int) -> tuple[float, float, float]:
        """What so many blocks take: as the middle of earlier cells, as the shortest and as the longest of each treatment."""
        known = [took for took in self.seconds.values() if took]
        middle = sum(statistics.median(took) for took in known)
        return blocks * middle, blocks * sum(map(min, known)), blocks * sum(map(max, known))

    def bytes_of(self, blocks: int) -> float:
        """What so many blocks leave in the journal's folder."""
        return blocks * sum(statistics.median(left) for left in self.bytes.values() if left)


def forecast(study: str, settings: CampaignSettings, display: Display) -> Forecast:
    """Of a campaign that begins with these settings, from the journals of earlier ones. Raises WrongCall; nothing stays.

    The data are prepared as for a campaign, in a folder that is removed.
    """
    if settings.resume:
        raise WrongCall("dry_run forecasts a campaign that begins; leave resume out")
    preparation.check_settings(study, settings)
    module, root = studies.load(study), Path(settings.journal).resolve()
    plan = plan_.of_study(module, settings)
    with tempfile.TemporaryDirectory(prefix="evenhand-dry-run-") as cache:
        every = [
            preparation.read_data(study, replace(own, cache=cache), display)
            for own in variation.each(settings)
        ]
    display.rest()
    warnings = [line for prepared in every for line in prepared.warnings]
    earlier = _earlier(study, settings, plan, root)
    seconds: dict[str, list[float]] = {one.name: [] for one in plan.treatments}
    sizes: dict[str, list[float]] = {one.name: [] for one in plan.treatments}
    for folder, runs in earlier.items():
        for run in runs:
            seconds[run.tags["treatment"]].append(
                ((run.end_ms or run.start_ms) - run.start_ms) / 1_000
            )
            sizes[run.tags["treatment"]].append(
                _size(folder / "cells" / run.tags["cell"] / run.run_id[:8])
            )
    return Forecast(
        settings,
        plan,
        cells_of(plan, settings),
        " | ".join(dict.fromkeys(_of_data(prepared.dataset) for prepared in every)),
        list(dict.fromkeys([*filter(None, [plan.nothing_to_compare, plan.rates_only]), *warnings])),
        _checked(study, settings, plan),
        shutil.disk_usage(_existing(root)).free,
        provenance.fingerprint(),
        len(earlier),
        seconds,
        sizes,
        _detectable(question_of(study, settings, plan), settings, earlier.values()),
        tuple(dict.fromkeys(line for prepared in every for line in prepared.left_out)),
    )


def _earlier(
    study: str, settings: CampaignSettings, plan: Plan, root: Path
) -> dict[Path, list[StoredRun]]:
    """Journal of an earlier campaign -> its cells that ended well on this machine with the very settings of those to come."""
    wanted = {}
    for one in plan.treatments:
        immaterial = settings_.immaterial(settings)
        wanted[one.name] = settings_hash(logged_settings(settings, one), immaterial)
    here, found = provenance.fingerprint(), dict[Path, list[StoredRun]]()
    for folder, kept in reversed(journal.descriptions(root, "") if root.is_dir() else []):
        if kept["study"] != study or len(found) == MAX_CAMPAIGNS:
            continue
        try:
            runs = [run for run in journal_runs.stored(folder) if _serves(run, wanted, here)]
        except WrongCall:  # its records are missing: nothing is known by them
            continue
        if runs:
            found[folder] = runs
    return found


def _serves(run: StoredRun, wanted: Mapping[str, str], machine: str) -> bool:
    tags = run.tags
    same = (
        tags.get("settings_hash") == wanted.get(tags.get("treatment", ""), "")
        and tags.get("machine") == machine
    )
    return (
        same
        and tags.get("kind") == RunKind.CELL
        and tags.get("outcome") == RunOutcome.OK
        and bool(run.end_ms)
    )


def _size(folder: Path) -> float:
    return (
        float(sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()))
        if folder.is_dir()
        else 0.0
    )


def _existing(path: Path) -> Path:
    """The folder, or the nearest above it that is there."""
    return next(one for one in (path, *path.parents) if one.exists())


def _of_data(data: DatasetInfo) -> str:
    counts = (f"{count:,} {name.replace('_', ' ')}" for name, count in data.counts.items() if count)
    return f"{data.name}: {', '.join(counts)}"


def _checked(study: str, settings: CampaignSettings, plan: Plan) -> list[str]:
    """What is looked at before the first cell and at every one, a line each."""
    own = [one.merged(settings) for one in plan.treatments]
    names, opened = (
        ", ".join(settings.frameworks),
        dict.fromkeys(devices.resolve(one.device, one) for one in own),
    )
    found = [
        "whether the folders can be written and the tracking server answers",
        f"{names} start on {', '.join(opened)}",
    ]
    if models := preflight.models_to_prove(study, settings):
        found.append(
            f"the parity gate: {', '.join(models)} computes the same in {names}, or the campaign does not begin"
        )
    found.append("who else uses the machine; a busy machine is warned of")
    if settings.others_limit_percent < 100:
        found.append(
            f"others' use of the CPU while a cell is timed: above {settings.others_limit_percent:g} % it runs once more"
        )
    if rules.rule_tags(settings):
        found.append(
            "after the last block: a single one that is unlike the others is measured once more"
        )
    controls = [one.name for one in plan.treatments if one.control]
    return [*found, *([f"controls: {', '.join(controls)}"] if controls else [])]


def _detectable(
    asked: ComparisonSpec, settings: CampaignSettings, earlier: Iterable[Sequence[StoredRun]]
) -> list[Detectable]:
    """For every headline that earlier campaigns estimate, after the first look and after the last block."""
    pooled: dict[tuple[str, str, str, str], list[Finding]] = {}
    for runs in earlier:
        try:
            comparison = judged(asked, table(runs))
        except WrongCall:  # an earlier campaign that had one side alone
            continue
        for one in wording.headlines(comparison):
            if _has_spread(one):
                pooled.setdefault(
                    (one.row.metric, one.row.a, one.row.b, one.row.stratum), []
                ).append(one)
    return [
        found for group in pooled.values() for found in _of_outcome(group, len(pooled), settings)
    ]


def _has_spread(finding: Finding) -> bool:
    """Whether the differences of its blocks vary, however few blocks there are."""
    known = (
        finding.row.no_estimate in ("", NoEstimate.TOO_FEW_BLOCKS)
        and finding.row.minimum_detectable != 0
    )
    return known and len(finding.pairs) > 1 and not is_constant(finding.shifts)


def _of_outcome(
    group: Sequence[Finding], tests: int, settings: CampaignSettings
) -> list[Detectable]:
    """What one outcome could show. group: its findings in earlier campaigns, whose SDs are pooled inside each."""
    df = sum(len(one.pairs) - 1 for one in group)
    if df < MINIMUM_VALUES - 1:
        return []
    sd = math.sqrt(sum((len(one.pairs) - 1) * float(one.shifts.var(ddof=1)) for one in group) / df)
    low, high = (sd * math.sqrt(df / special.chdtri(df, tail)) for tail in (TAIL, 1 - TAIL))
    found = []
    for looks in _looks(settings):
        after = looks.blocks[-1] if looks.blocks else settings.blocks
        alpha, kind = looks.level(ALPHA), group[0].row.kind
        values = (
            outlook.as_effect(power.minimum_detectable(one, after, tests=tests, alpha=alpha), kind)
            for one in (sd, low, high)
        )
        found.append(Detectable(group[0], sd, sum(len(one.pairs) for one in group), after, *values))
    return found


def _looks(settings: CampaignSettings) -> tuple[Looks, ...]:
    """The first look and all up to the last; or none, where the number of blocks is fixed."""
    if not settings.until_settled:
        return (FIXED,)
    planned = planned_looks(settings)
    every = Looks(planned, (settings.max_blocks,) * len(planned)).one_by_one()
    return tuple(dict.fromkeys((every[0], every[-1])))


__all__ = ["Detectable", "Forecast", "forecast"]
