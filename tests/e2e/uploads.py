"""Steps of multipart uploads."""

import hashlib
import os
from pathlib import Path

import botocore.exceptions
import pytest

PART = 5 << 20  # the smallest part that is not the last


def refused(call, *arguments, **given) -> tuple[str, int]:
    with pytest.raises(botocore.exceptions.ClientError) as caught:
        call(*arguments, **given)
    response = caught.value.response
    return response["Error"]["Code"], response["ResponseMetadata"]["HTTPStatusCode"]


def pieces(*sizes: int) -> list[bytes]:
    return [os.urandom(size) for size in sizes]


def begin(s3, bucket: str, key: str = "a/b/k", **given) -> dict:
    upload = s3.create_multipart_upload(Bucket=bucket, Key=key, **given)["UploadId"]
    return {"Bucket": bucket, "Key": key, "UploadId": upload}


def put(s3, upload: dict, bodies: list[bytes]) -> list[dict]:
    made = []
    for number, body in enumerate(bodies, 1):
        etag = s3.upload_part(**upload, PartNumber=number, Body=body)["ETag"]
        made.append({"PartNumber": number, "ETag": etag})
    return made


def complete(s3, upload: dict, parts: list[dict], **given) -> dict:
    return s3.complete_multipart_upload(**upload, MultipartUpload={"Parts": parts}, **given)


def etag_of(bodies: list[bytes]) -> str:
    digests = b"".join(hashlib.md5(body).digest() for body in bodies)
    return f'"{hashlib.md5(digests).hexdigest()}-{len(bodies)}"'


def files(stack) -> set[Path]:
    return {path for path in (stack.gateway.data / "objects").rglob("*") if path.is_file()}
