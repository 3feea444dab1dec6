"""The command line: the only place that parses, prints results and decides exit codes."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from experiments import settings as settings_
from experiments import studies
from models.contract import ModelError
from tracking.errors import EvenhandError, WrongCall

if TYPE_CHECKING:
    from experiments.campaign import Campaign
    from experiments.conclude import Conclusion
    from experiments.console import Display

DONE, FAILED, WRONG_CALL, NO_VERDICT = 0, 1, 2, 3
USAGE = """evenhand: the same model in every framework, one honest verdict, all of it in MLflow.

usage: python -m experiments NAME --setting value …        (or: mlflow run . -e NAME -P setting=value …)
       python -m experiments NAME --help                   what the experiment can be told
"""


def main(arguments: Sequence[str]) -> int:
    if not arguments or arguments[0] in ("-h", "--help"):
        commands = [f"  {name:16} {studies.load(name).TITLE}" for name in studies.available()]
        print(
            USAGE, "experiments:", *commands, "other:", "  replay           tell a tracking server what a journal holds", sep="\n"
        )
        return DONE
    name, *rest = arguments
    try:
        if name == "replay" and set(rest) & {"-h", "--help"}:
            print(
                "replay: tells a tracking server what a journal holds, once\n\n  --journal DIR   a campaign's folder, or all of them"
            )
            return DONE
        if name == "replay":
            return _replay(options(rest))
        study = studies.load(name)
        if "--help" in rest or "-h" in rest:
            print(f"{study.TITLE}\n\nsettings:\n{settings_.help_text(study.Settings, study.PRESETS)}")
            return DONE
        return _study(name, options(rest))
    except (WrongCall, ModelError) as error:
        print(f"evenhand: {error}", file=sys.stderr)
        return WRONG_CALL
    except EvenhandError as error:
        print(f"evenhand: {error}", file=sys.stderr)
        return FAILED
    except OSError as error:
        print(f"evenhand: {error.strerror or error}: {error.filename or 'no file named'}", file=sys.stderr)
        return FAILED
    except KeyboardInterrupt:
        print("evenhand: stopped; what was finished is in the journal, continue with resume=last", file=sys.stderr)
        return FAILED


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


def _study(name: str, given: dict[str, str]) -> int:
    from experiments.cell import die_with_parent
    from experiments.console import Display

    by_runner = "MLFLOW_RUN_ID" in os.environ
    if by_runner:
        die_with_parent(signal.SIGTERM)  # a killed `mlflow run` must not leave a campaign behind
    module = studies.load(name)
    settings = settings_.parse(module.Settings, module.PRESETS, given)
    with Display() as display:
        return _campaign(name, settings, given, display, by_runner=by_runner)


def _campaign(
    name: str, settings: settings_.CampaignSettings, given: dict[str, str], display: Display, *, by_runner: bool
) -> int:
    from experiments import launch
    from experiments.campaign import Interrupted
    from tracking.records import Outcome

    signal.signal(signal.SIGTERM, signal.default_int_handler)  # outside the blocks too, a run must end with its reason
    if settings.resume:
        campaign = launch.resume(name, settings.resume, given, Path(settings.journal).resolve(), display)
    else:
        campaign = launch.start(name, settings, display)
    try:
        all_ok = campaign.run()
        from experiments.conclude import conclude

        conclusion = conclude(campaign, studies.load(name), all_ok=all_ok)
    except Interrupted as error:
        campaign.close(Outcome.INTERRUPTED, str(error))
        raise
    except KeyboardInterrupt:
        campaign.close(Outcome.INTERRUPTED, "stopped while the report was written")
        raise Interrupted(f"stopped while the report was written; finish it with resume={campaign.run_id}") from None
    except Exception as error:
        campaign.close(Outcome.FAILED, f"{type(error).__name__}: {error}")
        raise
    _tell(campaign, conclusion, display)
    if not all_ok:
        return FAILED
    return DONE if conclusion.has_verdict or by_runner else NO_VERDICT  # MLflow's runner takes every other code for a failure


def _tell(campaign: Campaign, conclusion: Conclusion, display: Display) -> None:
    from experiments.comparison import report

    display.rest()
    if conclusion.comparison:
        display.console.print(report.terminal(conclusion.comparison))
    for line in campaign.warnings:
        display.say(f"! {line}", style="bold yellow")
    for line in conclusion.sentences:
        display.say(line)
    display.say(f"\nreport     {conclusion.report or 'none: nothing to compare'}")
    if conclusion.delivered:
        display.say(f"MLflow UI  {campaign.store.page(campaign.experiment, campaign.run_id)}")
    else:
        display.say(
            f"! {campaign.store.uri} does not answer; tell it later: python -m experiments replay --journal {campaign.folder}"
        )


def _replay(given: dict[str, str]) -> int:
    from experiments.replay import replay

    unknown = set(given) - {"journal"}
    if unknown:
        raise WrongCall(f"replay has no setting '{sorted(unknown)[0]}'; it takes journal=DIR")
    return replay(Path(given.get("journal", ".evenhand/journal")))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
