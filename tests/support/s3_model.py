"""A plain model of S3: random operations of several clients, over all gateways, and what each must answer. Each client
works below a prefix of its own, in directories that it fills and empties. MANTLE_S3_MODEL_SEED repeats the choices.
"""

import hashlib
import os
import random
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import botocore.exceptions

PART = 5 << 20  # smallest part that is not the last
CLIENTS = 4
STEPS = 200
NAMES = ("a", "b", "c d", "é")
BOUND_S = 240.0


@dataclass
class Object:
    body: bytes
    etag: str
    metadata: dict[str, str] = field(default_factory=dict)
    tags: dict[str, str] = field(default_factory=dict)
    parts: list[int] = field(default_factory=list)  # sizes, if it was uploaded in parts


def etag_of(bodies: list[bytes], in_parts: bool) -> str:
    if not in_parts:
        return f'"{hashlib.md5(bodies[0]).hexdigest()}"'
    digests = b"".join(hashlib.md5(body).digest() for body in bodies)
    return f'"{hashlib.md5(digests).hexdigest()}-{len(bodies)}"'


class Client:
    """One client with its model."""

    def __init__(self, number: int, seed: str, gateways: list, bucket: str):
        self.random = random.Random(f"{seed}/{number}")
        self.gateways, self.bucket, self.prefix = gateways, bucket, f"client{number}/"
        self.objects: dict[str, Object] = {}
        self.done: list[str] = []

    @property
    def s3(self):
        return self.random.choice(self.gateways)

    def key(self) -> str:
        return self.prefix + "/".join(self.random.choices(NAMES, k=self.random.randint(1, 3)))

    def known(self) -> str | None:
        return self.random.choice(sorted(self.objects)) if self.objects else None

    def refusal(self, key: str) -> str | None:
        """Why the key cannot be put: an object and a directory of one name exclude each other."""
        if any(other.startswith(f"{key}/") for other in self.objects):
            return "KeyIsDirectory"
        names = key.split("/")
        parents = ("/".join(names[:depth]) for depth in range(1, len(names)))
        return "ParentIsObject" if any(parent in self.objects for parent in parents) else None

    def change(self, key: str, new: Object, call: Callable[[], object]) -> None:
        """A put in one of its forms."""
        refusal = self.refusal(key)
        try:
            call()
            assert refusal is None, f"{key}: {refusal} was expected"
            self.objects[key] = new
        except botocore.exceptions.ClientError as error:
            assert error.response["Error"]["Code"] == refusal, (key, error)

    def body(self) -> bytes:
        return self.random.randbytes(self.random.choice((0, 1, 1000, 70_000)))

    def put(self) -> None:
        key, body, metadata = self.key(), self.body(), {"n": str(self.random.randint(0, 9))}
        new = Object(body, etag_of([body], False), metadata, {"t": "1"} if self.random.random() < 0.3 else {})
        tags = {"Tagging": "t=1"} if new.tags else {}
        self.change(
            key, new, lambda: self.s3.put_object(Bucket=self.bucket, Key=key, Body=body, Metadata=metadata, **tags)
        )

    def upload(self) -> None:
        key = self.key()
        large = self.random.random() < 0.1
        bodies = [self.random.randbytes(PART), self.body()] if large else [self.body()]
        place = {"Bucket": self.bucket, "Key": key}
        try:
            upload = self.s3.create_multipart_upload(**place)["UploadId"]
        except botocore.exceptions.ClientError as error:
            assert error.response["Error"]["Code"] == self.refusal(key) == "ParentIsObject", error
            return
        parts = []
        for number, body in enumerate(bodies, 1):
            if self.random.random() < 0.3:
                self.s3.upload_part(**place, UploadId=upload, PartNumber=number, Body=b"replaced")
            made = self.s3.upload_part(**place, UploadId=upload, PartNumber=number, Body=body)
            parts.append({"PartNumber": number, "ETag": made["ETag"]})
        if self.random.random() < 0.2:
            self.s3.abort_multipart_upload(**place, UploadId=upload)
            return
        new = Object(b"".join(bodies), etag_of(bodies, True), parts=[len(body) for body in bodies])
        chosen = {"Parts": parts}
        self.change(
            key, new, lambda: self.s3.complete_multipart_upload(**place, UploadId=upload, MultipartUpload=chosen)
        )
        if self.objects.get(key) is not new:
            self.s3.abort_multipart_upload(**place, UploadId=upload)

    def copy(self) -> None:
        source, key = self.known(), self.key()
        if source is None or source == key:
            return
        old = self.objects[source]
        new = Object(old.body, old.etag, dict(old.metadata), dict(old.tags), list(old.parts))
        place = {"Bucket": self.bucket, "Key": source}
        self.change(key, new, lambda: self.s3.copy_object(Bucket=self.bucket, Key=key, CopySource=place))

    def copy_part(self) -> None:
        source, key = self.known(), self.key()
        if source is None or not self.objects[source].body or self.refusal(key):
            return
        whole = self.objects[source].body
        first = self.random.randrange(len(whole))
        last = self.random.randrange(first, len(whole))
        place = {"Bucket": self.bucket, "Key": key}
        upload = self.s3.create_multipart_upload(**place)["UploadId"]
        copied = self.s3.upload_part_copy(
            **place, UploadId=upload, PartNumber=1, CopySource={"Bucket": self.bucket, "Key": source},
            CopySourceRange=f"bytes={first}-{last}",
        )  # fmt: skip
        body = whole[first : last + 1]
        chosen = {"Parts": [{"PartNumber": 1, "ETag": copied["CopyPartResult"]["ETag"]}]}
        new = Object(body, etag_of([body], True), parts=[len(body)])
        self.change(
            key, new, lambda: self.s3.complete_multipart_upload(**place, UploadId=upload, MultipartUpload=chosen)
        )

    def delete(self) -> None:
        key = self.known() if self.random.random() < 0.8 else self.key()
        if key is None:
            return
        self.s3.delete_object(Bucket=self.bucket, Key=key)
        self.objects.pop(key, None)

    def delete_one_version(self) -> None:
        """With the etag of the object, or another one."""
        key = self.known()
        if key is None:
            return
        here = self.objects[key].etag
        etag = here if self.random.random() < 0.5 else etag_of([self.body()], False)
        try:
            self.s3.delete_object(Bucket=self.bucket, Key=key, IfMatch=etag)
            assert etag == here, key
            del self.objects[key]
        except botocore.exceptions.ClientError as error:
            assert (error.response["Error"]["Code"], etag != here) == ("PreconditionFailed", True), (key, error)

    def delete_many(self) -> None:
        directory = self.prefix + self.random.choice(NAMES) + "/"
        keys = [key for key in self.objects if key.startswith(directory)]
        if keys:
            self.s3.delete_objects(Bucket=self.bucket, Delete={"Objects": [{"Key": key} for key in keys]})
        for key in keys:
            del self.objects[key]

    def tag(self) -> None:
        key = self.known()
        if key is None:
            return
        tags = {name: str(self.random.randint(0, 9)) for name in self.random.sample(("x", "y", "z"), 2)}
        wanted = [{"Key": name, "Value": value} for name, value in tags.items()]
        self.s3.put_object_tagging(Bucket=self.bucket, Key=key, Tagging={"TagSet": wanted})
        self.objects[key].tags = tags

    def read(self) -> None:
        key = self.known()
        if key is None:
            return
        wanted, place = self.objects[key], {"Bucket": self.bucket, "Key": key}
        found = self.s3.get_object(**place)
        assert (found["Body"].read(), found["ETag"], found["Metadata"]) == (
            wanted.body,
            wanted.etag,
            wanted.metadata,
        ), key
        tags = self.s3.get_object_tagging(**place)["TagSet"]
        assert {tag["Key"]: tag["Value"] for tag in tags} == wanted.tags, key
        if wanted.body:
            first = self.random.randrange(len(wanted.body))
            last = self.random.randrange(first, len(wanted.body))
            part = self.s3.get_object(**place, Range=f"bytes={first}-{last}")["Body"].read()
            assert part == wanted.body[first : last + 1], (key, first, last)
        if wanted.parts and wanted.body:
            number = self.random.randint(1, len(wanted.parts))
            head = self.s3.head_object(**place, PartNumber=number)
            assert head["ContentLength"] == (wanted.parts[number - 1] or len(wanted.body)), key

    def list(self) -> None:
        """What is there, and nothing that holds nothing."""
        directory = self.prefix + self.random.choice(("", *(f"{name}/" for name in NAMES)))
        keys = sorted((key for key in self.objects if key.startswith(directory)), key=str.encode)
        page = self.s3.list_objects_v2(Bucket=self.bucket, Prefix=directory)
        assert [(o["Key"], o["Size"]) for o in page.get("Contents", [])] == [
            (key, len(self.objects[key].body)) for key in keys
        ], directory
        below = [key.removeprefix(directory) for key in keys]
        folded = {directory + rest.split("/")[0] + "/" for rest in below if "/" in rest}
        page = self.s3.list_objects_v2(Bucket=self.bucket, Prefix=directory, Delimiter="/")
        assert {p["Prefix"] for p in page.get("CommonPrefixes", [])} == folded, directory
        assert [o["Key"] for o in page.get("Contents", [])] == [
            key for key in keys if "/" not in key.removeprefix(directory)
        ]

    STEPS = (
        (put, 6),
        (upload, 3),
        (copy, 3),
        (copy_part, 2),
        (delete, 5),
        (delete_one_version, 2),
        (delete_many, 2),
        (tag, 1),
        (read, 4),
        (list, 4),
    )

    def play(self) -> None:
        steps, weights = zip(*self.STEPS, strict=True)
        for _ in range(STEPS):
            step = self.random.choices(steps, weights)[0]
            self.done.append(step.__name__)
            try:
                step(self)
            except AssertionError as fault:
                raise AssertionError(f"{self.prefix} after {self.done[-12:]}: {fault}") from fault
        for key in list(self.objects):
            found = self.s3.get_object(Bucket=self.bucket, Key=key)
            assert found["Body"].read() == self.objects[key].body, key


def play(gateways: list, bucket: str) -> None:
    """Plays the clients against a bucket of their own. `gateways`: a boto3 client for each."""
    seed = os.environ.get("MANTLE_S3_MODEL_SEED") or str(random.SystemRandom().randrange(1 << 32))
    print(f"MANTLE_S3_MODEL_SEED={seed}")
    with ThreadPoolExecutor(CLIENTS) as pool:
        clients = [Client(number, seed, gateways, bucket) for number in range(CLIENTS)]
        for playing in [pool.submit(client.play) for client in clients]:
            playing.result(BOUND_S)
    assert not gateways[0].list_multipart_uploads(Bucket=bucket).get("Uploads")
