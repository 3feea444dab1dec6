"""By PyTorch Lightning's Trainer, on the plain loop's network, batch and optimizer; training alone."""

from __future__ import annotations

from experiments.cell.peak_memory import DevicePeaks
from experiments.contract import CellSpec, Output
from experiments.workloads.grid.measure import PLACES, budget_of, close_phase, finish, summarise
from experiments.workloads.overhead.plain import open_loop
from models.contract import Framework

AHEAD = 1  # batches that Lightning asks for before it makes a step


def run(spec: CellSpec, framework: Framework, output: Output) -> None:
    settings = spec.settings
    trainer = open_loop("lightning", "Trainer", spec, framework, output)
    output.progress(f"training, batch {settings['batch_size']}", 0, None)
    output.begin(PLACES["train"])
    budget, peaks = budget_of(spec, framework, output), DevicePeaks(framework)

    def another() -> bool:
        if budget.done:
            output.turn()
        if budget.done > AHEAD:
            budget.stepped(peaks)
        return budget.step()

    seconds, losses = trainer.train(settings["learning_rate"], another)
    values = close_phase(spec, "train", seconds, budget, output)
    summary = summarise(spec, values, losses)
    output.metrics(summary, step=len(seconds))
    finish(spec, framework, [([values], summary)], peaks, output)
