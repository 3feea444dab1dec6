"""Virtual environments and worktrees of levels, with packages and repositories of the test."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from experiments.config import virtual_environments
from experiments.config.race_file import Conditions
from experiments.config.virtual_environments import VirtualEnvironment
from experiments.workloads.command import environments
from experiments.workloads.command.environments import Environment
from tests.conftest import ROOT, wait_for
from tests.experiments.command.packages import install_only_from, make_tiny
from tests.experiments.command.repository import commit, git, worktrees
from tracking.errors import ErrorCode, UsageError

PRINT = "import tiny; print(tiny.VERSION)"


@pytest.fixture
def wheels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder with two versions of a package, which is all that can be installed."""
    folder = tmp_path / "wheels"
    for version in ("1.0", "2.0"):
        make_tiny(folder, version)
    install_only_from(folder, monkeypatch)
    return folder


def make(
    tmp_path: Path,
    *requirements: str,
    cwd: Path | None = None,
    progress: Callable[[str], None] = lambda _: None,
    **fields: str,
) -> Environment:
    level = Conditions(requirements=requirements, **fields)
    cache = tmp_path / "cache"
    return environments.make(level, cwd=cwd or tmp_path, cache=cache, progress=progress)


def run(environment: Environment, code: str, **options: str) -> str:
    """Return what a Python program prints in an environment, started by its name."""
    variables = {**os.environ, **options, **environment.variables}
    done = subprocess.run(
        ["python", "-c", code],
        cwd=environment.cwd,
        env={name: text for name, text in variables.items() if text is not None},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.strip()


def digest_folders(tmp_path: Path) -> list[Path]:
    folder = tmp_path / "cache" / virtual_environments.FOLDER
    return sorted(path for path in folder.iterdir() if path.is_dir())


def test_two_versions_of_a_package_in_two_environments(
    tmp_path: Path, wheels: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    old, new = make(tmp_path, "tiny==1.0"), make(tmp_path, "tiny==2.0")
    assert (run(old, PRINT), run(new, PRINT, PYTHONHOME="/nowhere")) == ("1.0", "2.0")
    assert (old.packages["tiny"], new.packages["tiny"]) == ("1.0", "2.0")
    assert virtual_environments.differing([old.packages, new.packages]) == {"tiny"}
    assert old.variables["PYTHONHOME"] is None
    for environment in (old, new):  # its bytecode is there, although the programs write none
        assert list(Path(str(environment.variables["VIRTUAL_ENV"])).rglob("tiny.*.pyc"))


@pytest.mark.slow
def test_environment_is_made_once_and_again_if_its_content_or_it_changes(
    tmp_path: Path, wheels: Path
) -> None:
    constraints = tmp_path / "constraints.txt"
    constraints.write_text("-r more.txt\n")
    (tmp_path / "more.txt").write_text("tiny<2  # the old one\n")
    made = list[str]()
    again = partial(make, tmp_path, "tiny", "-c constraints.txt", progress=made.append)
    first = again()
    assert (first.packages["tiny"], len(made)) == ("1.0", 1)
    assert (again(), len(made)) == (first, 1)
    (tmp_path / "more.txt").write_text("tiny>=2\n")  # named by a file that is named
    assert (again().packages["tiny"], len(made)) == ("2.0", 2)
    assert len(digest_folders(tmp_path)) == 2
    place = Path(str(again().variables["VIRTUAL_ENV"]))
    (path,) = place.rglob("tiny-2.0.dist-info/METADATA")
    path.write_text(path.read_text().replace("2.0", "3.0"))  # as an installation by hand
    assert (again().packages["tiny"], len(made)) == ("2.0", 3)


def test_killed_creation_is_not_used_and_a_second_process_waits(
    tmp_path: Path, wheels: Path
) -> None:
    script = """
import sys
from pathlib import Path
from experiments.config.race_file import Conditions
from experiments.workloads.command import environments
level = Conditions(requirements=("tiny==1.0",))
made = environments.make(level, cwd=Path(), cache=Path("cache"), progress=print)
print(made.packages["tiny"])
"""
    command = [sys.executable, "-c", script]
    options = {"cwd": tmp_path, "env": {**os.environ, "PYTHONPATH": str(ROOT)}}
    killed = subprocess.Popen(command, start_new_session=True, **options)
    wait_for(lambda: any((tmp_path / "cache").glob("environments/*/pyvenv.cfg")), 60)
    os.killpg(killed.pid, signal.SIGKILL)
    killed.wait()
    (place,) = digest_folders(tmp_path)
    assert not (place / environments.COMPLETE).exists()
    both = [
        subprocess.Popen(command, stdout=subprocess.PIPE, text=True, **options) for _ in range(2)
    ]
    outputs = [process.communicate()[0].splitlines() for process in both]
    made = [lines for lines in outputs if len(lines) > 1]  # a line each second that it takes
    assert len(made) == 1, "one of them made it"
    assert {lines[-1] for lines in outputs} == {"1.0"}


def test_packages_on_pythonpath_are_neither_installed_nor_hidden(
    tmp_path: Path, wheels: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shadow = tmp_path / "shadow"
    shutil.unpack_archive(make_tiny(tmp_path / "others", "9.0"), shadow, "zip")
    monkeypatch.setenv("PYTHONPATH", str(shadow))
    environment = make(tmp_path, "tiny==1.0")
    assert (run(environment, PRINT), environment.packages["tiny"]) == ("9.0", "9.0")
    monkeypatch.delenv("PYTHONPATH")
    (place,) = digest_folders(tmp_path)
    made = (place / environments.COMPLETE).stat().st_mtime_ns
    environment = make(tmp_path, "tiny==1.0")
    assert (run(environment, PRINT), environment.packages["tiny"]) == ("1.0", "1.0")
    assert (place / environments.COMPLETE).stat().st_mtime_ns == made


def test_local_project_is_installed_again_if_its_files_change(tmp_path: Path, wheels: Path) -> None:
    environment = VirtualEnvironment(("./wheels/tiny-1.0-py3-none-any.whl",), folder=tmp_path)
    project = VirtualEnvironment(("./project",), folder=tmp_path)
    (tmp_path / "project" / "__pycache__").mkdir(parents=True)
    source = tmp_path / "project" / "a.py"
    source.write_text("x = 1\n")
    before = environment.place(tmp_path), project.place(tmp_path)
    (tmp_path / "project" / "__pycache__" / "a.pyc").write_bytes(b"")
    assert (environment.place(tmp_path), project.place(tmp_path)) == before
    make_tiny(wheels, "1.0", pth="import sys\n")
    source.write_text("x = 2\n")
    assert environment.place(tmp_path) != before[0]
    assert project.place(tmp_path) != before[1]


@pytest.mark.parametrize(
    ("requirements", "python", "code", "parts"),
    [
        (("-r missing.txt",), None, ErrorCode.UNREADABLE, ("missing.txt",)),
        (("-e .",), None, ErrorCode.UNSUPPORTED, ("-e .",)),
        ((), "3.99", ErrorCode.NOT_INSTALLED, ("python=3.99",)),
        ((), "/nowhere/python", ErrorCode.NOT_INSTALLED, ("/nowhere/python",)),
        (
            ("--index-url https://me:secret@127.0.0.1:9/index", "tiny==9"),
            None,
            ErrorCode.NOT_INSTALLED,
            ("***@127.0.0.1", "tiny==9"),
        ),
    ],
)
def test_environment_that_cannot_be_made_is_refused_in_a_line(
    requirements: tuple[str, ...],
    python: str | None,
    code: ErrorCode,
    parts: tuple[str, ...],
    tmp_path: Path,
    wheels: Path,
) -> None:
    with pytest.raises(UsageError) as error:
        make(tmp_path, *requirements, **({"python": python} if python else {}))
    assert error.value.code is code
    assert all(part in str(error.value) for part in parts), str(error.value)
    assert not [part for part in ("secret", "\n") if part in str(error.value)]


def test_level_without_requirements_records_the_inherited_packages(tmp_path: Path) -> None:
    environment = make(tmp_path)
    assert dict(environment.variables) == {}
    assert environment.packages == virtual_environments.installed(str(shutil.which("python")))
    assert (environment.commit, environment.cwd) == (None, tmp_path)


# ---- commits


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """Return a repository with two commits, tagged `v1` and `v2`, of `sub/work.py`."""
    folder = tmp_path / "repository"
    (folder / "sub").mkdir(parents=True)
    (folder / ".gitignore").write_text("data\n")
    for number in (1, 2):
        commit(folder, f"v{number}", **{"sub/work": f"print({number})\n"})
    (folder / "sub" / "data").write_text("ignored")
    return folder


WORK = "exec(open('work.py').read())"


def test_commits_run_in_worktrees_that_are_removed(tmp_path: Path, repository: Path) -> None:
    sub, other = repository / "sub", str(tmp_path / "other")
    git(repository, "worktree", "add", "-q", "--detach", "--lock", "--reason=mine", other)
    old, new = (make(tmp_path, cwd=sub, commit=name) for name in ("v1", "HEAD"))
    assert (run(old, WORK), run(new, WORK)) == ("1", "2")
    assert old.commit == git(repository, "rev-parse", "v1")
    assert old.cwd.name == "sub"
    assert old.cwd.is_relative_to(tmp_path / "cache")
    assert not (old.cwd / "data").exists(), "ignored files are missing"
    (old.cwd / "result").write_text("of the level")
    assert len(worktrees(repository)) == 3
    environments.remove_worktrees(sub)
    assert [line.split()[0] for line in worktrees(repository)] == [other], "of another program"
    assert not old.cwd.exists()
    assert git(repository, "status", "--porcelain") == ""


def test_cache_inside_the_repository_has_no_worktrees(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "user"))
    environment = make(repository / ".evenhand", cwd=repository, commit="v1")
    assert environment.cwd.is_relative_to(tmp_path / "user" / "evenhand")
    environments.remove_worktrees(repository)
    assert not environment.cwd.exists()


def test_uncommitted_changes_are_recorded(tmp_path: Path, repository: Path) -> None:
    head = git(repository, "rev-parse", "HEAD")
    assert make(tmp_path, cwd=repository).commit == head
    (repository / "sub" / "work.py").write_text("print(3)\n")
    assert str(make(tmp_path, cwd=repository / "sub").commit).startswith(f"{head}+changes.")
    assert make(tmp_path, cwd=repository, commit="HEAD").commit == head
    environments.remove_worktrees(repository)


def make_and_die(repository: Path, *, of_jobs: bool = False) -> str:
    """Return git's line of the worktree that a killed process leaves."""
    script = f"""
import os, signal
from pathlib import Path
from experiments.config.race_file import Conditions
from experiments.workloads.command import environments
options = {{"cwd": Path(), "cache": Path("../cache"), "of_jobs": {of_jobs}}}
environments.make(Conditions(commit="v1"), progress=print, **options)
os.kill(os.getpid(), signal.SIGKILL)
"""
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=repository,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    (left,) = worktrees(repository)
    return left


@pytest.mark.parametrize("removed_by_hand", [False, True])
def test_worktree_of_a_killed_process_is_removed_by_the_next(
    tmp_path: Path, repository: Path, *, removed_by_hand: bool
) -> None:
    left = make_and_die(repository)
    if removed_by_hand:
        shutil.rmtree(left.split()[0])
    environment = make(tmp_path, cwd=repository, commit="v2")
    (now,) = worktrees(repository)
    assert now != left
    assert not Path(left.split()[0]).exists()
    environments.remove_worktrees(repository)
    assert (worktrees(repository), environment.cwd.exists()) == ([], False)


def test_worktree_of_jobs_outlives_a_killed_process_for_a_week(
    tmp_path: Path, repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = make_and_die(repository, of_jobs=True)
    for seconds, remaining in ((environments.ABANDONED_SECONDS, [left]), (0, [])):
        monkeypatch.setattr(environments, "ABANDONED_SECONDS", seconds)
        make(tmp_path, cwd=repository, commit="v2")
        environments.remove_worktrees(repository)
        assert worktrees(repository) == remaining


@pytest.mark.parametrize(
    ("folder", "name"),
    [
        *(("repository", name) for name in ("v9", "-v", "v1:sub", "--all")),
        ("repository/later", "v1"),  # the commit has no such folder
        (".", "v1"),  # no repository
    ],
)
def test_unknown_commit_is_refused(
    folder: str, name: str, tmp_path: Path, repository: Path
) -> None:
    (repository / "later").mkdir()
    with pytest.raises(UsageError) as error:
        make(tmp_path, cwd=tmp_path / folder, commit=name)
    assert error.value.code is ErrorCode.NOT_FOUND
    assert "\n" not in str(error.value)
    assert worktrees(repository) == []
