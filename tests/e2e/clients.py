"""Clients of the stack under test, and the wait for all of its services."""

import boto3
import botocore.config
import psycopg

from stack import secret
from stack.layout import REGION
from stack.stack import Stack

from .inspection import READY_BOUND_S


def connect_as(stack: Stack, user: str, password: str) -> psycopg.Connection:
    """A session that bypasses the pooler; `password` names the secret."""
    return psycopg.connect(
        host="127.0.0.1",
        port=stack.layout.postgresql_port,
        dbname="mantle",
        user=user,
        password=secret.read(stack.layout, password),
        autocommit=True,
    )


def s3_client(stack: Stack, **overrides):
    """A boto3 client that does not retry, so that a test sees the first answer."""
    settings = {
        "endpoint_url": stack.gateway.url,
        "region_name": REGION,
        "aws_access_key_id": secret.read(stack.layout, "access_key"),
        "aws_secret_access_key": secret.read(stack.layout, "secret_key"),
        "config": botocore.config.Config(
            retries={"total_max_attempts": 1}, s3={"addressing_style": "path"}, max_pool_connections=32, read_timeout=60
        ),
        **overrides,
    }
    return boto3.session.Session().client("s3", **settings)


def read(s3, bucket: str, key: str, **given) -> bytes:
    """An object's bytes; `given` are further arguments of GetObject."""
    return s3.get_object(Bucket=bucket, Key=key, **given)["Body"].read()


def await_all_ready(stack: Stack) -> None:
    for node in stack.indexnodes.values():
        node.await_ready(READY_BOUND_S)
    stack.gateway.await_ready(READY_BOUND_S)
