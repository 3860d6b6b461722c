"""The clients, and their words for each operation. {home}: where the client is installed; {programs}: our programs
that use a library.
"""

import re
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

from .client import Client, Endpoint, built, debian, golang, python

PYTHON = "{home}/bin/python"


# What a program of ours gets for each operation.
ARGUMENTS = {
    "create": ["{bucket}"],
    "put": ["{bucket}", "{key}", "{file}"],
    "put unknown": ["{bucket}", "{key}"],
    "get": ["{bucket}", "{key}", "{file}"],
    "range": ["{bucket}", "{key}", "{file}", "{first}", "{last}"],
    "list": ["{bucket}", "{prefix}"],
    "copy": ["{bucket}", "{key}", "{other}"],
    "move": ["{bucket}", "{key}", "{other}"],
    "delete": ["{bucket}", "{key}"],
    "delete tree": ["{bucket}", "{prefix}"],
    "put metadata": ["{bucket}", "{key}", "{file}"],
    "presign": ["{bucket}", "{key}"],
    "work": ["{bucket}", "{token}"],
}


def commands_of(call: list[str], operations: Iterable[str]) -> dict[str, list[str]]:
    return {name: [*call, name.replace(" ", "_"), *ARGUMENTS[name]] for name in operations}


def program(name: str, install: Callable[[Path], None], call: list[str]) -> Client:
    """An SDK, by a program of ours in its language. SDKs have no move."""
    offered = [operation for operation in ARGUMENTS if operation not in ("move", "work")]
    return Client(name, install, commands_of(call, offered), [*call, "version"])


def library(name: str, program: str, packages: list[str], operations: list[str]) -> Client:
    """A Python library, by a program of ours with one function an operation."""
    commands = commands_of([PYTHON, f"{{programs}}/{program}"], operations)
    module = re.split(r"[=<>\[]", packages[0])[0]
    version = [PYTHON, "-c", f"import importlib.metadata as m; print(m.version('{module}'))"]
    return Client(name, python(*packages), commands, version)


def aws(name: str, install: Callable[[Path], None], program: str, *more: str) -> Client:
    s3, api = [program, *more, "s3"], [program, *more, "s3api"]
    at = "s3://{bucket}/{key}"
    return Client(
        name,
        install,
        {
            "create": [*s3, "mb", "s3://{bucket}"],
            "put": [*s3, "cp", "{file}", at],
            "put unknown": [*s3, "cp", "-", at],
            "get": [*s3, "cp", at, "{file}"],
            "range": [
                *api,
                "get-object",
                "--bucket",
                "{bucket}",
                "--key",
                "{key}",
                "--range",
                "bytes={first}-{last}",
                "{file}",
            ],
            "list": [*s3, "ls", "--recursive", "s3://{bucket}/{prefix}"],
            "copy": [*s3, "cp", at, "s3://{bucket}/{other}"],
            "move": [*s3, "mv", at, "s3://{bucket}/{other}"],
            "delete": [*s3, "rm", at],
            "delete tree": [*s3, "rm", "--recursive", "s3://{bucket}/{prefix}"],
            "sync": [*s3, "sync", "{folder}", "s3://{bucket}/{prefix}"],
            "put metadata": [*s3, "cp", "--metadata", "colour=blue", "{file}", at],
            "presign": [*s3, "presign", at],
        },
        [program, "--version"],
    )


def rclone_settings(endpoint: Endpoint, _folder: Path) -> dict[str, str]:
    return {
        "RCLONE_CONFIG_M_TYPE": "s3",
        "RCLONE_CONFIG_M_PROVIDER": "Other",
        "RCLONE_CONFIG_M_ENDPOINT": endpoint.url,
        "RCLONE_CONFIG_M_REGION": endpoint.region,
        "RCLONE_CONFIG_M_ACCESS_KEY_ID": endpoint.access_key,
        "RCLONE_CONFIG_M_SECRET_ACCESS_KEY": endpoint.secret_key,
        "RCLONE_CONFIG": "/dev/null",
    }


