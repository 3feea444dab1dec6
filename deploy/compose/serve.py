"""Start of the tracking container, and what it shares with the backup's: services, secrets."""

from __future__ import annotations

import os
import pwd
import sys
from pathlib import Path

from deploy import authentication
from deploy.copies import Bucket
from deploy.guard.process import PROXY_SECRET

ROOT = Path(__file__).resolve().parent.parent.parent
SECRETS = Path(os.environ.get("SECRETS", "/run/secrets"))
USER, BUCKET = "evenhand", "evenhand"
DATABASE = os.environ.get("DATABASE", f"postgresql+psycopg2://{USER}@database/{USER}")


def read_secret(name: str) -> str:
    """Read one of the secrets that the container gets as files."""
    return (SECRETS / name).read_text().strip()


def open_bucket(password: str) -> Bucket:
    """Return the bucket of the artifacts, made if it is missing."""
    import boto3

    os.environ |= {  # MLflow opens the store with them too
        "MLFLOW_S3_ENDPOINT_URL": os.environ.get("STORE", "http://store:9000"),
        "AWS_ACCESS_KEY_ID": USER,
        "AWS_SECRET_ACCESS_KEY": password,
        "AWS_DEFAULT_REGION": "us-east-1",
    }
    client = boto3.client("s3", endpoint_url=os.environ["MLFLOW_S3_ENDPOINT_URL"])
    if BUCKET not in [bucket["Name"] for bucket in client.list_buckets()["Buckets"]]:
        client.create_bucket(Bucket=BUCKET)
    return Bucket(client, BUCKET)


def drop_root() -> None:
    """Give up root after the secrets are read: the server needs no rights but its user's."""
    if os.getuid() == 0:
        user = pwd.getpwnam("evenhand")
        os.setgroups([])
        os.setgid(user.pw_gid)
        os.setuid(user.pw_uid)


def main() -> None:
    """Replace this process by the server's. No password is in an address or an argument."""
    passwords = {name: read_secret(f"{name}_password") for name in ("database", "store", "admin")}
    session_key = read_secret("session_key")
    proxy_secret = read_secret("proxy_secret") if (SECRETS / "proxy_secret").exists() else ""
    drop_root()
    settings = Path(os.environ.get("TMPDIR", "/tmp")) / "auth.ini"
    authentication.write_settings(settings, DATABASE)
    open_bucket(passwords["store"])
    environment = {
        **os.environ,
        "PGPASSWORD": passwords["database"],
        "PYTHONPATH": str(ROOT),
        PROXY_SECRET: proxy_secret,
        **authentication.environment(settings, DATABASE, passwords["admin"], session_key),
    }
    name, port = os.environ["SERVER_NAME"], os.environ.get("PORT", "5000")
    command = [sys.executable, "-m", "deploy.guard", "--workers", "2"]
    command += ["--host", os.environ.get("HOST", "0.0.0.0"), "--port", port]
    command += ["--artifacts", f"s3://{BUCKET}/artifacts", "--origins", f"https://{name}"]
    # Only the proxy reaches this container, and it states the client's address.
    command += ["--hosts", f"{name},{name}:443,127.0.0.1:{port}", "--proxies", "*"]
    os.execvpe(command[0], command, environment)


if __name__ == "__main__":
    main()
