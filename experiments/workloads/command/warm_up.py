"""Run of a command that is not measured: it fills caches of files, bytecode and compilers."""

from __future__ import annotations

from experiments.contract import AnyCell, Output
from experiments.workloads.command import run as measured


def run(spec: AnyCell, framework: object, output: Output) -> None:
    measured.run(spec, framework, output)
