"""Objects have one version, `null`, as in a bucket that was never versioned. And GetObjectAttributes."""

import botocore.exceptions
import pytest

from tests.support.s3_wire import code


def test_each_object_is_its_only_version(s3, bucket):
    for key in ("a", "d/b", "d/c"):
        s3.put_object(Bucket=bucket, Key=key, Body=b"1")
    pages = s3.get_paginator("list_object_versions").paginate(Bucket=bucket, PaginationConfig={"PageSize": 2})
    versions = [version for page in pages for version in page.get("Versions", [])]
    assert [(version["Key"], version["VersionId"], version["IsLatest"]) for version in versions] == [
        ("a", "null", True),
        ("d/b", "null", True),
        ("d/c", "null", True),
    ]
    folded = s3.list_object_versions(Bucket=bucket, Delimiter="/")
    assert [prefix["Prefix"] for prefix in folded["CommonPrefixes"]] == ["d/"]
    assert "DeleteMarkers" not in folded


def test_a_bucket_is_emptied_by_versions(s3, bucket):
    """As test suites and tools empty buckets."""
    for key in ("a", "d/b"):
        s3.put_object(Bucket=bucket, Key=key, Body=b"1")
    found = s3.list_object_versions(Bucket=bucket)["Versions"]
    objects = [{"Key": version["Key"], "VersionId": version["VersionId"]} for version in found]
    assert "Errors" not in s3.delete_objects(Bucket=bucket, Delete={"Objects": objects[:1]})
    s3.delete_object(Bucket=bucket, **objects[1])
    assert "Contents" not in s3.list_objects_v2(Bucket=bucket)


@pytest.mark.parametrize("method", ["GET", "HEAD", "DELETE"])
def test_other_versions_are_refused(wire, key, method):
    assert wire.call(method, f"{key}?versionId=3").status == 400
    assert wire.call("GET", f"{key}?versionId=null").body == b"old"


def test_attributes(s3, bucket):
    s3.put_object(Bucket=bucket, Key="k", Body=b"abc", ChecksumAlgorithm="SHA256")
    asked = ["ETag", "Checksum", "ObjectParts", "StorageClass", "ObjectSize"]
    found = s3.get_object_attributes(Bucket=bucket, Key="k", ObjectAttributes=asked)
    head = s3.head_object(Bucket=bucket, Key="k", ChecksumMode="ENABLED")
    assert (found["ETag"], found["ObjectSize"], found["StorageClass"]) == (head["ETag"].strip('"'), 3, "STANDARD")
    assert found["Checksum"]["ChecksumSHA256"] == head["ChecksumSHA256"]
    assert found["LastModified"] == head["LastModified"]
    assert "ObjectParts" not in found
    assert "ETag" not in s3.get_object_attributes(Bucket=bucket, Key="k", ObjectAttributes=["ObjectSize"])


def test_attributes_that_there_are_not(s3, wire, bucket, key):
    answer = wire.call("GET", f"{key}?attributes", headers={"x-amz-object-attributes": "ETag,New"})
    assert (answer.status, code(answer)) == (400, "InvalidArgument")
    assert wire.call("GET", f"{key}?attributes").status == 400
    with pytest.raises(botocore.exceptions.ClientError, match="NoSuchKey"):
        s3.get_object_attributes(Bucket=bucket, Key="absent", ObjectAttributes=["ETag"])
