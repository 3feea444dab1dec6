"""Start of the tracking container: secrets into the environment, the bucket, then the server."""

from __future__ import annotations

import os
import pwd
import sys
from pathlib import Path

from deploy import authentication
from deploy.compose import services
from deploy.compose.services import secret

ROOT = Path(__file__).resolve().parent.parent.parent


def drop_root() -> None:
    """Give up root after the secrets are read: the server needs no more rights than its user's."""
    if os.getuid() == 0:
        user = pwd.getpwnam("evenhand")
        os.setgroups([])
        os.setgid(user.pw_gid)
        os.setuid(user.pw_uid)


def main() -> None:
    """Replace this process by the server's. No password is in an address or an argument."""
    passwords = {name: secret(f"{name}_password") for name in ("database", "store", "admin")}
    session_key = secret("session_key")
    drop_root()
    settings = Path(os.environ.get("TMPDIR", "/tmp")) / "auth.ini"
    authentication.write_settings(settings, services.DATABASE)
    services.open_bucket(passwords["store"])
    environment = {
        **os.environ,
        "PGPASSWORD": passwords["database"],
        "PYTHONPATH": str(ROOT),
        **authentication.environment(settings, services.DATABASE, passwords["admin"], session_key),
    }
    name, port = os.environ["SERVER_NAME"], os.environ.get("PORT", "5000")
    command = [sys.executable, "-m", "deploy.guard", "serve", "--workers", "2"]
    command += ["--host", os.environ.get("HOST", "0.0.0.0"), "--port", port]
    command += ["--artifacts", f"s3://{services.BUCKET}/artifacts", "--origins", f"https://{name}"]
    # Only the proxy reaches this container, and it states the client's address.
    command += ["--hosts", f"{name},{name}:443,127.0.0.1:{port}", "--proxies", "*"]
    os.execvpe(command[0], command, environment)


if __name__ == "__main__":
    main()
