"""User of the server: the caller or, for root, a user that may write the artifacts only."""

from __future__ import annotations

import os
import pwd
import subprocess
from pathlib import Path
from typing import Any

from deploy.native.folder import Folder, last_line
from tracking.errors import ErrorCode, UsageError

NAME = "evenhand"
USERADD = ["useradd", "--system", "--no-create-home", "--shell", "/usr/sbin/nologin", NAME]
CHECK = 'for folder; do [ -x "$folder" ] || { echo "$folder"; exit; }; done'


def find(name: str) -> pwd.struct_passwd | None:
    """Return the account of that name, if it exists."""
    try:
        return pwd.getpwnam(name)
    except KeyError:
        return None


def of_server() -> pwd.struct_passwd | None:
    """Return the server's user, made if it is missing; None if the caller is not root."""
    if os.getuid():
        return None
    reason = ""
    if not find(NAME):
        try:
            reason = last_line(subprocess.run(USERADD, capture_output=True, text=True).stderr)
        except FileNotFoundError as error:
            reason = str(error)
    if account := find(NAME):
        return account
    right = f"make it: {' '.join(USERADD)}"
    raise UsageError(ErrorCode.NOT_FOUND, f"the user {NAME} cannot be made ({reason}); {right}")


def process_options(account: pwd.struct_passwd) -> dict[str, Any]:
    """Return the arguments of `subprocess` that start a process as this user."""
    return {"user": account.pw_uid, "group": account.pw_gid, "extra_groups": []}


def obstacle(account: pwd.struct_passwd, path: Path) -> str:
    """Return the first folder on the way to a path that this user cannot enter, or "".

    The system itself is asked, since permissions are not all that it goes by.
    """
    folders = [*reversed(path.parents), *([path] if path.is_dir() else [])]
    command = ["/bin/sh", "-c", CHECK, "sh", *map(str, folders)]
    options = {"cwd": "/", **process_options(account)}
    return str(subprocess.run(command, capture_output=True, text=True, **options).stdout).strip()


def prepare_folder(account: pwd.struct_passwd, folder: Folder) -> None:
    """Give the server's user its artifacts and settings. Raises UsageError for a closed folder."""
    if closed := obstacle(account, folder.path.resolve()):
        right = f"chmod o+x {closed}, or choose a --folder where every user may read, as in /srv"
        reason = f"the server's user {account.pw_name} cannot enter {closed}"
        raise UsageError(ErrorCode.DENIED, f"{reason}: {right}")
    if folder.artifacts.stat().st_uid != account.pw_uid:
        # The folder itself comes last, so that an interrupted call is repeated.
        for path in (*folder.artifacts.rglob("*"), folder.artifacts):
            os.chown(path, account.pw_uid, account.pw_gid, follow_symlinks=False)
    os.chown(folder.auth_file, 0, account.pw_gid)
    folder.auth_file.chmod(0o640)
