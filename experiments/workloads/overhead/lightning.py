"""By PyTorch Lightning's Trainer, on the plain loop's network, batch and optimizer; training alone."""

from __future__ import annotations

from experiments.cell import peak_memory, timing
from experiments.cell.measure import memory_peaks, write_run_files
from experiments.cell.peak_memory import DevicePeaks
from experiments.contract import CellSpec, Output
from experiments.workloads.grid.measure import PLACES, budget_of, first_losses, values_of
from experiments.workloads.overhead.plain import open_loop
from models.contract import Framework
from tracking import clock

AHEAD = 1  # batches that Lightning asks for before it makes a step


def run(spec: CellSpec, framework: Framework, output: Output) -> None:
    settings, rows = spec.settings, spec.settings["batch_size"]
    trainer = open_loop("lightning", "Trainer", spec, framework, output)
    output.progress(f"training, batch {rows}", 0, None)
    output.begin(PLACES["train"])
    budget, peaks = budget_of(spec, framework, output), DevicePeaks(framework)

    def another() -> bool:
        if budget.done:
            output.turn()
        if budget.done > AHEAD:
            budget.stepped(peaks)
        return budget.step()

    seconds, losses = trainer.train(settings["learning_rate"], another)
    examples = rows * (len(seconds) - budget.warm_up_steps)
    output.window("train", budget.began, clock.now(), examples, pauses=budget.pauses)
    budget.record(spec, "train")
    values = values_of("train", seconds, rows, budget)
    summary = timing.summarise_training(values, sum(seconds)) | first_losses(losses, settings)
    del summary["train/total_seconds"]  # a budget, not a result
    summary |= memory_peaks(spec, peaks, peak_memory.rss_bytes(), output)
    output.metrics(summary, step=len(seconds))
    write_run_files(spec, framework, [values], summary, output)
