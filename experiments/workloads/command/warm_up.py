"""Run of a command that is not measured: it fills caches of files, bytecode and compilers."""

from __future__ import annotations

from experiments.workloads.command.run import run

__all__ = ["run"]
