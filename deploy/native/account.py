"""Users that the server runs as: the caller or, for root, a user that may write the artifacts only."""

from __future__ import annotations

import grp
import os
import pwd
import shutil
import stat
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deploy.native.folder import Folder, Refused, last_line


@dataclass(frozen=True)
class Account:
    """A user without rights, as the system knows it."""

    name: str
    uid: int
    gid: int
    home: str

    @property
    def of_process(self) -> dict[str, Any]:
        """Arguments of `subprocess` that start a process as this user."""
        return {"user": self.uid, "group": self.gid, "extra_groups": []}

    @property
    def environment(self) -> dict[str, str]:
        """Variables by which libraries find their settings at home; root's is closed to this user."""
        return {"HOME": self.home, "USER": self.name, "LOGNAME": self.name}


def of_server(name: str) -> Account | None:
    """Return the server's user, made if it is missing; None if the caller is not root.

    Raises:
        Refused: The user cannot be made, or is root.
    """
    if os.getuid():
        return None
    account = known(name) or _made(name)
    if account.uid == 0:
        right = "the server gets a user without rights: leave --user out"
        raise Refused(f"--user {name} is root; {right}")
    return account


def check_folder(account: Account, folder: Folder) -> None:
    """Raise Refused if the user cannot enter the server's folder."""
    if obstacle := closed(account, folder.path.resolve()):
        reason = (
            f"the server's user {account.name} cannot enter {obstacle}, and the folder lies in it"
        )
        right = f"chmod o+x {obstacle}, or choose a --folder where every user may read"
        raise Refused(f"{reason}: {right}, such as below /srv")


def hand_over(account: Account, path: Path) -> None:
    """Give a folder of the server's to its user, with all that root has put there.

    The folder itself comes last, so that an interrupted call is repeated.
    """
    if path.stat().st_uid != account.uid:
        for parent, folders, files in os.walk(path, topdown=False):
            for name in (*folders, *files):
                os.chown(Path(parent) / name, account.uid, account.gid, follow_symlinks=False)
        os.chown(path, account.uid, account.gid)
    path.chmod(0o700)


def show(account: Account, path: Path) -> None:
    """Let the server's user read a file that stays root's."""
    os.chown(path, 0, account.gid)
    path.chmod(0o640)


def open_for_reading(path: Path) -> None:
    """Let every user read what root has copied, whatever its umask; only root may write.

    Files that are linked from elsewhere keep their mode.
    """
    path.chmod(0o755)
    for parent, folders, files in os.walk(path):
        for name in folders:
            (Path(parent) / name).chmod(0o755)
        for name in files:
            file = Path(parent) / name
            about = file.lstat()
            if stat.S_ISREG(about.st_mode) and about.st_nlink == 1:
                file.chmod(0o644 | about.st_mode & 0o111)


def known(name: str) -> Account | None:
    """Return the account of that name, if there is one."""
    try:
        entry = pwd.getpwnam(name)
    except KeyError:
        return None
    return Account(name, entry.pw_uid, entry.pw_gid, entry.pw_dir)


def _made(name: str) -> Account:
    has_group = any(group.gr_name == name for group in grp.getgrall())
    command = ["useradd", "--system", "--no-create-home", "--shell", "/usr/sbin/nologin"]
    command += [*(["--gid", name] if has_group else ["--user-group"]), name]
    done = None
    if shutil.which("useradd"):
        done = subprocess.run(command, capture_output=True, text=True)
    if account := known(name):
        return account
    reason = last_line(done.stderr) if done else "there is no useradd"
    raise Refused(f"the user {name} cannot be made ({reason}); make it: {' '.join(command)}")


def closed(account: Account, path: Path) -> str:
    """Return the first folder on the way to a path that the user cannot enter; empty if none is.

    The system itself is asked, since permissions are not all that it goes by.
    """
    ask = 'for place; do [ -x "$place" ] || { echo "$place"; exit; }; done'
    ways = [str(place) for place in reversed(path.parents)] + ([str(path)] if path.is_dir() else [])
    command = ["/bin/sh", "-c", ask, "sh", *ways]
    done = subprocess.run(command, capture_output=True, text=True, cwd="/", **account.of_process)
    return str(done.stdout).strip()
