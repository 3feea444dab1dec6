"""Nothing but the framework can be wrong once the parent has looked."""

from __future__ import annotations

from experiments.workloads.opens import run

__all__ = ["run"]
