"""The file of a race: its levels, outcomes and mistakes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from experiments import studies
from experiments.config import race_file
from experiments.config import settings as settings_
from experiments.planning import treatments
from experiments.studies.race import rules
from tracking.errors import ErrorCode, UsageError

FILE = """
[defaults]
timeout = "30m"
env = {OMP_NUM_THREADS = "2", SEED = "7"}
[levels.old]
command = "python train.py"
cwd = "."
[levels.new]
command = "python train.py --sizes 1,2"
timeout = "5s"
env = {OMP_NUM_THREADS = "1", API_TOKEN = "abcd1234"}
requirements = ["torch==2.16", "-c constraints.txt"]
python = "3.12"
[outcomes]
primary = ["wall_seconds", "images_per_second"]
[outcomes.images_per_second]
better = "higher"
margin = 0.05
[outcomes.accuracy]
better = "higher"
summary = "best"
"""


def written(tmp_path: Path, text: str = FILE) -> str:
    (tmp_path / "race.toml").write_text(text)
    return str(tmp_path / "race.toml")


def test_levels_inherit_defaults(tmp_path: Path) -> None:
    race = race_file.load(written(tmp_path), (), "none")
    old, new = race.levels["old"], race.levels["new"]
    assert list(race.levels) == ["old", "new"]
    assert race.folder == tmp_path
    assert (old.timeout, new.timeout) == ("30m", "5s")
    assert old.env == {"OMP_NUM_THREADS": "2", "SEED": "7"}
    assert new.env == {"OMP_NUM_THREADS": "1", "SEED": "7", "API_TOKEN": "abcd1234"}
    assert (new.requirements, new.python) == (("torch==2.16", "-c constraints.txt"), "3.12")
    assert new.recorded["variables"] == "OMP_NUM_THREADS=1 SEED=7 API_TOKEN=***"
    assert "abcd1234" in new.secrets


def test_options_name_levels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from experiments.cli import arguments, entries

    entry = entries.load("race")
    words = ["--level", "a=python x.py --sizes 1,2", "--level=b=X=1 python x.py", "--blocks=3"]
    texts = arguments.options(words, entry)
    settings = settings_.parse(entry.settings, entry.presets, texts)
    race = race_file.load("", settings.level, "2h")
    assert {name: level.command for name, level in race.levels.items()} == {
        "a": "python x.py --sizes 1,2",
        "b": "X=1 python x.py",
    }
    as_list = ["--level", '["a=true", "b=false"]']
    parsed = settings_.parse(entry.settings, entry.presets, arguments.options(as_list, entry))
    assert parsed.level == ("a=true", "b=false")


def test_outcomes_of_the_file_are_judged_with_their_margins(tmp_path: Path) -> None:
    study = studies.load("race")
    settings = study.settings(file=written(tmp_path))  # type: ignore[call-arg]
    outcomes = {outcome.metric: outcome for outcome in studies.outcomes(study, settings)}
    speed, accuracy = outcomes["images_per_second"], outcomes["accuracy"]
    assert (speed.kind, speed.better, speed.margin) == ("ratio", "higher", 0.05)
    assert (accuracy.kind, accuracy.better, accuracy.margin) == ("difference", "higher", 0.01)
    assert studies.primary(study, settings) == ("wall_seconds", "images_per_second")


def test_declared_kind_and_margin_go_before_the_names(tmp_path: Path) -> None:
    """Judge an accuracy as a ratio, and another in percent by its declared margin of 2 points."""
    text = """[outcomes.accuracy]
