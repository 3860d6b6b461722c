"""What is asked of every client, and how the run sees that it was done: through boto3, beside the client."""

import hashlib
import os
import urllib.request
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from .client import Client, Endpoint, Failed

SIZES = {"0 B": 0, "1 KB": 1024, "20 MB": 20 << 20, "100 MB": 100 << 20}
ODD_NAMES = ("a b+c%20d", "ü–漢字", "quote'\"s", "a&b=c?d#e", "tab~(1)[x]{y}", "-dash", "trailing.")


@dataclass
class Run:
    """One client against one bucket of its own."""

    client: Client
    endpoint: Endpoint
    s3: object  # a boto3 client
    folder: Path  # where the client is installed
    files: Path  # bytes to send, by their sizes
    bucket: str
    data: Path  # where the gateway keeps bytes

    def do(self, operation: str, stdin: Path | None = None, **values: str) -> str:
        words = self.client.commands[operation]
        return self.client.run(words, self.endpoint, self.folder, stdin, bucket=self.bucket, **values)

    def has(self, operation: str) -> bool:
        return operation in self.client.commands

    def file(self, size: str) -> Path:
        return self.files / size.replace(" ", "")

    def seed(self, key: str, body: bytes = b"seed", **given) -> None:
        self.s3.put_object(Bucket=self.bucket, Key=key, Body=body, **given)

    def keys(self, prefix: str) -> list[str]:
        pages = self.s3.get_paginator("list_objects_v2").paginate(Bucket=self.bucket, Prefix=prefix)
        return [found["Key"] for page in pages for found in page.get("Contents", [])]

    def expect(self, key: str, file: Path) -> None:
        """An error unless the key has the file's bytes."""
        digest, size = hashlib.sha256(), 0
        try:
            for chunk in self.s3.get_object(Bucket=self.bucket, Key=key)["Body"].iter_chunks(1 << 20):
                digest.update(chunk)
                size += len(chunk)
        except self.s3.exceptions.NoSuchKey:
            raise Failed(f"{key} is not there") from None
        wanted(
            size == file.stat().st_size and digest.digest() == hashlib.sha256(file.read_bytes()).digest(), "other bytes"
        )

    def expect_keys(self, prefix: str, names: list[str]) -> None:
        found = [key for key in self.keys(prefix) if not key.endswith("/")]
        wanted(found == sorted(prefix + name for name in names), f"keys are {found[:5]}")


def wanted(holds: bool, otherwise: str) -> None:
    if not holds:
        raise Failed(otherwise)


def create(run: Run) -> None:
    bucket = f"made-{uuid.uuid4().hex[:10]}"
    made = Run(run.client, run.endpoint, run.s3, run.folder, run.files, bucket, run.data)
    made.do("create")
    run.s3.head_bucket(Bucket=bucket)
    run.s3.delete_bucket(Bucket=bucket)


def put_of(size: str) -> Callable[[Run], None]:
    def put(run: Run) -> None:
        file = run.file(size)
        run.do("put", file=str(file), key="put/file")
        run.expect("put/file", file)

    return put


def put_unknown(run: Run) -> None:
    file = run.file("20 MB")
    run.do("put unknown", stdin=file, key="put/unknown")
    run.expect("put/unknown", file)


def get(run: Run) -> None:
    for size in ("1 KB", "20 MB"):
        file, got = run.file(size), run.folder / "got"
        got.unlink(missing_ok=True)
        run.s3.upload_file(str(file), run.bucket, "get/file")
        run.do("get", key="get/file", file=str(got))
        wanted(got.read_bytes() == file.read_bytes(), f"other bytes of {size}")


def ranges(run: Run) -> None:
    file, got = run.file("20 MB"), run.folder / "got"
    got.unlink(missing_ok=True)
    run.s3.upload_file(str(file), run.bucket, "range/file")
    run.do("range", key="range/file", file=str(got), first="1000000", last="1000999")
    wanted(got.read_bytes() == file.read_bytes()[1000000:1001000], "other bytes")


def list_(run: Run) -> None:
    names = ["a", "b/c", "b/d"]
    for name in names:
        run.seed(f"list/{name}")
    shown = run.do("list", prefix="list/")
    wanted(all(f"{name}" in shown for name in ("a", "c", "d")), f"it printed {shown[:200]!r}")


