"""What can be asked besides the experiments: settings here, so that help answers at once; the work in the module of that name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from experiments.config.settings import MAX_BLOCKS, MAX_SEED, CampaignSettings, setting

MAX_LISTED = 10_000


@dataclass(frozen=True)
class Compare:
    """Settings of `compare`: which finished runs are compared, and how."""

    experiment: tuple[str, ...] = setting(
        ("captioning",), "experiments by name, campaigns by run id; several with commas", group="runs"
    )
    factor: str = setting(
        "framework", "what is compared: any setting or tag (batch_size, tags.team, version.torch)", group="verdict"
    )
    baseline: str = setting("", "the level that the others are judged against; none: the first in order", group="verdict")
    outcomes: tuple[str, ...] = setting((), "metrics; none: all that both sides have", group="verdict")
    primary: tuple[str, ...] = setting(
        (), "one to three metrics, named before looking, that are tested before all others; none: all alike", group="verdict"
    )
    filter: str = setting(
        "", "which runs, in MLflow's filter language: tags.team = 'vision' and params.batch_size = '32'", group="runs"
    )
    margin: float = setting(
        0.03, "the smallest ratio that matters, fixed before measuring", minimum=0.001, maximum=0.5, group="verdict"
    )
    strata: tuple[str, ...] = setting(
        (), "columns whose values are judged separately, never pooled, then summarised: machine,model,batch_size", group="verdict"
    )
    all_pairs: bool = setting(False, "judge every pair of levels, not only against the baseline", group="verdict")
    protocol: str = setting(
        "sound", "paper: the published procedure is shown beside the verdicts", choices=("sound", "paper"), group="verdict"
    )
    format: str = setting(
        "table", "what is printed; the report has all of them", choices=("table", "markdown", "csv", "json"), group="output"
    )
    figures: bool = setting(True, "draw the report's figures; without them the report is ready sooner", group="output")
    team: str = setting("", "whose comparison this is (tag team)", group="output")
    output: str = setting(".evenhand/comparisons", "folder that gets the report, beside MLflow", path=True, group="output")


@dataclass(frozen=True)
class Campaigns:
    """Which campaigns are listed."""

    experiment: tuple[str, ...] = setting((), "experiments by name, several with commas; none: all", group="runs")
    limit: int = setting(20, "at most so many, the newest", minimum=1, maximum=MAX_LISTED, group="output")


@dataclass(frozen=True)
class Parity:
    """Which networks are proven equal, in which frameworks."""

    models: tuple[str, ...] = setting((), "models by folder name, several with commas; none, or all: every one", group="networks")
    frameworks: tuple[str, ...] = setting(
        ("pytorch", "tensorflow"), "the reference first, then those judged against it", group="networks"
    )
    optimizer: tuple[str, ...] = setting(
        ("adam", "sgd"),
        "adam, sgd (plain, and with momentum and decay): PyTorch's semantics; adam-stock: each framework's own",
        choices=("adam", "sgd", "adam-stock"),
        group="training",
    )
    full: bool = setting(
        False, "whole networks instead of small versions with every kind of layer: minutes and gigabytes", group="networks"
    )
    pythons: tuple[str, ...] = setting(
        (),
        "interpreters of frameworks that are installed in environments of their own: tensorflow=/PATH/bin/python,…",
        group="networks",
    )
    seed: int = setting(0, "of weights and batches", minimum=0, maximum=MAX_SEED, group="training")
    device: str = setting(
        "auto", "where both sides compute; auto: the GPU if there is one", choices=("auto", "cpu", "cuda"), group="networks"
    )


@dataclass(frozen=True)
class Selftest:
    """Which checks of the acceptance kit run, and where."""

    device: str = setting(
        "auto", "where known work is measured; auto: the GPU if there is one", choices=("auto", "cpu", "cuda"), group="checks"
    )
    checks: tuple[int, ...] = setting(
        (), "numbers of checks, several with commas; none: all", minimum=1, maximum=16, group="checks"
    )
    frameworks: tuple[str, ...] = setting(
        ("pytorch", "pytorch+compile", "keras-torch", "keras-jax", "tensorflow"),
        "frameworks of the checks; what is not installed is skipped",
        group="checks",
    )
    output: str = setting(".evenhand/selftest", "folder that gets selftest.json and selftest.md", path=True, group="output")


@dataclass(frozen=True)
class Sweep:
    """What is searched for, and how; the experiment's own settings stand beside these."""

    experiment: str = setting("captioning", "whose settings are searched", group="search")
    search: str = setting(
        "", "settings and their values: batch_size=8..256:log,dropout=0..0.5:0.1,framework=pytorch|tensorflow", group="search"
    )
    objectives: str = setting(
        "throughput:max", "metrics to raise or lower, several with commas: throughput:max,peak_memory:min", group="search"
    )
    constraints: str = setting("", "bounds that the best must keep: memory<4GB,val/loss<2.5", group="search")
    trials: int = setting(20, "number of trials, by all workers together", minimum=1, maximum=100_000, group="method")
    sampler: str = setting(
        "tpe", "Optuna's sampler, which chooses the settings to try", choices=("tpe", "nsga-ii", "random", "grid"), group="method"
    )
    pruner: str = setting(
        "none",
        "Optuna's pruner, which stops a trial early by an objective that has a value every epoch",
        choices=("none", "median", "hyperband", "halving"),
        group="method",
    )
    find: str = setting(
        "",
        "max_batch: the largest that fits; best_batch: a campaign over all sizes",
        choices=("", "max_batch", "best_batch"),
        group="search",
    )
    storage: str = setting(
        "",
        "an Optuna database that workers share, postgresql://user@host/database; none: a file beside the journal",
        group="workers",
    )
    heartbeat_seconds: int = setting(
        10,
        "period of a worker's heartbeat; after three missed ones its trial is run again",
        minimum=1,
        maximum=86_400,
        group="workers",
    )
    confirm: bool = setting(
        True, "measure the best settings again, in blocks, against the default: only this gives a verdict", group="method"
    )


