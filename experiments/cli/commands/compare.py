"""`evenhand compare`: comparison of finished runs."""

from __future__ import annotations

from dataclasses import dataclass

from experiments.cli.commands import Command, Display
from experiments.config.settings import FAIL_IF, setting


@dataclass(frozen=True)
class Compare:
    experiment: tuple[str, ...] = setting(
        ("captioning",),
        "experiments by name, campaigns by run id; several with commas",
        group="runs",
    )
    factor: str = setting(
        "framework",
        "what is compared: any setting or tag (batch_size, tags.team, version.torch)",
        group="verdict",
    )
    baseline: str = setting(
        "",
        "the level that the others are judged against; none: the first in order",
        group="verdict",
    )
    outcomes: tuple[str, ...] = setting(
        (), "metrics; none: all that both sides have", group="verdict"
    )
    outcomes_file: str = setting(
        "",
        "TOML with [outcomes.NAME]: direction, kind, margin and unit of your metrics; "
        "none: race.toml, if this folder has one",
        path=True,
        group="verdict",
    )
    primary: tuple[str, ...] = setting(
        (),
        "one to three metrics, chosen before measuring, that are tested first; none: all alike",
        group="verdict",
    )
    filter: str = setting(
        "",
        "which runs, in MLflow's filter language: "
        "tags.team = 'vision' and params.batch_size = '32'",
        group="runs",
    )
    margin: float = setting(
        0.03,
        "the smallest ratio that matters, fixed before measuring",
        minimum=0.001,
        maximum=0.5,
        group="verdict",
    )
    strata: tuple[str, ...] = setting(
        (),
        "columns whose values are judged separately, then summarised: machine,model,batch_size",
        group="verdict",
    )
    pair_by: str = setting(
        "",
        "what pairs runs that have no block: a setting or tag, such as a seed, or time",
        group="runs",
    )
    ignore: tuple[str, ...] = setting(
        (), "patterns of params that may differ, such as opt_*; the report lists them", group="runs"
    )
    all_pairs: bool = setting(
        False, "judge every pair of levels, not only against the baseline", group="verdict"
    )
    protocol: str = setting(
        "sound",
        "paper: the published procedure is shown beside the verdicts",
        choices=("sound", "paper"),
        group="verdict",
    )
    fail_if: tuple[str, ...] = setting((), FAIL_IF, group="verdict")
    format: str = setting(
        "table",
        "what is printed; the report has all of them",
        choices=("table", "markdown", "csv", "json"),
        group="output",
    )
    figures: bool = setting(
        True, "draw the report's figures; without them the report is ready sooner", group="output"
    )
    team: str = setting("", "whose comparison this is (tag team)", group="output")
    output: str = setting(
        ".evenhand/comparisons",
        "folder that gets the report, in addition to MLflow",
        path=True,
        group="output",
    )


def run(settings: Compare, display: Display) -> int:
    from experiments.cli import compare
    from experiments.config import console

    if settings.format != "table":  # another program reads standard output
        display = console.Display(console.PlainConsole(stderr=True))
    return compare.run(settings, display)


COMMAND = Command("Judge finished runs of a tracking server, whoever made them", Compare, run)
