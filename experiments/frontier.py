"""Where memory ends: what did not fit once is not tried again, nor anything larger of its series."""

from __future__ import annotations

from typing import Any

from experiments.treatments import Treatment


class Frontier:
    """along: the setting that memory grows with; empty for a study in which running out of memory is a failure like any other."""

    def __init__(self, along: str) -> None:
        self.along = along
        self._least_too_large: dict[tuple[Any, ...], int] = {}

    def note(self, treatment: Treatment) -> None:
        """It ran out of memory."""
        if self.along:
            series, value = self._series(treatment), treatment.settings[self.along]
            self._least_too_large[series] = min(value, self._least_too_large.get(series, value))

    def implied(self, treatment: Treatment) -> str:
        """Why there is no need to run it; empty where there is."""
        if not self.along:
            return ""
        least = self._least_too_large.get(self._series(treatment))
        if least is None or treatment.settings[self.along] < least:
            return ""
        return f"implied: {self.along} {least} did not fit"

    def _series(self, treatment: Treatment) -> tuple[Any, ...]:
        others = sorted((name, value) for name, value in treatment.settings.items() if name != self.along)
        return treatment.framework, treatment.stage, *others