def mc_settings(endpoint: Endpoint, _folder: Path) -> dict[str, str]:
    return {"MC_HOST_m": f"http://{endpoint.access_key}:{endpoint.secret_key}@{endpoint.host}"}


def debian_python(_endpoint: Endpoint, folder: Path) -> dict[str, str]:
    root = folder / "root" / "usr" / "lib"
    return {"PYTHONPATH": str(root / "python3" / "dist-packages"), "LD_LIBRARY_PATH": str(root / "x86_64-linux-gnu")}


RCLONE_AT = "M:{bucket}/{key}"
S3CMD = [
    "{home}/bin/s3cmd", "--config=/dev/null", "--host={endpoint.host}", "--host-bucket={endpoint.host}", "--no-ssl",
    "--region={endpoint.region}", "--access_key={endpoint.access_key}", "--secret_key={endpoint.secret_key}",
]  # fmt: skip
AT = "s3://{bucket}/{key}"
S5CMD = ["s5cmd", "--endpoint-url", "{endpoint.url}"]
OBJECTS = [
    "create",
    "put",
    "put unknown",
    "get",
    "range",
    "list",
    "copy",
    "move",
    "delete",
    "delete tree",
    "put metadata",
]
TIDY = ["npm", "install", "--silent", "--no-fund", "--no-audit"]
MAVEN = ["mvn", "-q", "-B", "package", "dependency:copy-dependencies", "-DoutputDirectory={home}/jars"]

