"""The command line: the only place that parses, prints results and decides exit codes."""

from __future__ import annotations

import dataclasses
import gc
import os
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from experiments import settings as settings_
from experiments import studies
from experiments.commands import COMMANDS, Admin, Compare, Export, Parity, Replay, Sweep
from models.contract import ModelError
from tracking.errors import EvenhandError, WrongCall

if TYPE_CHECKING:
    from experiments.campaign import Campaign
    from experiments.conclude import Conclusion
    from experiments.console import Display
    from experiments.runner import Runner

DONE, FAILED, WRONG_CALL, NO_VERDICT = 0, 1, 2, 3
USAGE = """evenhand: the same model in every framework, one honest verdict, all of it in MLflow.

usage: python -m experiments NAME --setting value …        (or: mlflow run . -e NAME -P setting=value …)
       python -m experiments NAME --help                   what the experiment can be told
"""


def main(arguments: Sequence[str]) -> int:
    try:
        if not arguments or arguments[0] in ("-h", "--help"):
            print(USAGE, "experiments:", *map(_listed, studies.available()), "other:", *map(_listed, COMMANDS), sep="\n")
            return DONE
        name, *rest = arguments
        if set(rest) & {"-h", "--help"}:
            print(_help(name))
            return DONE
        return _command(name, options(rest)) if name in COMMANDS else _study(name, options(rest))
    except (WrongCall, ModelError) as error:
        print(f"evenhand: {error}", file=sys.stderr)
        return WRONG_CALL
    except EvenhandError as error:
        print(f"evenhand: {error}", file=sys.stderr)
        return FAILED
    except BrokenPipeError:  # the reader has seen enough
        sys.stdout = None
        return DONE
    except OSError as error:
        print(f"evenhand: {error.strerror or error}: {error.filename or 'no file named'}", file=sys.stderr)
        return FAILED
    except KeyboardInterrupt:
        print("evenhand: stopped; what was finished is in the journal, continue with resume=last", file=sys.stderr)
        return FAILED


def _listed(name: str) -> str:
    return f"  {name:16} {COMMANDS[name].title if name in COMMANDS else studies.load(name).TITLE}"


def _help(name: str) -> str:
    if name in COMMANDS:
        more = (
            "\n\nand every setting of the experiment: python -m experiments EXPERIMENT --help"
            if COMMANDS[name].of_experiment
            else ""
        )
        return f"{COMMANDS[name].title}\n\nsettings:\n{settings_.help_text(COMMANDS[name].settings, {})}{more}"
    study = studies.load(name)
    return f"{study.TITLE}\n\nsettings:\n{settings_.help_text(study.Settings, study.PRESETS)}"


def options(arguments: Sequence[str]) -> dict[str, str]:
    """`--name value` or `--name=value`, each once. Raises WrongCall."""
    found: dict[str, str] = {}
    rest = list(arguments)
    while rest:
        word = rest.pop(0)
        if not word.startswith("--") or word == "--":
            raise WrongCall(f"'{word}' is not a setting; write --name value")
        name, equals, value = word[2:].partition("=")
        if not equals:
            if not rest:
                raise WrongCall(f"--{name} has no value; write --{name} value")
            value = rest.pop(0)
        if name in found:
            raise WrongCall(f"--{name} is given twice")
        found[name] = value
    return found


def _command(name: str, given: dict[str, str]) -> int:
    own = {field.name for field in dataclasses.fields(COMMANDS[name].settings)}
    rest = {key: text for key, text in given.items() if key not in own} if COMMANDS[name].of_experiment else {}
    settings = settings_.parse(COMMANDS[name].settings, {}, {key: text for key, text in given.items() if key not in rest})
    work: dict[str, Callable[..., int]] = {
        "admin": _admin,
        "compare": _compare,
        "export": _export,
        "import": _replay,
        "parity": _parity,
        "replay": _replay,
        "sweep": _sweep,
    }
    return work[name](settings, rest) if COMMANDS[name].of_experiment else work[name](settings)


def _admin(settings: Admin) -> int:
    from experiments.admin import administer
    from experiments.console import Display

    told, table = administer(settings)
    with Display() as display:
        if table:
            display.console.print(table)
        _tell_found(told, [], display)
    return DONE


def _export(settings: Export) -> int:
    from experiments.console import Display
    from experiments.transfer import export

    with Display() as display:
        folder, count = export(settings, display.step)
        display.rest()
        display.say(f"{count} runs are in {folder}; tell another server: python -m experiments import --journal {folder}")
    return DONE


def _replay(settings: Replay) -> int:
    from experiments.replay import replay

    return DONE if replay(Path(settings.journal)) else FAILED