better = "lower"
kind = "ratio"
[outcomes.val_acc]
better = "higher"
margin = 2
unit = "points"
"""
    outcomes, primary = race_file.load_outcomes(Path(written(tmp_path, text)), "file")
    ratio, points = (rules(name, declared) for name, declared in outcomes.items())
    assert (ratio.kind, ratio.better, ratio.margin, ratio.share) == ("ratio", "lower", None, False)
    assert (points.kind, points.unit, points.margin, points.share) == (
        "difference",
        "points",
        2,
        False,
    )
    assert primary == ()


def test_controls_repeat_the_first_command(tmp_path: Path) -> None:
    study = studies.load("race")
    settings = study.settings(  # type: ignore[call-arg]
        file=written(tmp_path), aa=True, inject_delay=0.05
    )
    cells = treatments.list_treatments(study, settings)
    assert [(cell.name, cell.control) for cell in cells] == [
        ("old", ""),
        ("new", ""),
        ("old A/A", "A/A"),
        ("old +5 %", "injected 5 %"),
    ]
    assert [cell.settings["inject_delay"] for cell in cells] == [0.0, 0.0, 0.0, 0.05]
    assert {cell.settings["level"] for cell in cells[2:]} == {("old",)}


LEVEL = "[levels.a]\ncommand='x'\n"
LOSS = f"{LEVEL}[outcomes.loss]\nbetter='lower'\n"


@pytest.mark.parametrize(
    ("text", "code", "path"),
    [
        ("", ErrorCode.INVALID_VALUE, "levels"),
        ("[levels.a]\ncommnd = 'x'", ErrorCode.INVALID_VALUE, "levels.a.command"),
        (f"{LEVEL}commnd = 'x'", ErrorCode.UNKNOWN_NAME, "levels.a.commnd"),
        ("[levels.a]\ncommand = ''", ErrorCode.INVALID_VALUE, "levels.a.command"),
        ("[levels.'a b']\ncommand = 'x'", ErrorCode.INVALID_VALUE, "levels.a b"),
        (f"{LEVEL}env = {{N = 1}}", ErrorCode.INVALID_VALUE, "levels.a.env.N"),
        (f"{LEVEL}timeout='soon'", ErrorCode.INVALID_VALUE, "timeout"),
        ("[level.a]\ncommand='x'", ErrorCode.INVALID_VALUE, "levels"),
        (LOSS.replace("lower", "smaller"), ErrorCode.INVALID_VALUE, "outcomes.loss.better"),
        (f"{LOSS}kind='difference'", ErrorCode.INVALID_VALUE, "outcomes.loss"),
        ("[levels.a", ErrorCode.UNREADABLE, "race.toml"),
        (f"{LEVEL}cwd='~nobody-here'", ErrorCode.INVALID_VALUE, "levels.a.cwd"),
        (f"{LEVEL}cwd='{'a' * 300}'", ErrorCode.INVALID_VALUE, "a.cwd"),
        (f'[defaults]\ncwd="a\\u0000"\n{LEVEL}', ErrorCode.INVALID_VALUE, "s.cwd"),
        ('[levels.a]\ncommand="a\\u0000"', ErrorCode.INVALID_VALUE, "levels.a.command"),
        (f'{LEVEL}env={{A="a\\u0000"}}', ErrorCode.INVALID_VALUE, "levels.a.env.A"),
        *(
            (LOSS + line, ErrorCode.INVALID_VALUE, f"outcomes.loss.{line.partition('=')[0]}")
            for line in (
                "regex='loss'",
                "summary='first'",
                f"regex='{'(' * 5_000}x{')' * 5_000}'",
                "regex='(x{99999999999999})'",
                f"summary='step:{'9' * 400}'",
                f"margin={'9' * 400}",
            )
        ),
        (LOSS.replace("loss", "'a;b'"), ErrorCode.INVALID_VALUE, "outcomes"),
    ],
)
def test_mistakes_name_their_key(tmp_path: Path, text: str, code: ErrorCode, path: str) -> None:
    with pytest.raises(UsageError) as error:
        race_file.load(written(tmp_path, text), (), "none")
    assert error.value.code == code
    assert path in str(error.value)
    assert "\n" not in str(error.value)


def test_pipe_and_levels_next_to_a_file_are_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.toml")
    for call, code in (
        ((str(tmp_path / "pipe.toml"), ()), ErrorCode.UNREADABLE),
        ((written(tmp_path), ("a=true",)), ErrorCode.CONFLICT),
    ):
        with pytest.raises(UsageError) as error:
            race_file.load(*call, "none")
        assert error.value.code == code
