"""Where memory ends: what did not fit once is not tried again, nor anything larger of its series."""

from __future__ import annotations

import dataclasses
from typing import Any

from experiments.contract import Treatment

PHASES = "phases"


class Frontier:
    """along: the setting that memory grows with; empty for a study in which running out of memory is a failure like any other."""

    def __init__(self, along: str) -> None:
        self.along = along
        self._least_too_large: dict[tuple[Any, ...], tuple[int, str]] = {}

    def note(self, treatment: Treatment, phase: str) -> None:
        """It ran out of memory in that phase."""
        if self.along:
            series, value = self._series(treatment), treatment.settings[self.along]
            self._least_too_large[series] = min((value, phase), self._least_too_large.get(series, (value, phase)))

    def implied(self, treatment: Treatment) -> tuple[str, str]:
        """Why there is no need to run it, and the phase that would not fit; empty where there is need."""
        found = self._above(treatment)
        return (f"implied: {self.along} {found[0]} did not fit", found[1]) if found else ("", "")

    def alone(self, treatment: Treatment) -> Treatment | None:
        """What is left of a cell that does not fit as a whole: the phases before the one in which memory ran out."""
        found = self._above(treatment)
        phases: tuple[str, ...] = treatment.settings.get(PHASES, ())
        if not found or found[1] not in phases or not (before := phases[: phases.index(found[1])]):
            return None
        name = f"{treatment.name} · {', '.join(before)} alone"
        return dataclasses.replace(treatment, name=name, settings={**treatment.settings, PHASES: before})

    def _above(self, treatment: Treatment) -> tuple[int, str] | None:
        found = self._least_too_large.get(self._series(treatment)) if self.along else None
        return found if found and treatment.settings[self.along] >= found[0] else None

    def _series(self, treatment: Treatment) -> tuple[Any, ...]:
        others = sorted((name, value) for name, value in treatment.settings.items() if name != self.along)
        return treatment.framework, treatment.stage, *others, *sorted(treatment.environment.items())
