"""CPU and wall seconds of the parts of a cell of `captioning` that are not its training.

`python -m tests.benchmarks.cell_start pytorch [cuda]` prints columns of docs/measurement.md.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any

BEGAN = time.perf_counter()
STEPS, REQUESTS = 10, 10


@contextmanager
def part(name: str) -> Iterator[None]:
    began, wall = time.process_time(), time.perf_counter()
    yield
    cpu, wall = time.process_time() - began, time.perf_counter() - wall
    print(f"| {name} | {cpu:.2f} | {wall:.2f} |")


def main(framework_name: str, device: str, cache: Path) -> None:
    print(f"| interpreter | {time.process_time():.2f} | |")
    with part("modules of the cell"):
        import experiments.workloads.__main__  # noqa: F401
        from experiments.cell.opening import opened
    with part("import of the framework"):
        spec = _spec(framework_name, device, cache)
        framework = opened(spec)
    import numpy as np

    with part("context of the device"):
        framework.place_inputs((np.zeros(1, np.float32),))
        framework.synchronise()
    with part("modules of the study"):
        from experiments.cell.loop import TrainingLoop
        from experiments.cell.measure import mean_loss, optimizer_config
        from experiments.cell.peak_memory import DevicePeaks
        from experiments.cell.timing import EVERY_STEP
        from experiments.workloads.captioning.train import Captioning
    with part("data"):
        task = Captioning(spec)
    with part("network with its weights"):
        network = framework.build(task.model, task.spec)
        framework.load_weights(network, task.initial_weights())
    with part("optimizer"):
        optimizer = framework.optimizer(network, optimizer_config(spec.settings))
    with part("first evaluation"):
        mean_loss(framework, network, islice(task.validation(), 1))
    loop = TrainingLoop(
        framework,
        network,
        optimizer,
        SimpleNamespace(turn=lambda _=1: None),  # type: ignore[arg-type]
        DevicePeaks(framework),
    )
    for name, count in (("first step", 1), (f"{STEPS} more steps", STEPS)):
        with part(name):
            watch = loop.stopwatch(EVERY_STEP, lambda *_: None)
            loop.run(islice(task.training(0, framework), count), watch)
    for name, count in (("first request", 1), (f"{REQUESTS} more requests", REQUESTS)):
        with part(name):
            for index in range(count):
                task.answer(framework, network, framework.place_inputs(task.request(1, index)))
    with part("captions and BLEU"):
        task.quality(framework, network)
    print(f"| whole process | {time.process_time():.2f} | {time.perf_counter() - BEGAN:.2f} |")


def _spec(framework_name: str, device: str, cache: Path) -> Any:
    """Return a cell of the demo on synthetic captions of the demo's sizes."""
    from experiments.config.settings import parse
    from experiments.datasets.synthetic import synthetic
    from experiments.studies.captioning import STUDY

    data = synthetic(vocabulary=39, length=10, captions=800, images=160, seed=0, cache=cache)
    settings = parse(STUDY.settings, STUDY.presets, {"preset": "demo"})
    entries = data.vocabulary
    inputs = {
        "index": str(data.folder),
        "features": str(data.folder / "features.npy"),
        "start": entries.start,
        "end": entries.end,
    }
    return SimpleNamespace(
        framework=framework_name,
        device=device,
        threads=1,
        settings=settings,
        block=1,
        environment={},
        inputs=inputs,
    )


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        main(sys.argv[1], *sys.argv[2:] or ["cpu"], cache=Path(folder))
