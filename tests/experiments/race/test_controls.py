"""Controls of a race: a command against itself, unchanged and slowed."""

from __future__ import annotations

import json
import sys

import pytest

from tests.conftest import Place
from tests.experiments.race import races

# The value stands before more output than is stored.
BURN = """
print("sum:", sum(range(20_000_000)))
print("another line\\n" * 200_000)
"""
RACE = f"""
[levels.burn]
command = "'{sys.executable}' burn.py"
[outcomes]
primary = ["wall_seconds"]
[outcomes.sum]
better = "lower"
regex = "sum: ([0-9]+)"
"""
DELAY = 1.0
# The machine need not be idle: only differences of more than a quarter count.
MARGIN = 0.25


@pytest.mark.slow
def test_same_command_is_equal_and_a_delay_is_found_in_its_size(place: Place) -> None:
    (place.folder / "burn.py").write_text(BURN)
    (place.folder / "race.toml").write_text(RACE)
    options = {"aa": "true", "inject_delay": str(DELAY), "margin": str(MARGIN), "blocks": "10"}
    done = place.call(*races.command(place, file="race.toml", cold="false", **options))
    assert done.returncode == 0, done.stdout + done.stderr
    assert races.by_level(place)["burn"].data.metrics["sum"] == sum(range(20_000_000))
    (folder,) = place.journal.glob("*/report")
    result = json.loads((folder / "comparison.json").read_text())
    controls = {
        control["name"]: {row["metric"]: row for row in control["rows"]}
        for control in result["controls"]
    }
    assert set(controls) == {"A/A", "injected 100 %"}
    same, delayed = (controls[name]["wall_seconds"] for name in ("A/A", "injected 100 %"))
    assert (same["a"], same["b"], same["n_blocks"]) == ("burn", "burn A/A", 10)
    assert same["verdict"] not in ("faster", "slower")
    assert same["ci_low"] < 1 + MARGIN
    assert same["ci_high"] > 1 / (1 + MARGIN)
    assert (delayed["b"], delayed["verdict"]) == ("burn +100 %", "slower")
    assert (1 + DELAY) / (1 + MARGIN) < delayed["estimate"] < (1 + DELAY) * (1 + MARGIN)
    cpu = controls["injected 100 %"]["cpu/user_seconds"]  # the delay is not the command's work
    assert cpu["verdict"] not in ("faster", "slower")
    assert "seen in 1 of 1 delayed times" in (folder / "report.md").read_text()
