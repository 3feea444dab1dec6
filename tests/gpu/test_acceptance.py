"""Each check of the acceptance kit on the GPU of this machine."""

from __future__ import annotations

from pathlib import Path

import pytest

from experiments.cli.commands.selftest import Selftest
from experiments.selftest.catalogue import CHECKS
from experiments.selftest.checks import FAILED, SKIPPED, Check, Context, run_check
from tracking import provenance

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not provenance.gpus(), reason="no NVIDIA GPU answers on this machine"),
]


@pytest.mark.parametrize(
    "check", CHECKS, ids=lambda check: f"{check.number}-{check.name.replace(' ', '-')}"
)
def test_known_work_is_measured_as_known(check: Check, tmp_path: Path) -> None:
    result = run_check(check, Context("cuda", Selftest().frameworks, tmp_path))
    if result.status == SKIPPED:
        pytest.skip(result.reason)
    unmet = [figure for figure in result.figures if figure.holds is False]
    assert result.status != FAILED, f"{result.reason}: {unmet}"
