"""In the parent: whether every network can be trained on what is asked for."""

from __future__ import annotations

import models
from experiments.cell.contract import DatasetInfo, Prepared, Progress
from experiments.studies import training_speed
from experiments.studies.training_speed import Settings
from experiments.workloads import networks, steps
from experiments.workloads.training_speed import inputs
from models import frameworks
from tracking.errors import WrongCall


def prepare(settings: Settings, _: Progress) -> Prepared:
    """Raises WrongCall for a network that is not there or has no sibling in a framework, and for what cannot train."""
    steps.check_windows(settings, settings.steps, f"steps={settings.steps} that are timed")
    for name in settings.models:
        _check_model(name, settings)
    if settings.ctc in ("sparse", "dense") and (others := _off_tensorflow(settings)) and "deepspeech2" in settings.models:
        raise WrongCall(f"ctc={settings.ctc}: {', '.join(others)} cannot use TensorFlow's losses; take ctc=scan")
    counts = {f"batch of {name}": training_speed.rows(settings, name) for name in settings.models}
    text = f"random inputs of {settings.size} size, {settings.lengths} lengths, drawn from the seed"
    return Prepared(DatasetInfo("random-inputs", f"{settings.seed:08x}", text, counts, {}), {})


def _check_model(name: str, settings: Settings) -> None:
    module, written = models.spec(name), models.available()[name]
    if not hasattr(module, "sized") and not networks.takes_images(module):
        raise WrongCall(f"models={name}: there are no random inputs for it")
    for framework in settings.frameworks:
        if (architecture := frameworks.described(framework).architecture) not in written:
            raise WrongCall(f"models={name}: it has no sibling for {framework} ({architecture}.py); have {', '.join(written)}")
    rows = training_speed.rows(settings, name)
    if networks.takes_images(module):
        spec = inputs.sizes(module, settings.size, settings.ctc)
        if rows < (least := spec.least_rows(inputs.side(spec, settings.size))):
            raise WrongCall(f"batch_size={rows}: {name} cannot train on fewer than {least} images of this size")


def _off_tensorflow(settings: Settings) -> list[str]:
    """Frameworks of Keras' layers that cannot take TensorFlow's losses; XLA compiles neither."""
    others = ("tensorflow+xla", "keras-torch", "keras-jax")
    return [name for name in settings.frameworks if name in others]


def after_extraction(_: Settings, __: Prepared) -> tuple[str, ...]:
    """Warnings after the extraction of features: none, this study extracts none."""
    return ()
