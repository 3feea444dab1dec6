"""Database and object store of the containers, and the secrets that open them."""

from __future__ import annotations

import os
from pathlib import Path

from deploy.copies import Bucket

SECRETS = Path(os.environ.get("SECRETS", "/run/secrets"))
USER, BUCKET = "evenhand", "evenhand"
DATABASE = os.environ.get("DATABASE", f"postgresql+psycopg2://{USER}@database/{USER}")


def secret(name: str) -> str:
    """Read one of the secrets that the container gets as files."""
    return (SECRETS / name).read_text().strip()


def open_bucket(password: str) -> Bucket:
    """Return the bucket of the artifacts, made if it is missing."""
    import boto3

    os.environ |= {  # by which MLflow opens the store too
        "MLFLOW_S3_ENDPOINT_URL": os.environ.get("STORE", "http://store:9000"),
        "AWS_ACCESS_KEY_ID": USER,
        "AWS_SECRET_ACCESS_KEY": password,
        "AWS_DEFAULT_REGION": "us-east-1",
    }
    client = boto3.client("s3", endpoint_url=os.environ["MLFLOW_S3_ENDPOINT_URL"])
    if BUCKET not in [bucket["Name"] for bucket in client.list_buckets()["Buckets"]]:
        client.create_bucket(Bucket=BUCKET)
    return Bucket(client, BUCKET)
