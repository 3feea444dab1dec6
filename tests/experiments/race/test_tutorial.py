"""The tutorial on a user's script, followed by the letter."""

from __future__ import annotations

import json
import re
import shlex
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT, Place
from tests.experiments.race import races

PAGE = (ROOT / "docs/tutorials/your-script.md").read_text()
QUICK = ("--cool_down_seconds=0", "--others_limit_percent=100", "--figures=false")


def blocks(language: str) -> list[str]:
    fences = re.findall(r"^```(\w*)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    return [text for name, text in fences if name == language]


def rows(place: Place, campaign: int) -> dict[str, dict[str, object]]:
    reports = sorted(
        place.journal.glob("*/report/comparison.json"), key=lambda p: p.stat().st_mtime
    )
    result = json.loads(reports[campaign].read_text())
    return {row["metric"]: row for row in result["rows"]}


@pytest.mark.slow
def test_tutorial(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:/usr/bin:/bin")
    (place.folder / "train.py").write_text(blocks("python")[0])
    (place.folder / "race.toml").write_text(blocks("toml")[0])
    for number, text in enumerate(blocks("")):
        name, *words = shlex.split(text)
        assert name == "evenhand"
        options = [*words, f"--journal={place.journal}", f"--cache={place.cache}", *QUICK]
        done = place.call(sys.executable, "-m", "experiments", *options)
        assert done.returncode in (0, 3), done.stdout + done.stderr
        if number == 0:
            assert rows(place, 0)["wall_seconds"]["verdict"] == "slower"
    second = rows(place, 1)
    assert {"wall_seconds", "speed"} <= set(second)
    assert second["speed"]["margin"] == 0.05
    last = races.by_level(place)
    assert last["two"].data.params["variables"] == "PYTHONHASHSEED=1"
    assert last["one A/A"].data.metrics["speed"] > 0