def _parity(settings: Parity) -> int:
    from experiments import parity
    from experiments.console import Display

    with Display() as display:
        judged, page = parity.parity(settings, display.step)
        display.rest()
        display.console.print(parity.table(judged))
        _tell_found([], judged.troubles, display)
        display.say(f"MLflow UI  {page}")
    return DONE if judged.equal else FAILED


def _compare(settings: Compare) -> int:
    gc.disable()  # a tenth of the time of a large comparison; this process ends with it
    from experiments.compare import compare
    from experiments.console import Display, errors

    with Display() if settings.format == "table" else Display(errors()) as display:
        compared = compare(settings, display.step)
        from experiments.comparison import report

        display.rest()
        comparison = compared.answer.comparison
        if settings.format == "table":
            display.console.print(report.terminal(comparison))
            _tell_found(compared.answer.sentences, comparison.warnings, display)
            display.say(f"\nreport     {compared.answer.report}")
        else:
            print(compared.answer.text(settings.format), end="")
    if compared.trouble:
        print(f"evenhand: the report is on disk, but not on the server: {compared.trouble}", file=sys.stderr)
        return FAILED
    if settings.format == "table":
        display.say(f"MLflow UI  {compared.page}")
    return DONE if comparison.has_verdict or _by_runner() else NO_VERDICT


def _sweep(settings: Sweep, given: dict[str, str]) -> int:
    from experiments.console import Display
    from experiments.sweep import worker
    from experiments.sweep.report import terminal

    _end_in_order()
    with Display() as display:
        if campaign := worker.campaign_over_batches(settings, given, display):
            return _concluded(campaign, display)
        at_work = worker.begin(settings, given, display)
        found = at_work.run()
        display.rest()
        if found.conclusion:
            _tell_tables(found.conclusion, display)
        if found.table:
            display.console.print(terminal(found.table, found.best))
        _tell_found(found.sentences, at_work.runner.warnings, display)
        if found.page is None:
            return DONE
        display.say(f"\nsearch     {found.page}\nsettings   {', '.join(map(str, found.settings)) or 'none'}")
        display.say(f"dashboard  {found.dashboard}   (pip install 'evenhand[dashboard]')")
        _tell_page(at_work.runner, display, delivered=found.delivered)
    return _exit_code(found.conclusion)


def _study(name: str, given: dict[str, str]) -> int:
    from experiments import launch
    from experiments.console import Display

    _end_in_order()
    module = studies.load(name)
    settings = settings_.parse(module.Settings, module.PRESETS, given)
    with Display() as display:
        if settings.resume:
            campaign = launch.resume(name, settings.resume, given, Path(settings.journal).resolve(), display)
        else:
            campaign = launch.start(name, settings, display)
        return _concluded(campaign, display)


def _end_in_order() -> None:
    """Whoever asks this process to end, its run ends with its reason."""
    from experiments.cell import die_with_parent

    if _by_runner():
        die_with_parent(signal.SIGTERM)  # a killed `mlflow run` must not leave a campaign behind
    signal.signal(signal.SIGTERM, signal.default_int_handler)


def _by_runner() -> bool:
    """Whether `mlflow run` started this process; it takes every exit code but 0 for a failure."""
    return "MLFLOW_RUN_ID" in os.environ


def _concluded(campaign: Campaign, display: Display) -> int:
    from experiments.conclude import run

    conclusion = run(campaign, display.step)
    display.rest()
    _tell_tables(conclusion, display)
    _tell_found(conclusion.sentences, campaign.runner.warnings, display)
    path = conclusion.answer.report if conclusion.answer else None
    display.say(f"\nreport     {path or 'none: nothing to compare'}")
    _tell_page(campaign.runner, display, delivered=conclusion.delivered)
    return _exit_code(conclusion)


def _exit_code(conclusion: Conclusion | None) -> int:
    if conclusion and not conclusion.all_ok:
        return FAILED
    return DONE if (conclusion and conclusion.has_verdict) or _by_runner() else NO_VERDICT


def _tell_tables(conclusion: Conclusion, display: Display) -> None:
    from experiments.comparison import report

    if conclusion.answer:
        display.console.print(report.terminal(conclusion.answer.comparison), *conclusion.answer.extra.tables)


def _tell_page(runner: Runner, display: Display, *, delivered: bool) -> None:
    if delivered:
        display.say(f"MLflow UI  {runner.store.page(runner.experiment, runner.run_id)}")
    else:
        display.say(
            f"! {runner.store.uri} does not answer; tell it later: python -m experiments replay --journal {runner.folder}"
        )


def _tell_found(sentences: Sequence[str], warnings: Sequence[str], display: Display) -> None:
    for line in warnings:
        display.say(f"! {line}", style="bold yellow")
    for line in sentences:
        display.say(line)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
