"""Settings that are not offered: reading one answers as AWS does where nothing is set, setting one is refused. And
RenameObject.
"""

import pytest

from tests.support.s3_wire import code


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("cors", "NoSuchCORSConfiguration"),
        ("encryption", "ServerSideEncryptionConfigurationNotFoundError"),
        ("lifecycle", "NoSuchLifecycleConfiguration"),
        ("object-lock", "ObjectLockConfigurationNotFoundError"),
        ("policy", "NoSuchBucketPolicy"),
        ("policyStatus", "NoSuchBucketPolicy"),
        ("publicAccessBlock", "NoSuchPublicAccessBlockConfiguration"),
        ("replication", "ReplicationConfigurationNotFoundError"),
        ("tagging", "NoSuchTagSet"),
        ("website", "NoSuchWebsiteConfiguration"),
    ],
)
def test_buckets_have_none(wire, bucket, query, expected):
    answer = wire.call("GET", f"/{bucket}?{query}")
    assert (answer.status, code(answer)) == (404, expected)
    assert code(wire.call("GET", f"/t-there-is-none?{query}")) == "NoSuchBucket"


def test_an_sdk_reads_them(s3, bucket):
    owner = s3.list_buckets()["Owner"]["ID"]
    s3.put_object(Bucket=bucket, Key="k", Body=b"1")
    for acl in (s3.get_bucket_acl(Bucket=bucket), s3.get_object_acl(Bucket=bucket, Key="k")):
        assert acl["Owner"]["ID"] == owner
        assert [(grant["Grantee"]["ID"], grant["Permission"]) for grant in acl["Grants"]] == [(owner, "FULL_CONTROL")]
    controls = s3.get_bucket_ownership_controls(Bucket=bucket)["OwnershipControls"]
    assert controls["Rules"] == [{"ObjectOwnership": "BucketOwnerEnforced"}]
    assert s3.get_bucket_request_payment(Bucket=bucket)["Payer"] == "BucketOwner"
    assert "LoggingEnabled" not in s3.get_bucket_logging(Bucket=bucket)
    assert "Status" not in s3.get_bucket_accelerate_configuration(Bucket=bucket)
    assert "TopicConfigurations" not in s3.get_bucket_notification_configuration(Bucket=bucket)
    assert s3.get_object_tagging(Bucket=bucket, Key="k")["TagSet"] == []


@pytest.mark.parametrize("query", ["cors", "encryption", "lifecycle", "policy", "replication", "tagging", "website"])
def test_nothing_is_removed(wire, bucket, query):
    assert wire.call("DELETE", f"/{bucket}?{query}").status == 204
    assert wire.exists(f"/{bucket}")


@pytest.mark.parametrize(
    ("target", "what"),
    [
        ("?policy", "bucket policies"),
        ("?lifecycle", "lifecycle rules"),
        ("?website", "websites"),
        ("/k?retention", "object lock"),
    ],
)
def test_setting_one_is_refused_by_name(wire, bucket, key, target, what):
    answer = wire.call("PUT", f"/{bucket}{target}", b"<x/>")
    assert (answer.status, code(answer)) == (501, "NotImplemented")
    assert what in answer.text
    assert wire.call("GET", key).body == b"old"


def test_canned_lists_that_hold_anyway(wire, bucket, key):
    for target in (f"/{bucket}?acl", f"{key}?acl"):
        assert wire.call("PUT", target, headers={"x-amz-acl": "private"}).status == 200
        assert code(wire.call("PUT", target, headers={"x-amz-acl": "public-read"})) == "AccessControlListNotSupported"
        says = wire.call("GET", target).body
        assert wire.call("PUT", target, says).status == 200, "what holds anyway"
        for other in (
            says.replace(b"FULL_CONTROL", b"READ"),
            says.replace(b"<ID>", b"<ID>9"),
            b"<AccessControlPolicy/>",
        ):
            assert code(wire.call("PUT", target, other)) == "AccessControlListNotSupported"
        assert code(wire.call("PUT", target, b"<Other/>")) == "MalformedXML"
        assert code(wire.call("PUT", target, b"<AccessControlPolicy/>")) == "AccessControlListNotSupported"


def test_rename_object(wire, bucket, key):
    source = {"x-amz-rename-source": f"/{bucket}/k", "x-amz-client-token": f"token-{bucket}"}
    for _ in range(2):  # a repeated call is one
        assert wire.call("PUT", f"/{bucket}/new%20name?renameObject", headers=source).status == 200
    assert wire.call("GET", f"/{bucket}/new%20name").body == b"old"
    assert not wire.exists(key)


def test_rename_object_does_not_overwrite_unasked(wire, bucket, key):
    wire.call("PUT", f"/{bucket}/taken", b"taken")
    headers = {"x-amz-rename-source": f"/{bucket}/k", "if-none-match": "*"}
    answer = wire.call("PUT", f"/{bucket}/taken?renameObject", headers=headers)
    assert (answer.status, code(answer)) == (412, "PreconditionFailed")
    assert wire.call("GET", f"/{bucket}/taken").body == b"taken"
    for wrong in (f"/{bucket}/absent", "/another/k", "k"):
        answer = wire.call("PUT", f"/{bucket}/taken?renameObject", headers={"x-amz-rename-source": wrong})
        assert answer.status in (400, 404), wrong
    assert wire.call("GET", f"/{bucket}/taken").body == b"taken"


def test_rename_of_a_directory(wire, bucket):
    wire.call("PUT", f"/{bucket}/d/k", b"below")
    headers = {"x-amz-rename-source": f"/{bucket}/d/"}
    assert wire.call("PUT", f"/{bucket}/e/?renameObject", headers=headers).status == 200
    assert wire.call("GET", f"/{bucket}/e/k").body == b"below"
    assert not wire.exists(f"/{bucket}/d/k")


def test_a_rename_onto_itself_changes_nothing(wire, rest, bucket, key):
    wire.call("PUT", f"/{bucket}/d/k", b"below")
    for name in ("k", "d/"):
        before = rest.call("GET", f"/v1/ns/{bucket}/entries/{name}").body
        headers = {"x-amz-rename-source": f"/{bucket}/{name}"}
        assert wire.call("PUT", f"/{bucket}/{name}?renameObject", headers=headers).status == 200
        assert rest.call("GET", f"/v1/ns/{bucket}/entries/{name}").body == before
    headers = {"x-amz-rename-source": f"/{bucket}/absent"}
    assert wire.call("PUT", f"/{bucket}/absent?renameObject", headers=headers).status == 404