@dataclass(frozen=True)
class Extend:
    """Which campaign goes on, and how far."""

    run: str = setting("last", "the campaign: its run id, or last", group="campaign")
    blocks: int = setting(6, "how many more blocks are measured", minimum=1, maximum=MAX_BLOCKS, group="campaign")
    budget: str = setting(
        "none",
        "of a campaign with until=settled, how long it may take, such as 90s, 30m or 2h; none: as long as it takes",
        group="campaign",
    )
    journal: str = setting(CampaignSettings.journal, "folder that has the campaign's journal", path=True, group="records")


@dataclass(frozen=True)
class Moved:
    """Which local store was moved with its folder."""

    database: str = setting("mlflow.db", "the store's file, in its new place beside mlruns", path=True, group="store")


@dataclass(frozen=True)
class New:
    """What is begun: a folder that the user then fills."""

    kind: str = setting("model", "what it is", choices=("model", "dataset"), group="folder")
    name: str = setting("", "its name: small letters, digits and _; the folder is called so", group="folder")
    output: str = setting(".", "folder that gets the new one", path=True, group="folder")


@dataclass(frozen=True)
class Admin:
    """What is done to the accounts of a shared server."""

    action: str = setting(
        "list",
        "what is done",
        choices=("list", "add_team", "remove_team", "add_user", "remove_user", "new_password", "join", "leave", "grant", "prune"),
        group="action",
    )
    team: str = setting("", "name of the team", group="action")
    user: str = setting("", "name of the user", group="action")
    experiment: str = setting("", "grant: the experiment, by name; prune: only this experiment, none: all", group="action")
    permission: str = setting("EDIT", "grant: the permission", choices=("READ", "EDIT", "MANAGE"), group="action")
    days: int = setting(
        90,
        "prune: files of runs that ended at least this many days ago and are part of a report",
        minimum=1,
        maximum=36_500,
        group="prune",
    )
    confirm: bool = setting(False, "prune: delete what was listed", group="prune")
    output: str = setting(
        ".evenhand/accounts", "folder for the files with names and passwords of new users", path=True, group="output"
    )


@dataclass(frozen=True)
class Export:
    """Which runs are written down for another server."""

    experiment: tuple[str, ...] = setting(("captioning",), "experiments by name, several with commas", group="runs")
    filter: str = setting("", "which runs, in MLflow's filter language; none: all", group="runs")
    output: str = setting(".evenhand/export", "a new folder, which becomes a journal for import", path=True, group="output")


@dataclass(frozen=True)
class Replay:
    """Settings of `replay` and `import`: which records a tracking server gets."""

    journal: str = setting(".evenhand/journal", "one campaign's folder, or a folder of several", path=True, group="records")


@dataclass(frozen=True)
class Command:
    """A command of the same name as its module. `settings`: its dataclass; of_experiment: it takes the experiment's too.

    bare: the settings whose values may be the first words after the command, without their names.
    """

    title: str
    settings: type[Any]
    of_experiment: bool = False
    bare: tuple[str, ...] = ()


COMMANDS = {
    "admin": Command("Teams, users and permissions of a shared tracking server", Admin),
    "campaigns": Command("List the campaigns of a tracking server, the newest first, with their answers", Campaigns),
    "compare": Command("Judge finished runs of a tracking server, whoever made them", Compare),
    "extend": Command("Measure more blocks of a campaign that has ended", Extend, bare=("run",)),
    "export": Command("Export runs of a server as a journal, for another server", Export),
    "import": Command("Upload an export to a tracking server, exactly once", Replay),
    "moved": Command("Let a local store find its artifacts again after its folder was moved", Moved),
    "new": Command("Write the folder of a model or a data set of your own, to begin with", New, bare=("kind", "name")),
    "parity": Command("Prove that a model computes the same in every framework, and show the errors", Parity),
    "selftest": Command("Measure known work on this machine's device: an acceptance test of the measurement", Selftest),
    "sweep": Command("Search an experiment's settings with Optuna, and judge what was found", Sweep, of_experiment=True),
    "replay": Command("Upload the local journal to a tracking server, exactly once", Replay),
}
