"""Settings of a search."""

from __future__ import annotations

from dataclasses import dataclass

from experiments.config.settings import setting


@dataclass(frozen=True)
class Sweep:
    """Goal and method of a search, in addition to the experiment's settings."""

    experiment: str = setting("captioning", "whose settings are searched", group="search")
    search: str = setting(
        "",
        "settings and their values: "
        "batch_size=8..256:log,dropout=0..0.5:0.1,framework=pytorch|tensorflow",
        group="search",
    )
    objectives: str = setting(
        "throughput:max",
        "metrics to raise or lower, several with commas: throughput:max,peak_memory:min",
        group="search",
    )
    constraints: str = setting(
        "", "bounds that the best must keep: memory<4GB,val/loss<2.5", group="search"
    )
    trials: int = setting(
        20, "number of trials, by all workers together", minimum=1, maximum=100_000, group="method"
    )
    sampler: str = setting(
        "tpe",
        "Optuna's sampler, which chooses the settings to try",
        choices=("tpe", "nsga-ii", "random", "grid"),
        group="method",
        advanced=True,
    )
    pruner: str = setting(
        "none",
        "Optuna's pruner, which stops a trial early by an objective that has a value every epoch",
        choices=("none", "median", "hyperband"),
        group="method",
        advanced=True,
    )
    storage: str = setting(
        "",
        "an Optuna database that workers share, postgresql://user@host/database; "
        "none: a file beside the journal",
        group="workers",
        advanced=True,
    )
    heartbeat_seconds: int = setting(
        10,
        "period of a worker's heartbeat; after three missed ones its trial is run again",
        minimum=1,
        maximum=86_400,
        group="workers",
        advanced=True,
    )
    confirm: bool = setting(
        True,
        "measure the best settings again, in blocks, against the default: "
        "only this gives a verdict",
        group="method",
    )
