"""In the parent: whether every network can be trained on what is asked for, and sequences from files made ready."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np

import models
from experiments.contract import DatasetInfo, Prepared, Progress, Workload
from experiments.datasets.sequences import data
from experiments.datasets.sequences.data import Sequences
from experiments.studies.training_speed import SYNTHETIC, Settings
from experiments.workloads import networks, steps
from experiments.workloads.training_speed import inputs
from tracking.errors import WrongCall

# Frameworks of Keras' layers that cannot take TensorFlow's losses; XLA compiles neither.
OFF_TENSORFLOW = ("tensorflow+xla", "keras-torch", "keras-jax")


def prepare(settings: Settings, progress: Progress) -> Prepared:
    """Raises WrongCall for a network that is not there or has no sibling in a framework, and for what cannot train."""
    steps.check_windows(settings, settings.steps, f"steps={settings.steps} that are timed")
    for name in settings.models:
        _check_model(name, settings)
    others = [name for name in settings.frameworks if name in OFF_TENSORFLOW]
    if settings.ctc in ("sparse", "dense") and others and "deepspeech2" in settings.models:
        raise WrongCall(
            f"ctc={settings.ctc}: {', '.join(others)} cannot use TensorFlow's losses; take ctc=scan"
        )
    counts = {
        f"batch of {name}" + (f", {rows}" if len(settings.rows(name)) > 1 else ""): rows
        for name in settings.models
        for rows in settings.rows(name)
    }
    if settings.data != SYNTHETIC:
        return _of_files(settings, counts, progress)
    lengths = " and ".join(settings.length_kinds)
    text = f"random inputs of {settings.size} size, {lengths} lengths, drawn from the seed"
    return Prepared(DatasetInfo("random-inputs", f"{settings.seed:08x}", text, counts, {}), {})


def _of_files(settings: Settings, counts: dict[str, int], progress: Progress) -> Prepared:
    """The data set's name has a part of its digest: runs on other content are others, wherever it lay."""
    found = {name: _read(name, settings, progress) for name in settings.models}
    digest = hashlib.sha256(
        "".join(f"{name} {one.digest}\n" for name, one in found.items()).encode()
    ).hexdigest()
    for name, one in found.items():
        lengths = one.lengths[:, 0]
        counts |= {
            f"examples of {name}": len(lengths),
            f"examples of {name} in the files": one.total,
        }
        counts |= {
            f"shortest of {name}": int(lengths.min()),
            f"longest of {name}": int(lengths.max()),
        }
        counts |= {f"median of {name}": round(float(np.median(lengths)))}
    path = Path(settings.data).expanduser().absolute()
    info = DatasetInfo(f"{path.name}-{digest[:8]}", digest[:32], str(path), counts, {})
    folders = {name: str(one.folder) for name, one in found.items()}
    return Prepared(info, {"data": folders}, warnings=_warnings(settings, found))


def _read(name: str, settings: Settings, progress: Progress) -> Sequences:
    module, fixed = models.spec(name), settings.lengths == "fixed"
    if not module.reads_files:
        have = ", ".join(one for one in settings.models if models.spec(one).reads_files)
        right = f"name others, such as models={have}" if have else f"take data={SYNTHETIC}"
        raise WrongCall(f"data={settings.data}: {name} trains on random inputs alone; {right}")
    reads = module.reads(inputs.sizes(module, settings.size, settings.ctc))
    cache = Path(settings.cache).resolve()
    found = data.prepare(
        settings.data, reads, any_length=fixed, seed=settings.seed, cache=cache, progress=progress
    )
    if len(found.lengths) < inputs.BUCKETS:
        raise WrongCall(
            f"data={settings.data}: {len(found.lengths)} examples for {name}; at least {inputs.BUCKETS}"
        )
    return found


def _warnings(settings: Settings, found: dict[str, Sequences]) -> tuple[str, ...]:
    """Of networks whose batches are larger than what there is to choose from."""
    parts = 1 if settings.lengths == "fixed" else inputs.BUCKETS
    few = {
        name: least
        for name, one in found.items()
        if (least := len(one.lengths) // parts) < max(settings.rows(name))
    }
    return tuple(
        f"{name}: a batch has some of its {least} examples more than once"
        for name, least in few.items()
    )


def _check_model(name: str, settings: Settings) -> None:
    module = models.spec(name)
    if not module.has_random_inputs:
        raise WrongCall(f"models={name}: there are no random inputs for it")
    networks.check_siblings(name, settings.frameworks, "models")
    if module.takes_images:
        spec = inputs.sizes(module, settings.size, settings.ctc)
        side = ("side", inputs.side(spec, settings.size))
        networks.check_images(name, spec, side, ("batch_size", min(settings.rows(name))))


WORKLOAD = Workload(prepare=prepare)