CLIENTS = [
    library("boto3", "boto3_client.py", ["boto3"], [*OBJECTS, "presign"]),
    aws("aws CLI 1", python("awscli"), "{home}/bin/aws"),
    replace(
        aws("aws CLI 2", debian("awscli"), "{home}/bin/aws", "--endpoint-url={endpoint.url}"), settings=debian_python
    ),
    Client(
        "rclone",
        debian("rclone"),
        {
            "create": ["rclone", "mkdir", "M:{bucket}"],
            "put": ["rclone", "copyto", "{file}", RCLONE_AT],
            "put unknown": ["rclone", "rcat", RCLONE_AT],
            "get": ["rclone", "copyto", RCLONE_AT, "{file}"],
            "list": ["rclone", "lsf", "-R", "M:{bucket}/{prefix}"],
            "copy": ["rclone", "copyto", RCLONE_AT, "M:{bucket}/{other}"],
            "move": ["rclone", "moveto", RCLONE_AT, "M:{bucket}/{other}"],
            "delete": ["rclone", "deletefile", RCLONE_AT],
            "delete tree": ["rclone", "purge", "M:{bucket}/{prefix}"],
            "sync": ["rclone", "sync", "{folder}", "M:{bucket}/{prefix}"],
            "put metadata": ["rclone", "copyto", "--metadata", "--metadata-set", "colour=blue", "{file}", RCLONE_AT],
            "presign": ["rclone", "link", RCLONE_AT],
        },
        ["rclone", "version"],
        rclone_settings,
    ),
    Client(
        "mc",
        golang("github.com/minio/mc@latest"),
        {
            "create": ["mc", "mb", "--region={endpoint.region}", "m/{bucket}"],
            "put": ["mc", "cp", "{file}", "m/{bucket}/{key}"],
            "put unknown": ["mc", "pipe", "m/{bucket}/{key}"],
            "get": ["mc", "cp", "m/{bucket}/{key}", "{file}"],
            "list": ["mc", "ls", "--recursive", "m/{bucket}/{prefix}"],
            "copy": ["mc", "cp", "m/{bucket}/{key}", "m/{bucket}/{other}"],
            "move": ["mc", "mv", "m/{bucket}/{key}", "m/{bucket}/{other}"],
            "delete": ["mc", "rm", "m/{bucket}/{key}"],
            "delete tree": ["mc", "rm", "--recursive", "--force", "m/{bucket}/{prefix}"],
            "sync": ["mc", "mirror", "--overwrite", "{folder}", "m/{bucket}/{prefix}"],
            "put metadata": ["mc", "cp", "--attr", "colour=blue", "{file}", "m/{bucket}/{key}"],
            "presign": ["mc", "share", "download", "m/{bucket}/{key}"],
        },
        ["mc", "--version"],
        mc_settings,
    ),
    Client(
        "s3cmd",
        python("s3cmd"),
        {
            "create": [*S3CMD, "mb", "s3://{bucket}"],
            "put": [*S3CMD, "put", "--no-guess-mime-type", "{file}", AT],
            "put unknown": [*S3CMD, "put", "-", AT],
            "get": [*S3CMD, "get", "--force", AT, "{file}"],
            "list": [*S3CMD, "ls", "--recursive", "s3://{bucket}/{prefix}"],
            "copy": [*S3CMD, "cp", AT, "s3://{bucket}/{other}"],
            "move": [*S3CMD, "mv", AT, "s3://{bucket}/{other}"],
            "delete": [*S3CMD, "rm", AT],
            "delete tree": [*S3CMD, "rm", "--recursive", "--force", "s3://{bucket}/{prefix}"],
            "sync": [*S3CMD, "sync", "{folder}/", "s3://{bucket}/{prefix}"],
            "put metadata": [*S3CMD, "put", "--add-header=x-amz-meta-colour:blue", "{file}", AT],
        },
        ["{home}/bin/s3cmd", "--version"],
    ),
    Client(
        "s5cmd",
        python("s5cmd"),
        {
            "create": [*S5CMD, "mb", "s3://{bucket}"],
            "put": [*S5CMD, "cp", "--raw", "{file}", AT],
            "put unknown": [*S5CMD, "pipe", AT],
            "get": [*S5CMD, "cp", "--raw", AT, "{file}"],
            "list": [*S5CMD, "ls", "s3://{bucket}/{prefix}*"],
            "copy": [*S5CMD, "cp", AT, "s3://{bucket}/{other}"],
            "move": [*S5CMD, "mv", AT, "s3://{bucket}/{other}"],
            "delete": [*S5CMD, "rm", "--raw", AT],
            "delete tree": [*S5CMD, "rm", "s3://{bucket}/{prefix}*"],
            "sync": [*S5CMD, "sync", "{folder}/", "s3://{bucket}/{prefix}"],
            "put metadata": [*S5CMD, "cp", "--metadata", "colour=blue", "{file}", AT],
            "presign": [*S5CMD, "presign", AT],
        },
        ["s5cmd", "version"],
    ),
    library("s3fs", "s3fs_client.py", ["s3fs"], [*OBJECTS, "presign"]),
    library("PyArrow", "pyarrow_client.py", ["pyarrow"], [*OBJECTS[:-1], "work"]),
    library("pandas", "pandas_client.py", ["pandas", "s3fs", "pyarrow"], ["work"]),
    library("Polars", "polars_client.py", ["polars"], ["work"]),
    library("DuckDB", "duckdb_client.py", ["duckdb==1.5.5", "duckdb-extension-httpfs==1.5.5"], ["work"]),
    library("PyIceberg", "pyiceberg_client.py", ["pyiceberg[sql-sqlite,pyarrow]"], ["work"]),
    library("deltalake", "deltalake_client.py", ["deltalake", "pyarrow"], ["work"]),
    library("Spark (S3A)", "spark_client.py", ["pyspark>=3.5,<4"], ["work"]),
    Client(
        "restic",
        debian("restic"),
        {"work": ["bash", "{programs}/restic_client.sh", "{endpoint.url}/{bucket}", "{file}", "{folder}"]},
        ["restic", "version"],
    ),
    program(
        "minio-go",
        built("minio_go", ["go", "mod", "tidy"], ["go", "build", "-modcacherw", "-o", "bin/minio-go-client", "."]),
        ["minio-go-client"],
    ),
    program("JavaScript SDK 3", built("javascript", TIDY), ["node", "{home}/client.mjs"]),
    program("Java SDK 2", built("java", MAVEN), ["java", "-cp", "{home}/jars/*:{home}/target/client.jar", "S3Client2"]),
]