def copy(run: Run) -> None:
    file = run.file("20 MB")
    run.s3.upload_file(str(file), run.bucket, "copy/from")
    run.do("copy", key="copy/from", other="copy/to")
    run.expect("copy/to", file)
    run.expect("copy/from", file)


def move(run: Run) -> None:
    file = run.file("20 MB")
    run.s3.upload_file(str(file), run.bucket, "move/from")
    run.do("move", key="move/from", other="move/to")
    run.expect("move/to", file)
    run.expect_keys("move/", ["to"])


def delete(run: Run) -> None:
    run.seed("delete/a")
    run.seed("delete/b")
    run.do("delete", key="delete/a")
    run.expect_keys("delete/", ["b"])


def delete_tree(run: Run) -> None:
    for number in range(25):
        run.seed(f"tree/{number % 3}/{number}")
    run.seed("tree2/kept")
    run.do("delete tree", prefix="tree/")
    run.expect_keys("tree/", [])
    run.expect_keys("tree2/", ["kept"])


def sync(run: Run) -> None:
    folder = run.folder / "to-sync"
    names = ["a", "b/c", "b/d e"]
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(name.encode() * 1000)
        # S3's times are in whole seconds: a file of this second would be newer than its object.
        os.utime(path, (1_700_000_000, 1_700_000_000))
    run.do("sync", folder=str(folder), prefix="sync/")
    run.expect_keys("sync/", names)
    # Each put makes a file of the gateway's.
    stored = lambda: set(run.data.rglob("*"))
    before = stored()
    run.do("sync", folder=str(folder), prefix="sync/")
    wanted(stored() == before, "the second time transferred again")


def metadata(run: Run) -> None:
    run.do("put metadata", file=str(run.file("1 KB")), key="meta/file")
    found = run.s3.head_object(Bucket=run.bucket, Key="meta/file")
    wanted({k.lower(): v for k, v in found["Metadata"].items()}.get("colour") == "blue", f"it is {found['Metadata']}")


def presign(run: Run) -> None:
    run.seed("presign/file", b"presigned")
    said = run.do("presign", key="presign/file").split()
    url = next((word for word in said if word.startswith("http") and "X-Amz-" in word), None)
    wanted(url is not None, f"no URL in {said[:5]}")
    with urllib.request.urlopen(url, timeout=60) as answer:
        wanted(answer.read() == b"presigned", "other bytes")


def odd_names(run: Run) -> None:
    source, got = run.file("1 KB"), run.folder / "got"
    for name in ODD_NAMES:
        run.do("put", file=str(source), key=f"odd/{name}")
        wanted(f"odd/{name}" in run.keys("odd/"), f"{name!r} became {run.keys('odd/')}")
        got.unlink(missing_ok=True)
        run.do("get", key=f"odd/{name}", file=str(got))
        wanted(got.read_bytes() == source.read_bytes(), f"other bytes of {name!r}")
        run.do("delete", key=f"odd/{name}")


def script(run: Run) -> None:
    """Work of a library that knows tables or repositories rather than objects; its program checks what it reads."""
    run.do("work", file=str(run.file("20 MB")), folder=str(run.folder / "work"), token=uuid.uuid4().hex)


# Name, what a client needs for it, the check.
OPERATIONS: dict[str, tuple[str, Callable[[Run], None]]] = {
    "create": ("create", create),
    **{f"put {size}": ("put", put_of(size)) for size in SIZES},
    "put, size unknown": ("put unknown", put_unknown),
    "get": ("get", get),
    "range": ("range", ranges),
    "list": ("list", list_),
    "copy": ("copy", copy),
    "move": ("move", move),
    "delete": ("delete", delete),
    "delete tree": ("delete tree", delete_tree),
    "sync twice": ("sync", sync),
    "metadata": ("put metadata", metadata),
    "presign": ("presign", presign),
    "odd names": ("put", odd_names),
    "its own work": ("work", script),
}


def make_files(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, size in SIZES.items():
        (folder / name.replace(" ", "")).write_bytes(os.urandom(size))
