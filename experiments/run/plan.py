"""Plan of a campaign: its treatments and the question about them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from experiments.config import variation, virtual_environments
from experiments.config.settings import CampaignSettings
from experiments.config.variation import Variation
from experiments.contract import Study, Treatment
from experiments.planning import length, treatments


@dataclass(frozen=True)
class Plan:
    """Treatments of every block, and the question about them in the terms of `compare`.

    Attributes:
        own_inputs: True if settings of treatments may change their data.
        along: The setting that memory grows with, where running out of it is a result.
        rates_only: Reason why totals and accuracies are not judged; empty if they are.
    """

    title: str
    factor: str
    baseline: str
    treatments: tuple[Treatment, ...]
    strata: tuple[str, ...] = ()
    allowed_to_differ: tuple[str, ...] = ()
    tags: Mapping[str, str] = field(default_factory=dict)
    own_inputs: bool = False
    along: str = ""
    rates_only: str = ""

    @classmethod
    def of_study(cls, study: Study, settings: CampaignSettings) -> Plan:
        """Return the study's design.

        The baseline is the study's, or the first treatment; where there are groups, its framework.
        """
        compared = treatments.list_treatments(study, settings)
        if varied := variation.parse(settings):
            compared = tuple(_with_interpreters(treatment, settings) for treatment in compared)
            return _of_levels(study, settings, varied, compared)
        first = compared[0].framework if compared[0].group else compared[0].name
        return cls(
            title=study.title_of(settings) if study.title_of else study.title,
            factor=study.factor,
            baseline=study.baseline(settings) if study.baseline else first,
            treatments=compared,
            strata=study.strata(settings),
            allowed_to_differ=study.allowed_to_differ,
            along=study.grows_with,
        )

    @classmethod
    def from_values(cls, values: Mapping[str, Any]) -> Plan:
        """Return a plan from JSON values, as the journal stores it."""
        compared = []
        for fields in values["treatments"]:
            settings = {
                name: tuple(value) if isinstance(value, list) else value
                for name, value in fields["settings"].items()
            }
            compared.append(Treatment(**{**fields, "settings": settings}))
        lists = {name: tuple(values[name]) for name in ("strata", "allowed_to_differ")}
        return cls(**{**values, **lists, "treatments": tuple(compared)})

    @property
    def nothing_to_compare(self) -> str:
        """Warning that a single treatment gets no verdict; empty if there are several."""
        if len(self.treatments) > 1:
            return ""
        name = self.treatments[0].name
        return (
            f"nothing to compare: {name} is measured alone, without a verdict; "
            f"name two {self.factor}s, or add aa=true"
        )

    def on_device(self, device: str) -> Plan:
        """Return the plan with this device where a treatment has `auto`."""
        placed = [
            replace(treatment, settings={**treatment.settings, "device": device})
            if treatment.settings.get("device") == "auto"
            else treatment
            for treatment in self.treatments
        ]
        return replace(self, treatments=tuple(placed))


def _with_interpreters(treatment: Treatment, settings: CampaignSettings) -> Treatment:
    """Return a treatment of `levels` with the interpreters of its environments."""
    if not treatment.version:
        return treatment
    pythons = virtual_environments.interpreters_of(settings, treatment.version)
    return replace(treatment, settings={**treatment.settings, "pythons": pythons})


def _of_levels(
    study: Study,
    settings: CampaignSettings,
    varied: Variation,
    compared: tuple[Treatment, ...],
) -> Plan:
    """Return the design whose factor is the varied setting; the study's own factor is a stratum."""
    factor = study.factor
    levels = {
        treatment.framework if factor == "framework" else treatment.settings[factor]
        for treatment in compared
        if not treatment.control
    }
    own_strata = (factor,) if len(levels) > 1 else ()
    return Plan(
        title=f"{varied}: {study.title}",
        factor=varied.name,
        baseline=varied.levels[0].text,
        treatments=compared,
        strata=own_strata + tuple(name for name in study.strata(settings) if name != factor),
        allowed_to_differ=(*study.allowed_to_differ, "dataset", "model"),
        own_inputs=bool(varied.levels[0].settings),
        along=study.grows_with,
        rates_only=_rates_only(study, varied, settings),
    )


def _rates_only(study: Study, varied: Variation, settings: CampaignSettings) -> str:
    """Return why totals are not judged: the same number of steps of larger batches trains more."""
    values: Any = settings
    if varied.name != "batch_size" or not study.scaling or not values.steps_per_epoch:
        return ""
    steps = values.epochs * values.steps_per_epoch
    examples = [steps * level.settings["batch_size"] for level in varied.levels]
    return length.rates_only(examples, study.scaling.examples.replace("_", " "))
