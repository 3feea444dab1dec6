"""Start, continuation and result of campaigns on the command line."""

from __future__ import annotations

import dataclasses
import os
import signal
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from experiments import studies
from experiments.cli.codes import CONDITION_HOLDS, DONE, FAILED, NO_VERDICT
from experiments.config import interpreters, variation
from experiments.config.stopping import STOP

if TYPE_CHECKING:
    from experiments.comparison.judgement import ComparisonResult
    from experiments.comparison.verdicts.conditions import Condition
    from experiments.comparison.verdicts.findings import Comparison
    from experiments.config.console import Display
    from experiments.run.pipeline import Conclusion
    from experiments.run.recorder import Recorder


def run_study(name: str, options: Mapping[str, str]) -> int:
    """Run a campaign of an experiment, new or resumed, and return the exit code.

    Raises:
        UsageError: for settings that the experiment cannot have.
        Interrupted: if a signal ended it.
    """
    from experiments.config.console import Display

    study = studies.load(name)
    settings = variation.based(studies.parse_settings(study, options), options)
    if settings.levels and "frameworks" not in options:
        from experiments.config import virtual_environments

        frameworks = virtual_environments.frameworks_of_levels(settings)
        settings = dataclasses.replace(settings, frameworks=frameworks)
    with Display() as display:
        if settings.dry_run:
            from experiments.cli import dry_run
            from experiments.run.forecast import forecast

            for line in dry_run.lines(forecast(name, settings, display)):
                display.say(line)
            return DONE
        end_in_order()
        from experiments.run import pipeline

        if not settings.resume:
            blocks = f"{settings.blocks} block{'s' * (settings.blocks > 1)}"
            if settings.until_settled:
                blocks = f"{settings.blocks} to {settings.max_blocks} blocks"
            first = f"{name} · {settings.preset}: checks, then {blocks}"
            display.say(f"{first}; after a cell you see about how long the rest takes")
            for framework in settings.frameworks if settings.pythons else ():
                python = interpreters.executable(framework, settings.pythons)
                display.say(f"    {framework} runs with {python}")
        conclusion = pipeline.run(name, settings, display, options)
        display.rest()
        print_conclusion(conclusion, display)
        return exit_code(conclusion)


def end_in_order() -> None:
    """Let a signal end the run of this process with a reason."""
    from experiments.cell.lifetime import die_with_parent

    if is_by_mlflow():
        die_with_parent(signal.SIGTERM)  # a killed `mlflow run` ends its campaign
    STOP.watch()


def is_by_mlflow() -> bool:
    """Return whether `mlflow run` started this process: for it, all codes but 0 are failures."""
    return "MLFLOW_RUN_ID" in os.environ


def print_conclusion(conclusion: Conclusion, display: Display) -> None:
    """Print the result of a campaign, with what to do next and where to see it."""
    recorder = conclusion.campaign.recorder
    answer = conclusion.answer
    # the judged ones contain those of the cells, which the start of the campaign has printed
    warnings = map(str, answer.comparison.warnings) if answer else recorder.warnings
    print_warnings(warnings, display)
    if answer:
        print_answer(answer, display)
    sentences = conclusion.sentences
    for line in answer.card.without_answer(sentences) if answer else sentences:
        display.say(line)
    if answer:
        print_conditions(conclusion.conditions, answer.comparison, display)
    display.say("")
    if answer and answer.card.advice:  # a command is copied from a line of its own
        display.say(str(answer.card.advice))
    path = answer.report if answer else None
    display.say(f"report     {path or 'none: nothing to compare'}")
    if not conclusion.all_ok:
        display.say(f"continue   {recorder.resume_command}")
    print_page(recorder, display, delivered=conclusion.delivered)


def exit_code(conclusion: Conclusion | None) -> int:
    code = None
    if conclusion and conclusion.answer:
        comparison = conclusion.answer.comparison
        code = verdict_code(conclusion.conditions, comparison)
        code = DONE if comparison.smoke and code == NO_VERDICT else code
    if conclusion and not conclusion.all_ok:
        return CONDITION_HOLDS if code == CONDITION_HOLDS else FAILED
    if code is not None:
        return code
    return DONE if is_by_mlflow() else NO_VERDICT


def verdict_code(failing: Sequence[Condition], comparison: Comparison) -> int:
    """Return the exit code of a comparison with the conditions by which the call fails."""
    from experiments.comparison.verdicts import conditions

    if conditions.matching(failing, comparison):
        return CONDITION_HOLDS
    if conditions.without_runs(failing, comparison):
        return FAILED  # more blocks change nothing
    is_done = conditions.are_settled(failing, comparison)
    return DONE if is_done or is_by_mlflow() else NO_VERDICT


def print_conditions(
    failing: Sequence[Condition], comparison: Comparison, display: Display
) -> None:
    """Print the conditions that hold, with the first finding by which they do, or that cannot."""
    from experiments.comparison.report import wording
    from experiments.comparison.verdicts import conditions
    from experiments.comparison.verdicts.findings import Finding

    for text, (first, *_) in conditions.matching(failing, comparison).items():
        if isinstance(first, Finding):
            why = wording.sentence(first)
        else:
            why = wording.failed_runs(first, comparison.factor) + "."
        display.say(f"fail_if={text} holds: {why}", style="bold red")
    for condition in conditions.without_runs(failing, comparison):
        metric = condition.metric or "an outcome that it is about"
        line = f"fail_if={condition} cannot be judged: no run has {metric}"
        display.say(line, style="bold red")


def print_answer(answer: ComparisonResult, display: Display) -> None:
    """Print the card and the table of a comparison."""
    from experiments.comparison.report import rendering, writing

    table = writing.terminal(answer.comparison)
    display.console.print(rendering.terminal_card(answer.card), "", table, "")


def print_page(recorder: Recorder, display: Display, *, delivered: bool) -> None:
    from tracking import links

    if delivered:  # if not, the recorder has reported it
        page = links.page(recorder.store, recorder.experiment, recorder.run_id)
        display.say(f"MLflow UI  {page}")


def print_warnings(warnings: Iterable[str], display: Display) -> None:
    for line in warnings:
        display.say(f"! {line}", style="bold yellow")
