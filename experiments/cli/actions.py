"""What each command does: a room is called, and what it found is printed."""

from __future__ import annotations

import dataclasses
import os
import signal
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from experiments import studies
from experiments.cli import own
from experiments.cli.codes import DONE, FAILED, NO_VERDICT
from experiments.config import settings as settings_
from experiments.config import shell, variation
from experiments.config.commands import (
    COMMANDS,
    Admin,
    Campaigns,
    Compare,
    Export,
    Extend,
    Moved,
    New,
    Parity,
    Replay,
    Selftest,
    Sweep,
)
from experiments.config.stopping import STOP
from tracking import plain
from tracking.errors import EvenhandError, WrongCall

if TYPE_CHECKING:
    from experiments.campaign.campaign import Campaign
    from experiments.campaign.conclude import Conclusion
    from experiments.campaign.runner import Runner
    from experiments.config.console import Display


def command(name: str, given: Mapping[str, str]) -> int:
    """One of the commands beside the experiments. Returns its exit code; raises WrongCall."""
    of_experiment = COMMANDS[name].of_experiment
    given = own.named(given)
    its = {field.name for field in dataclasses.fields(COMMANDS[name].settings)}
    rest = {key: text for key, text in given.items() if key not in its} if of_experiment else {}
    settings = settings_.parse(COMMANDS[name].settings, {}, {key: text for key, text in given.items() if key not in rest})
    work: dict[str, Callable[..., int]] = {
        "admin": _admin,
        "campaigns": _campaigns,
        "compare": _compare,
        "export": _export,
        "extend": _extend,
        "import": _replay,
        "moved": _moved,
        "new": _new,
        "parity": _parity,
        "replay": _replay,
        "selftest": _selftest,
        "sweep": _sweep,
    }
    return work[name](settings, rest) if of_experiment else work[name](settings)


def study(name: str, given: Mapping[str, str]) -> int:
    """A campaign of an experiment, new or resumed. Returns its exit code; raises WrongCall, Interrupted."""
    module = studies.load(name)
    given = own.named(given)
    settings = variation.based(settings_.parse(module.Settings, module.PRESETS, given), given)
    if settings.dry_run:
        return _forecast(name, settings)
    _end_in_order()
    from experiments.campaign import launch
    from experiments.config.console import Display

    with Display() as display:
        if settings.resume:
            campaign = launch.resume(name, settings.resume, given, Path(settings.journal).resolve(), display)
        else:
            campaign = launch.start(name, settings, display)
        return _concluded(campaign, display)


def _forecast(name: str, settings: settings_.CampaignSettings) -> int:
    from experiments.campaign.forecast import forecast
    from experiments.cli import dry_run
    from experiments.config.console import Display

    with Display() as display:
        for line in dry_run.lines(forecast(name, settings, display)):
            display.say(line)
    return DONE


def _admin(settings: Admin) -> int:
    from experiments.config.console import Display
    from experiments.server.admin import administer

    told, table = administer(settings)
    with Display() as display:
        if table:
            display.console.print(table)
        _tell_found(told, [], display)
    return DONE


def _campaigns(settings: Campaigns) -> int:
    from experiments.cli import campaigns
    from experiments.config.console import Display

    found = campaigns.campaigns(settings)
    with Display() as display:
        if found:
            display.console.print(campaigns.as_table(found))
            display.say(campaigns.next_step(found))
        else:
            display.say("no campaigns yet")
    return DONE


def _export(settings: Export) -> int:
    from experiments.config.console import Display
    from experiments.server.transfer import export

    with Display() as display:
        folder, count = export(settings, display.step)
        display.rest()
        again = shell.command("import", "--journal", str(folder))
        display.say(f"{count} runs are in {folder}; send them to another server: {again}")
    return DONE


def _extend(settings: Extend) -> int:
    _end_in_order()
    from experiments.campaign import extending, launch
    from experiments.config.console import Display

    root = Path(settings.journal).resolve()
    with Display() as display:
        more = extending.asked(settings.run, settings.blocks, settings.budget, root)
        campaign = launch.resume(more.study, more.run_id, more.given, root, display)
        return _concluded(campaign, display, more.last_block)


def _moved(settings: Moved) -> int:
    from tracking import moved

    former = moved.rebase(Path(settings.database))
    for folder in former:
        print(f"paths below {plain.visible(str(folder))} lead here now; the database as it was: {settings.database}{moved.KEPT}")
    if not former:
        print("all artifacts are where the store says; nothing to change")
    return DONE


def _new(settings: New) -> int:
    from experiments.cli import new

    files = new.write(settings)
    print("\n".join(plain.visible(str(path)) for path in files))
    print(f"next: {plain.visible(new.next_step(settings, files[0].parent))}")
    return DONE


def _replay(settings: Replay) -> int:
    from experiments.server.replay import replay

    return DONE if replay(Path(settings.journal)) else FAILED


