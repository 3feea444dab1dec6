"""From which code something was measured."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from tests.tracking.nvml import UUIDS, Driver, driver, library  # noqa: F401
from tracking import provenance


def test_two_states_of_one_commit_have_names_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def git(*arguments: str) -> str:
        command = [
            "git",
            "-C",
            str(tmp_path),
            "-c",
            "user.name=a",
            "-c",
            "user.email=a@example.org",
            *arguments,
        ]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    monkeypatch.setattr(provenance, "ROOT", tmp_path)
    assert provenance.commit() == ""
    code = tmp_path / "code.py"
    code.write_bytes(b"x = 1\n")
    git("init", "-q")
    git("add", "code.py")
    git("commit", "-q", "-m", "first")
    clean = git("rev-parse", "HEAD")
    assert provenance.commit() == clean
    (tmp_path / "new.py").write_text("not tracked")
    assert provenance.commit() == clean
    found = []
    for content in (b"x = 2\n", b"x = 3\n", b"x = 2\n", "x = 'ä'\n".encode("latin-1")):
        code.write_bytes(content)
        found.append(provenance.commit())
    assert all(one.startswith(f"{clean}+changes.") for one in found)
    assert found[0] == found[2]
    assert len(set(found)) == 3


# ---- the environment of a run

FOUND = """
import json
from tracking import provenance
told = provenance.environment({}, ("numpy",), 1)
print(json.dumps([
    told["variables"], provenance.environment_digest(("numpy",)), provenance.environment_tags(("numpy",)),
    provenance.fingerprint(), told["machine"]["gpus"],
]))
"""


def test_inherited_variables_are_recorded_and_make_another_environment(driver: Driver) -> None:
    """Of a variable that each cell is given anew, or that names a folder, only the record is left."""
    kept = {
        "KERAS_HOME": "/models",
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
    }
    before = json.loads(driver.python(FOUND))
    same = json.loads(driver.python(FOUND, **kept))
    assert same[0].items() >= kept.items()
    assert (same[1], same[3]) == (before[1], before[3])
    changed = {
        "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True",
        "OMP_PROC_BIND": "close",
    }
    for name, text in changed.items():
        variables, digest, tags, machine, _ = json.loads(driver.python(FOUND, **{name: text}))
        assert variables[name] == text
        assert tags[f"inherited.{name}"] == text
        assert digest != before[1], name
        assert machine == before[3]
    assert "NOTHING_TF_X" not in json.loads(driver.python(FOUND, NOTHING_TF_X="1"))[0]


def test_the_machine_has_the_gpus_that_cuda_sees(driver: Driver) -> None:
    driver.answers(cards=2)
    both, one, none = (
        json.loads(driver.python(FOUND, CUDA_VISIBLE_DEVICES=text))[3:]
        for text in ("0,1", UUIDS[1], "")
    )
    assert [len(found[1]) for found in (both, one, none)] == [2, 1, 0]
    assert len({found[0] for found in (both, one, none)}) == 3
