"""`evenhand compare`: comparison of finished runs."""

from __future__ import annotations

from dataclasses import dataclass

from experiments.cli.campaign import is_by_mlflow, print_findings
from experiments.cli.codes import DONE, NO_VERDICT
from experiments.cli.commands import Command
from experiments.config.settings import setting
from tracking import plain
from tracking.errors import ErrorCode, EvenhandError


@dataclass(frozen=True)
class Compare:
    """Settings of `compare`."""

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
    all_pairs: bool = setting(
        False, "judge every pair of levels, not only against the baseline", group="verdict"
    )
    protocol: str = setting(
        "sound",
        "paper: the published procedure is shown beside the verdicts",
        choices=("sound", "paper"),
        group="verdict",
    )
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


def run(settings: Compare) -> int:
    from experiments.cli.compare import compare
    from experiments.config.console import Display, errors

    is_table = settings.format == "table"
    with Display() if is_table else Display(errors()) as display:
        compared = compare(settings, display.step)
        from experiments.comparison.report import rendering, writing

        display.rest()
        comparison = compared.answer.comparison
        for line in compared.notes:
            display.say(line)
        if is_table:
            display.console.print(
                rendering.terminal_card(compared.answer.card), "", writing.terminal(comparison)
            )
            print_findings(compared.answer.sentences, [*map(str, comparison.warnings)], display)
            if compared.answer.card.advice:
                display.say(str(compared.answer.card.advice))
            display.say("")
            display.say(f"report     {compared.answer.report}")
        else:
            print(plain.visible(compared.answer.text(settings.format)), end="")
        if compared.trouble:
            raise EvenhandError(
                ErrorCode.UNREACHABLE,
                f"the report is on disk, but not on the server: {compared.trouble}",
            )
        if is_table:
            display.say(f"MLflow UI  {compared.page}")
    return DONE if comparison.has_verdict or is_by_mlflow() else NO_VERDICT


COMMAND = Command("Judge finished runs of a tracking server, whoever made them", Compare, run)
