"""What a campaign compares, and what is asked of it: the study's own design, or one that a sweep has found."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from experiments.config import variation
from experiments.config.settings import CampaignSettings
from experiments.config.variation import Variation
from experiments.contract import Study, Treatment
from experiments.planning import treatments
from tracking.errors import WrongCall


@dataclass(frozen=True)
class Plan:
    """The treatments of every block and the question about them, in `compare`'s words.

    own_inputs: whether treatments have settings that may change their data, so that each is prepared by itself.
    along: the setting that memory grows with, where running out of it is a result; else a failure.
    rates_only: why totals and what was learned are not judged, where treatments train differently much; else empty.
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

    @property
    def nothing_to_compare(self) -> str:
        """That a single treatment has nothing beside it, and what would be right; empty where there are several."""
        if len(self.treatments) > 1:
            return ""
        name = self.treatments[0].name
        return f"nothing to compare: {name} is measured alone, without a verdict; name two frameworks, or add aa=true"


def of_study(study: Study, settings: CampaignSettings) -> Plan:
    """The study's design. The baseline is the study's, or the first treatment, or its framework where there are groups."""
    found = treatments.of(study, settings)
    if varied := variation.parse(settings):
        return _of_levels(study, settings, varied, found)
    first = found[0].framework if found[0].group else found[0].name
    return Plan(
        title=study.title,
        factor=study.factor,
        baseline=study.baseline(settings) if study.baseline else first,
        treatments=found,
        strata=study.strata(settings),
        allowed_to_differ=study.allowed_to_differ,
        along=study.grows_with,
    )


def _of_levels(
    study: Study, settings: CampaignSettings, varied: Variation, found: tuple[Treatment, ...]
) -> Plan:
    """Return the design whose factor is the varied setting; what the study compares is a stratum of it."""
    factor = study.factor
    if factor == "treatment":
        raise WrongCall(
            f"vary={varied.name}: this experiment compares a framework with itself; ask another experiment"
        )
    compared = {
        one.framework if factor == "framework" else one.settings[factor]
        for one in found
        if not one.control
    }
    return Plan(
        title=f"{varied}: {study.title}",
        factor=varied.name,
        baseline=varied.levels[0].text,
        treatments=found,
        strata=(
            *((factor,) if len(compared) > 1 else ()),
            *(name for name in study.strata(settings) if name != factor),
        ),
        allowed_to_differ=(*study.allowed_to_differ, "dataset", "model"),
        own_inputs=bool(varied.levels[0].settings),
        along=study.grows_with,
        rates_only=_rates_only(study, varied, settings),
    )


def _rates_only(study: Study, varied: Variation, settings: CampaignSettings) -> str:
    """Return why totals and what was learned are not judged: as many steps of larger batches train more."""
    values: Any = settings
    if varied.name != "batch_size" or not study.scaling or not values.steps_per_epoch:
        return ""
    seen = [
        values.epochs * values.steps_per_epoch * level.settings["batch_size"]
        for level in varied.levels
    ]
    what = study.scaling.examples.replace("_", " ")
    return (
        f"one training sees {min(seen):,} {what}, another {max(seen):,}: only rates can be compared"
    )


def on_the_cpu(plan: Plan) -> Plan:
    """Return the plan without a GPU where the choice was left to us."""
    own = [
        {**one.settings, "device": "cpu"} if one.settings.get("device") == "auto" else one.settings
        for one in plan.treatments
    ]
    found = tuple(
        replace(one, settings=values) for one, values in zip(plan.treatments, own, strict=True)
    )
    return replace(plan, treatments=found)


def to_values(plan: Plan) -> dict[str, Any]:
    """As JSON values, for the journal."""
    return asdict(plan)


def from_values(values: Mapping[str, Any]) -> Plan:
    """The inverse of `to_values`; JSON has no tuples."""
    found = tuple(
        Treatment(
            **{
                **one,
                "settings": {
                    k: tuple(v) if isinstance(v, list) else v for k, v in one["settings"].items()
                },
            }
        )
        for one in values["treatments"]
    )
    lists = {name: tuple(values[name]) for name in ("strata", "allowed_to_differ")}
    return Plan(**{**values, **lists, "treatments": found})
