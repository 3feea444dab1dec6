"""Git repositories made by tests."""

from __future__ import annotations

import subprocess
from pathlib import Path


def git(folder: Path, *arguments: str) -> str:
    name = ("-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false")
    done = subprocess.run(
        ["git", *name, *arguments], cwd=folder, capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


def commit(folder: Path, tag: str, **files: str) -> str:
    """Commit texts of files, `work` as `work.py`, with a tag; return the hash."""
    folder.mkdir(exist_ok=True)
    if not (folder / ".git").exists():
        git(folder, "init", "-q")
    for name, text in files.items():
        (folder / f"{name}.py").write_text(text)
    git(folder, "add", ".")
    git(folder, "commit", "-qm", tag)
    git(folder, "tag", tag)
    return git(folder, "rev-parse", "HEAD")


def worktrees(folder: Path) -> list[str]:
    """Return the lines of git for all worktrees but the repository itself."""
    return git(folder, "worktree", "list").splitlines()[1:]
