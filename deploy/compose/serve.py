"""In its container: secrets from files into the environment, the bucket made, then the server takes this process's place."""

from __future__ import annotations

import os
import pwd
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
SECRETS = Path(os.environ.get("SECRETS", "/run/secrets"))
BUCKET = "evenhand"
AUTH = """[mlflow]
default_permission = READ
database_uri = {url}
admin_username = admin
auth_cache_ttl_seconds = 60
"""


def secret(name: str) -> str:
    return (SECRETS / name).read_text().strip()


def environment() -> dict[str, str]:
    """What MLflow, libpq and boto3 read. No password is in an address or an argument."""
    url = os.environ.get("DATABASE", "postgresql+psycopg2://evenhand@database/evenhand")
    auth = Path(os.environ.get("TMPDIR", "/tmp")) / "auth.ini"
    auth.write_text(AUTH.format(url=url))
    return {
        **os.environ,
        "PGPASSWORD": secret("database_password"),
        "MLFLOW_BACKEND_STORE_URI": url,
        "MLFLOW_AUTH_CONFIG_PATH": str(auth),
        "MLFLOW_AUTH_ADMIN_PASSWORD": secret("admin_password"),
        "MLFLOW_FLASK_SERVER_SECRET_KEY": secret("session_key"),
        "MLFLOW_S3_ENDPOINT_URL": os.environ.get("STORE", "http://store:9000"),
        "AWS_ACCESS_KEY_ID": "evenhand",
        "AWS_SECRET_ACCESS_KEY": secret("store_password"),
        "AWS_DEFAULT_REGION": "us-east-1",
        "PYTHONPATH": str(ROOT),
    }


def make_bucket(known: dict[str, str]) -> None:
    import boto3
    from botocore.exceptions import ClientError

    words = {"aws_access_key_id": known["AWS_ACCESS_KEY_ID"], "aws_secret_access_key": known["AWS_SECRET_ACCESS_KEY"]}
    store = boto3.client("s3", endpoint_url=known["MLFLOW_S3_ENDPOINT_URL"], region_name=known["AWS_DEFAULT_REGION"], **words)
    try:
        store.head_bucket(Bucket=BUCKET)
    except ClientError:
        store.create_bucket(Bucket=BUCKET)


def drop_root() -> None:
    """Secrets are read; what serves has no more rights than it needs."""
    if os.getuid() == 0:
        user = pwd.getpwnam("evenhand")
        os.setgroups([])
        os.setgid(user.pw_gid)
        os.setuid(user.pw_uid)


def main() -> None:
    known = environment()
    drop_root()
    make_bucket(known)
    name, port = os.environ["SERVER_NAME"], os.environ.get("PORT", "5000")
    command = [sys.executable, "-m", "deploy.guard", "serve", "--host", os.environ.get("HOST", "0.0.0.0"), "--port", port]
    command += ["--workers", "2", "--artifacts", f"s3://{BUCKET}/artifacts", "--origins", f"https://{name}"]
    # Only the proxy reaches this container, and it says who has asked.
    command += ["--hosts", f"{name},{name}:443,127.0.0.1:{port}", "--proxies", "*"]
    os.execvpe(command[0], command, known)


if __name__ == "__main__":
    main()
