"""Code and environment of a measurement."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.tracking.nvml import UUIDS, Driver, driver, library  # noqa: F401
from tracking import provenance


@pytest.fixture
def git(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """Return git in a folder that takes the project's place, as a function of its arguments."""
    monkeypatch.setattr(provenance, "ROOT", tmp_path)
    assert provenance.commit() == ""

    def git(*arguments: str) -> str:
        user = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
        command = ["git", "-C", str(tmp_path), *user, *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    (tmp_path / "code.py").write_text("x = 1\n")
    for words in (("init", "-q"), ("add", "code.py"), ("commit", "-q", "-m", "first")):
        git(*words)
    return git


def test_states_of_a_checkout_have_different_names(tmp_path: Path, git: Callable[..., str]) -> None:
    code = tmp_path / "code.py"
    clean = git("rev-parse", "HEAD")
    assert provenance.commit() == clean
    (tmp_path / "new.py").write_text("not tracked")
    assert provenance.commit() == clean
    names = []
    for content in (b"x = 2\n", b"x = 3\n", b"x = 2\n", "x = 'ä'\n".encode("latin-1")):
        code.write_bytes(content)
        names.append(provenance.commit())
    assert all(name.startswith(f"{clean}+changes.") for name in names)
    assert names[0] == names[2]
    assert len(set(names)) == 3


@pytest.mark.usefixtures("git")
def test_secrets_in_changes_are_masked(tmp_path: Path) -> None:
    lines = [
        'DB_PASSWORD = "hush 1"',
        "export HF_TOKEN=hush2",
        'sent = {"api_key": "hush3"}',
        "url = 'postgresql://dana:hush4@example.org/x'",
        "client_secret: hush5",
    ]
    harmless = ["tokens = tokenizer(words)", "key = rng.key(3)", "see https://example.org/a@b"]
    (tmp_path / "code.py").write_text("\n".join([*lines, *harmless]) + "\n")
    changes = provenance.changes()
    assert "hush" not in changes
    assert changes.count("***") == len(lines)
    assert all(f"+{line}\n" in f"{changes}\n" for line in harmless)


# ---- the environment of a run

READ = """
import json
from tracking import provenance
environment = provenance.environment({}, ("numpy",), 1)
digest = provenance.environment_digest(("numpy",))
tags = provenance.environment_tags(("numpy",))
machine, gpus = provenance.fingerprint(), environment["machine"]["gpus"]
print(json.dumps([environment["variables"], digest, tags, machine, gpus]))
"""


def test_inherited_variables_are_recorded_and_change_the_environment(driver: Driver) -> None:
    """Set variables that each cell replaces or that name a folder, then some that change speed."""
    immaterial = {
        "KERAS_HOME": "/models",
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
    }
    _, digest_before, _, machine_before, _ = json.loads(driver.python(READ))
    left_out = {"NOTHING_TF_X": "1", "TF_CLI_CONFIG_FILE": "a", "NVIDIA_API_KEY": "secret"}
    variables, digest, _, machine, _ = json.loads(driver.python(READ, **immaterial, **left_out))
    assert variables.items() >= immaterial.items()
    assert not left_out.keys() & variables.keys()
    assert (digest, machine) == (digest_before, machine_before)
    material = {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True", "OMP_PROC_BIND": "close"}
    variables, digest, tags, machine, _ = json.loads(driver.python(READ, **material))
    assert variables.items() >= material.items()
    assert tags.items() >= {f"inherited.{name}": text for name, text in material.items()}.items()
    assert digest != digest_before
    assert machine == machine_before


def test_machine_has_the_gpus_that_cuda_sees(driver: Driver) -> None:
    driver.answers(cards=2)
    machines = [
        json.loads(driver.python(READ, CUDA_VISIBLE_DEVICES=text))[3:]
        for text in ("0,1", UUIDS[1], "")
    ]
    assert [len(gpus) for _, gpus in machines] == [2, 1, 0]
    driver.answers(cards=2, limit_milliwatts=500_000, max_sm_megahertz=None)
    machines.append(json.loads(driver.python(READ, CUDA_VISIBLE_DEVICES="0,1"))[3:])
    assert machines[-1][1] == ["Test GPU (driver 600.00, 500 W)"] * 2
    assert len({fingerprint for fingerprint, _ in machines}) == 4
