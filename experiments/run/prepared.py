"""Campaign before its first cell."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from experiments import studies
from experiments.comparison.judgement import ComparisonSpec
from experiments.config.settings import SMOKE, CampaignSettings, names_not_affecting_measurement
from experiments.contract import DatasetInfo, Prepared, Study, Treatment
from experiments.planning.length import is_rate
from experiments.run.machine_state import MachineState
from experiments.run.plan import Plan

NO_DATA = Prepared(DatasetInfo("", "", "", {}, {}), {})


@dataclass(frozen=True)
class PreparedCampaign:
    """Campaign before its first cell.

    Attributes:
        data: Of all cells; its `of_treatment` has those of treatments whose settings change them.
        machine: State of the machine before anything of the campaign computed.
        experiment: MLflow experiment of the runs.
        launches: MLflow experiment in which `mlflow run` opens runs that lead to it.
        findings: Of the check of each framework, by name.
    """

    study: str
    settings: CampaignSettings
    plan: Plan
    data: Prepared = NO_DATA
    machine: MachineState = field(default_factory=MachineState)
    experiment: str = ""
    launches: str = ""
    findings: Sequence[Mapping[str, str]] = ()

    @property
    def module(self) -> Study:
        return studies.load(self.study)

    @property
    def measures_limits(self) -> bool:
        """True if it compares, as the trials of a sweep do not, and gives a verdict."""
        is_own_design = self.plan == Plan.of_study(self.module, self.settings)
        return is_own_design and self.settings.preset != SMOKE

    def data_for(self, treatment: Treatment) -> Prepared:
        return self.data.of_treatment.get(treatment.name, self.data)

    def with_data(
        self, warnings: Iterable[str] = (), **more: Mapping[str, str]
    ) -> PreparedCampaign:
        """Return the campaign with more warnings, and more tags, files and refusals of its data."""
        merged: dict[str, Any] = {
            name: {**getattr(self.data, name), **values} for name, values in more.items()
        }
        lines = tuple(dict.fromkeys([*self.data.warnings, *warnings]))
        return replace(self, data=replace(self.data, warnings=lines, **merged))

    def question(self) -> ComparisonSpec:
        """Return the question about the runs, in the terms of `compare`."""
        module, settings, plan = self.module, self.settings, self.plan
        outcomes = [
            outcome
            for outcome in studies.outcomes(module, settings)
            if is_rate(outcome.metric) or not plan.rates_only
        ]
        metrics = {outcome.metric for outcome in outcomes}
        return ComparisonSpec(
            factor=plan.factor,
            baseline=plan.baseline,
            outcomes=outcomes,
            primary=[metric for metric in studies.primary(module, settings) if metric in metrics],
            margin=settings.margin,
            strata=plan.strata,
            allowed_to_differ=(
                *plan.allowed_to_differ,
                *names_not_affecting_measurement(settings),
            ),
            protocol=settings.protocol,
            and_others=module.reported is not None,
            fail_if=settings.fail_if,
        )
