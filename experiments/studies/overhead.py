"""What measuring costs: the same decoder, weights and batches trained by a bare loop, by this harness, and by the usual ways."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

from experiments.config.outcomes import outcome
from experiments.config.settings import setting
from experiments.planning.treatments import Treatment, require_single_steps
from experiments.studies import captioning
from tracking.errors import WrongCall

TITLE = "What measuring costs: a bare training loop against this harness and the usual trackers"
WORKLOAD = "captioning"
MODEL = "caption_decoder"
SCALING = captioning.SCALING
FACTOR = "harness"
ALLOWED_TO_DIFFER = ("framework", "autolog")

HARNESSES = {
    "bare": Treatment("bare", "pytorch", "loop", {"harness": "bare"}, sensed=False),
    "evenhand": Treatment("evenhand", "pytorch", settings={"harness": "evenhand"}, sensed=False),
    "evenhand+sensors": Treatment("evenhand+sensors", "pytorch", settings={"harness": "evenhand+sensors"}),
    "fit": Treatment("fit", "keras-torch", settings={"harness": "fit"}, sensed=False),
    "fit+autolog": Treatment(
        "fit+autolog", "keras-torch", settings={"harness": "fit+autolog", "autolog": "mlflow"}, sensed=False
    ),
    "lightning+autolog": Treatment(
        "lightning+autolog", "pytorch", "loop", {"harness": "lightning+autolog", "autolog": "mlflow"}, sensed=False
    ),
}


@dataclass(frozen=True)
class Settings(captioning.Settings):
    """Settings of the overhead study."""

    harnesses: tuple[str, ...] = setting(
        tuple(HARNESSES), "what is compared, the baseline first; lightning if installed", group="design"
    )
    harness: str = setting("", "set by the study, cell by cell", group="set by the study")


PRESETS: dict[str, dict[str, Any]] = {
    "demo": {
        **captioning.STEPS_ALONE,
        "frameworks": ("pytorch", "keras-torch"),
        "inference_batch_sizes": (1,),
        "inference_requests": 2,
        "blocks": 12,
        "margin": 0.01,
    },
}

OUTCOMES = (
    outcome("train/step_seconds"),
    outcome("train/step_seconds_p95"),
    outcome("train/first_step_seconds"),
    outcome("train/total_seconds"),
    outcome("memory/peak_rss_bytes"),
    outcome("train/loss"),
)
PRIMARY = ("train/step_seconds",)
PUBLISHED = ()
SOURCE = ""


def treatments(settings: Settings) -> tuple[Treatment, ...]:
    """The harnesses asked for; Lightning only where it is installed. Raises WrongCall for one that is not known."""
    require_single_steps(settings, "overhead")
    for name in settings.harnesses:
        if name not in HARNESSES:
            raise WrongCall(f"harnesses: there is no '{name}'; have {', '.join(HARNESSES)}")
    return tuple(HARNESSES[name] for name in settings.harnesses if name != "lightning+autolog" or _has_lightning())


def warnings(settings: Settings) -> tuple[str, ...]:
    if "lightning+autolog" in settings.harnesses and not _has_lightning():
        return ("lightning+autolog is left out: lightning is not installed (pip install -c constraints.txt -e '.[lightning]')",)
    return ()


def _has_lightning() -> bool:
    return find_spec("lightning") is not None
