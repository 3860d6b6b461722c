"""One call of each verb of S3 and of the native API, on entries that no other call touches, all at once."""

import time
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import botocore.exceptions

from tests.support.rest import Answer, Rest


@dataclass(frozen=True)
class Told:
    """The answer to a call: its HTTP status, its code, and the seconds that it took."""

    status: int
    code: str | None
    seconds: float


@dataclass(frozen=True)
class Keyed:
    """A mutation of the native API under a request id of its own."""

    method: str
    target: str
    body: dict | None
    key: str

    def call(self, rest: Rest) -> Answer:
        return rest.call(self.method, self.target, self.body, key=self.key)

    def insist(self, rest: Rest) -> Answer:
        return rest.insist(self.method, self.target, self.body, key=self.key)


class EveryVerb:
    """Makes what the calls need, in a bucket. `rest` and `s3` are clients of a gateway that nothing holds up yet."""

    def __init__(self, rest: Rest, s3, bucket: str):
        self.rest, self.s3, self.bucket = rest, s3, bucket
        self.native = f"/v1/ns/{bucket}"
        for name in ("removed", "moved", "there", "emptied", "attributes"):
            rest.mkdir(bucket, name)
        rest.mkdir(bucket, "tree/below", parents=True)
        names = ("read", "copied", "deleted", "deleted-too", "renamed", "renamed-by-s3", "tagged", "untagged")
        for name in names:
            s3.put_object(Bucket=bucket, Key=f"objects/{name}", Body=b"bytes", Tagging="a=b")
        self.other = f"{bucket}-o"
        self.gone = [f"{bucket}-{number}" for number in range(3)]
        for name in (self.other, *self.gone):
            rest.create_namespace(name)
        self.operation = rest.insist("DELETE", f"{self.native}/dirs/emptied?recursive=true").body["id"]
        self.uploads = {name: self._upload(name) for name in ("listed", "completed", "aborted")}

    def _upload(self, name: str) -> tuple[str, str]:
        place = {"Bucket": self.bucket, "Key": f"uploads/{name}"}
        id = self.s3.create_multipart_upload(**place)["UploadId"]
        part = self.s3.upload_part(**place, UploadId=id, PartNumber=1, Body=b"part")
        return id, part["ETag"]

    def mutations(self) -> dict[str, Keyed]:
        """Those of the native API."""
        move = lambda src, dst: {"src": src, "dst": dst, "overwrite": False}
        calls = {
            "create_namespace": ("PUT", f"/v1/ns/{self.bucket}-new", None),
            "set_umask": ("PATCH", f"/v1/ns/{self.other}", {"umask": "027"}),
            "delete_namespace": ("DELETE", f"/v1/ns/{self.gone[0]}", None),
            "mkdir": ("PUT", f"{self.native}/dirs/there/made", None),
            "mkdir with parents": ("PUT", f"{self.native}/dirs/there/a/b?parents=true", None),
            "rmdir": ("DELETE", f"{self.native}/dirs/removed", None),
            "remove_tree": ("DELETE", f"{self.native}/dirs/tree?recursive=true", None),
            "rename": ("POST", f"{self.native}/rename", move("moved/", "there/moved/")),
            "rename of an object": ("POST", f"{self.native}/rename", move("objects/renamed", "objects/new")),
            "set_attributes": ("PATCH", f"{self.native}/entries/attributes/", {"mode": "0711"}),
        }
        return {name: Keyed(*call, str(uuid.uuid4())) for name, call in calls.items()}

    def reads(self) -> dict[str, tuple[str, str, dict | None]]:
        """Those of the native API."""
        return {
            "list_namespaces": ("GET", "/v1/ns", None),
            "stat": ("GET", f"{self.native}/entries/objects/read", None),
            "stat of what is not there": ("GET", f"{self.native}/entries/objects/none/below", None),
            "stat_many": ("POST", f"{self.native}/stat", {"paths": ["there/", "objects/read"]}),
            "list": ("GET", f"{self.native}/list/objects/", None),
            "usage": ("GET", f"{self.native}/usage/", None),
            "operation": ("GET", f"/v1/operations/{self.operation}", None),
        }

    def of_s3(self, s3) -> dict[str, Callable[[], object]]:
        """Every operation that is offered."""
        bucket = {"Bucket": self.bucket}
        key = lambda name: {**bucket, "Key": f"objects/{name}"}
        source = f"{self.bucket}/objects/copied"
        upload = lambda name: {**bucket, "Key": f"uploads/{name}", "UploadId": self.uploads[name][0]}
        etag = self.uploads["completed"][1]
        return {
            "ListBuckets": s3.list_buckets,
            "CreateBucket": lambda: s3.create_bucket(Bucket=f"{self.bucket}-s3"),
            "HeadBucket": lambda: s3.head_bucket(**bucket),
            "DeleteBucket": lambda: s3.delete_bucket(Bucket=self.gone[1]),
            "GetBucketLocation": lambda: s3.get_bucket_location(**bucket),
            "GetBucketVersioning": lambda: s3.get_bucket_versioning(**bucket),
            "PutObject": lambda: s3.put_object(**key("put"), Body=b"bytes"),
            "PutObject over another": lambda: s3.put_object(**key("tagged"), Body=b"other"),
            "CopyObject": lambda: s3.copy_object(**key("copy"), CopySource=source),
            "GetObject": lambda: s3.get_object(**key("read"))["Body"].read(),
            "HeadObject": lambda: s3.head_object(**key("read")),
            "GetObjectAttributes": lambda: s3.get_object_attributes(**key("read"), ObjectAttributes=["ETag"]),
            "DeleteObject": lambda: s3.delete_object(**key("deleted")),
            "DeleteObjects": lambda: s3.delete_objects(**bucket, Delete={"Objects": [{"Key": "objects/deleted-too"}]}),
            "RenameObject": lambda: s3.rename_object(
                **key("new-by-s3"), RenameSource=f"/{self.bucket}/objects/renamed-by-s3"
            ),
            "GetObjectTagging": lambda: s3.get_object_tagging(**key("read")),
            "PutObjectTagging": lambda: s3.put_object_tagging(
                **key("tagged"), Tagging={"TagSet": [{"Key": "c", "Value": "d"}]}
            ),
            "DeleteObjectTagging": lambda: s3.delete_object_tagging(**key("untagged")),
            "ListObjects": lambda: s3.list_objects(**bucket),
            "ListObjectsV2": lambda: s3.list_objects_v2(**bucket),
            "ListObjectVersions": lambda: s3.list_object_versions(**bucket),
            "CreateMultipartUpload": lambda: s3.create_multipart_upload(**bucket, Key="uploads/new"),
            "UploadPart": lambda: s3.upload_part(**upload("listed"), PartNumber=2, Body=b"part"),
            "UploadPartCopy": lambda: s3.upload_part_copy(**upload("listed"), PartNumber=3, CopySource=source),
            "ListParts": lambda: s3.list_parts(**upload("listed")),
            "ListMultipartUploads": lambda: s3.list_multipart_uploads(**bucket),
            "AbortMultipartUpload": lambda: s3.abort_multipart_upload(**upload("aborted")),
            "CompleteMultipartUpload": lambda: s3.complete_multipart_upload(
                **upload("completed"), MultipartUpload={"Parts": [{"PartNumber": 1, "ETag": etag}]}
            ),
        }

    def call_all(self, rest: Rest, s3, mutations: dict[str, Keyed]) -> dict[str, Told]:
        """Calls everything at once, through these clients. The answers by name."""
        calls: dict[str, Callable[[], tuple[int, str | None]]] = {}
        for name, mutation in mutations.items():
            calls[name] = lambda mutation=mutation: of_rest(mutation.call(rest.twin()))
        for name, read in self.reads().items():
            calls[name] = lambda read=read: of_rest(rest.twin().call(*read))
        for name, operation in self.of_s3(s3).items():
            calls[name] = lambda operation=operation: of_s3(operation)
        with ThreadPoolExecutor(len(calls)) as pool:
            running = {name: pool.submit(timed, call) for name, call in calls.items()}
            return {name: future.result() for name, future in running.items()}


def timed(call: Callable[[], tuple[int, str | None]]) -> Told:
    begun = time.monotonic()
    status, code = call()
    return Told(status, code, time.monotonic() - begun)


def of_rest(answer: Answer) -> tuple[int, str | None]:
    return answer.status, answer.code


def of_s3(operation: Callable[[], object]) -> tuple[int, str | None]:
    try:
        answer = operation()
    except botocore.exceptions.ClientError as error:
        return error.response["ResponseMetadata"]["HTTPStatusCode"], error.response["Error"]["Code"]
    except botocore.exceptions.BotoCoreError as error:
        return 0, type(error).__name__
    # Of a deletion of several, each has its own answer.
    errors = answer.get("Errors", []) if isinstance(answer, dict) else []
    return (503, errors[0]["Code"]) if errors else (200, None)