def _parity(settings: Parity) -> int:
    from experiments.cli import parity
    from experiments.config.console import Display

    with Display() as display:
        judged, page = parity.parity(settings, display.step)
        display.rest()
        display.console.print(parity.table(judged))
        _tell_found([], judged.troubles, display)
        display.say(f"MLflow UI  {page}")
    return DONE if judged.equal else FAILED


def _selftest(settings: Selftest) -> int:
    from experiments.cli import selftest
    from experiments.config.console import Display

    with Display() as display:
        values, paths = selftest.selftest(settings, display)
        counts = ", ".join(f"{count} {status}" for status, count in values["counts"].items())
        display.say(f"{counts}; figures and limits: {paths[0]}, {paths[1]}")
    return FAILED if values["counts"]["failed"] else DONE


def _compare(settings: Compare) -> int:
    from experiments.cli.compare import compare
    from experiments.config.console import Display, errors

    with Display() if settings.format == "table" else Display(errors()) as display:
        compared = compare(settings, display.step)
        from experiments.comparison.report import rendering, writing

        display.rest()
        comparison = compared.answer.comparison
        for line in compared.notes:
            display.say(line)
        if settings.format == "table":
            display.console.print(rendering.terminal_card(compared.answer.card), "", writing.terminal(comparison))
            _tell_found(compared.answer.sentences, comparison.warnings, display)
            if compared.answer.card.advice:
                display.say(str(compared.answer.card.advice))
            display.say("")
            display.say(f"report     {compared.answer.report}")
        else:
            print(plain.visible(compared.answer.text(settings.format)), end="")
    if compared.trouble:
        raise EvenhandError(f"the report is on disk, but not on the server: {compared.trouble}")
    if settings.format == "table":
        display.say(f"MLflow UI  {compared.page}")
    return DONE if comparison.has_verdict or _by_runner() else NO_VERDICT


def _sweep(settings: Sweep, given: Mapping[str, str]) -> int:
    if settings_.convert("dry_run", given.get("dry_run", "false"), bool):
        raise WrongCall("dry_run: a search chooses its cells as it goes; ask the experiment itself")
    _end_in_order()
    from experiments.config.console import Display
    from experiments.sweep import worker

    with Display() as display:
        if campaign := worker.campaign_over_batches(settings, given, display):
            return _concluded(campaign, display)
        at_work = worker.begin(settings, given, display)
        found = at_work.run()
        display.rest()
        if found.conclusion:
            _tell_tables(found.conclusion, display)
        _tell_found(found.sentences, at_work.runner.warnings, display)
        if found.page is None:
            return DONE
        display.say("")
        display.say(f"search     {found.page}")
        display.say(f"settings   {', '.join(map(str, found.settings)) or 'none'}")
        display.say(f"dashboard  {found.dashboard}   (pip install -c constraints.txt -e '.[dashboard]')")
        _tell_page(at_work.runner, display, delivered=found.delivered)
    return _exit_code(found.conclusion)


def _end_in_order() -> None:
    """Whoever asks this process to end, its run ends with its reason."""
    from experiments.cell.lifetime import die_with_parent

    if _by_runner():
        die_with_parent(signal.SIGTERM)  # a killed `mlflow run` must not leave a campaign behind
    STOP.watch()


def _by_runner() -> bool:
    """Whether `mlflow run` started this process; it takes every exit code but 0 for a failure."""
    return "MLFLOW_RUN_ID" in os.environ


def _concluded(campaign: Campaign, display: Display, last_block: int = 0) -> int:
    from experiments.campaign.conclude import run

    conclusion = run(campaign, display.step, last_block)
    display.rest()
    _tell_tables(conclusion, display)
    _tell_found(conclusion.sentences, campaign.runner.warnings, display)
    if conclusion.answer and conclusion.answer.card.advice:
        display.say(str(conclusion.answer.card.advice))
    path = conclusion.answer.report if conclusion.answer else None
    display.say("")
    display.say(f"report     {path or 'none: nothing to compare'}")
    if not conclusion.all_ok:
        display.say(f"continue   {campaign.runner.resume_command}")
    _tell_page(campaign.runner, display, delivered=conclusion.delivered)
    return _exit_code(conclusion)


def _exit_code(conclusion: Conclusion | None) -> int:
    if conclusion and not conclusion.all_ok:
        return FAILED
    return DONE if (conclusion and conclusion.has_verdict) or _by_runner() else NO_VERDICT


def _tell_tables(conclusion: Conclusion, display: Display) -> None:
    from experiments.comparison.report import rendering, writing

    if conclusion.answer:
        display.console.print(rendering.terminal_card(conclusion.answer.card), "")
        display.console.print(writing.terminal(conclusion.answer.comparison), *conclusion.answer.extra.tables)


def _tell_page(runner: Runner, display: Display, *, delivered: bool) -> None:
    if delivered:  # if not, the runner has said so
        display.say(f"MLflow UI  {runner.store.page(runner.experiment, runner.run_id)}")


def _tell_found(sentences: Sequence[str], warnings: Sequence[str], display: Display) -> None:
    for line in warnings:
        display.say(f"! {line}", style="bold yellow")
    for line in sentences:
        display.say(line)
