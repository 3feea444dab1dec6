"""From which code something was measured."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tracking import provenance


def test_two_states_of_one_commit_have_names_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def git(*arguments: str) -> str:
        command = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@example.org", *arguments]
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
