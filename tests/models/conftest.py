"""What tests of models share: proofs that do not import a framework anew."""

from __future__ import annotations

import pytest

from models import parity
from models.testing import frameworks
from tests import forks


@pytest.fixture
def forked(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the gate and the contract suite compute here, forks of processes compute that have imported the framework."""
    for module in (parity, frameworks):
        monkeypatch.setattr(module, "subprocess", forks.Subprocess(forks.server()))
