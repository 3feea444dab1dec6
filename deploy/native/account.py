"""The server's user: the caller or, for root, a user that may write the artifacts only."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deploy.native.folder import DeployError, Folder, last_line

NAME = "evenhand"
USERADD = ["useradd", "--system", "--no-create-home", "--shell", "/usr/sbin/nologin", NAME]
CHECK = 'for folder; do [ -x "$folder" ] || { echo "$folder"; exit; }; done'


@dataclass(frozen=True)
class Account:
    """System user without rights."""

    name: str
    uid: int
    gid: int
    home: str

    @property
    def process_options(self) -> dict[str, Any]:
        """Arguments of `subprocess` that start a process as this user."""
        return {"user": self.uid, "group": self.gid, "extra_groups": []}

    def obstacle(self, path: Path) -> str:
        """Return the first folder on the way to a path that this user cannot enter, or "".

        The system itself is asked, since permissions are not all that it goes by.
        """
        folders = [*reversed(path.parents), *([path] if path.is_dir() else [])]
        command = ["/bin/sh", "-c", CHECK, "sh", *map(str, folders)]
        options: dict[str, Any] = {"capture_output": True, "text": True, "cwd": "/"}
        return str(subprocess.run(command, **options, **self.process_options).stdout).strip()

    def hand_over(self, path: Path) -> None:
        """Give a folder to this user, with all that root has put there.

        The folder itself comes last, so that an interrupted call is repeated.
        """
        if path.stat().st_uid != self.uid:
            for parent, folders, files in os.walk(path, topdown=False):
                for name in (*folders, *files):
                    os.chown(Path(parent) / name, self.uid, self.gid, follow_symlinks=False)
            os.chown(path, self.uid, self.gid)


def find(name: str) -> Account | None:
    """Return the account of that name, if it exists."""
    try:
        entry = pwd.getpwnam(name)
    except KeyError:
        return None
    return Account(name, entry.pw_uid, entry.pw_gid, entry.pw_dir)


def of_server() -> Account | None:
    """Return the server's user, made if it is missing; None if the caller is not root."""
    if os.getuid():
        return None
    reason = "useradd is not installed"
    if not find(NAME) and shutil.which("useradd"):
        reason = last_line(subprocess.run(USERADD, capture_output=True, text=True).stderr)
    if account := find(NAME):
        return account
    raise DeployError(f"the user {NAME} cannot be made ({reason}); make it: {' '.join(USERADD)}")


def prepare_folder(account: Account, folder: Folder) -> None:
    """Give the server's user its artifacts and settings. Raises DeployError for a closed folder."""
    if obstacle := account.obstacle(folder.path.resolve()):
        right = f"chmod o+x {obstacle}, or choose a --folder where every user may read, as in /srv"
        raise DeployError(f"the server's user {account.name} cannot enter {obstacle}: {right}")
    account.hand_over(folder.artifacts)
    account.hand_over(folder.sqlite.parent)
    os.chown(folder.auth_file, 0, account.gid)
    folder.auth_file.chmod(0o640)
