"""Nothing below a closed directory is revealed: not by a race between check and read, nor by an upload, a bucket's
owner, or a comparison with metadata.

Alice (1001) and Bob (1002) are in group 50, Carol (1003) is not.
"""

import uuid
from concurrent.futures import ThreadPoolExecutor

import pytest

from stack.poll import wait_until

from .inspection import READY_BOUND_S, frozen
from .principals import PRINCIPALS, chmod, entry, refusal, refused
from .sql_renames import ROOT, rename_directory

RESOLVED = 'mantle_gateway_index_seconds_count{call="resolve"}'
DENIED = "AccessDenied"


def keys(s3, bucket: str, **given) -> list[str]:
    return [found["Key"] for found in s3.list_objects_v2(Bucket=bucket, **given).get("Contents", [])]


def totals(rest, bucket: str, query: str = "") -> tuple:
    body = rest.call("GET", f"/v1/ns/{bucket}/usage/shared/d/{query}").body
    return body["objects"], [below["path"] for below in body.get("below", [])]


READS = {
    "keys": (lambda s3, rest, bucket: keys(s3, bucket, Prefix="shared/d/"), ["shared/d/mine"]),
    "totals": (lambda s3, rest, bucket: totals(rest, bucket), (1, [])),
    "totals by level": (lambda s3, rest, bucket: totals(rest, bucket, "?depth=1"), (1, [])),
}


@pytest.mark.parametrize("read", READS)
def test_a_directory_that_takes_the_place_of_the_checked_one_is_not_read(
    stack, shared, open_bucket, s3_of, bob, carol, superuser, read
):
    """Between the check, by the index, and the reading, by PostgreSQL, Bob moves Carol's closed directory there."""
    ask, expected = READS[read]
    s3_of("bob").put_object(Bucket=open_bucket, Key="shared/d/mine", Body=b"1")
    assert carol.call("PUT", f"/v1/ns/{open_bucket}/dirs/shared/c/").status == 201
    for key in ("shared/c/secret", "shared/c/in/deeper"):
        s3_of("carol").put_object(Bucket=open_bucket, Key=key, Body=b"2")
    chmod(carol, open_bucket, "shared/c/", "0700")
    assert bob.call("GET", f"/v1/ns/{open_bucket}/usage/shared/c/").status == 403
    assert ask(s3_of("bob"), bob, open_bucket) == expected
    (ns, parent) = superuser.execute(
        "SELECT ns, id FROM mantle.meta WHERE name = 'shared/' AND ns = (SELECT ns FROM mantle.namespace(%s))",
        (open_bucket,),
    ).fetchone()
    ids = dict(superuser.execute("SELECT name, id FROM mantle.meta WHERE pid = %s AND id IS NOT NULL", (parent,)))
    resolved = lambda: shared.metrics().get(RESOLVED, 0)
    with ThreadPoolExecutor(1) as pool:
        before = resolved()
        with frozen(stack.pgbouncer.process.pid()):
            answer = pool.submit(ask, s3_of("bob"), bob, open_bucket)
            wait_until(lambda: resolved() > before, "the index's answer", READY_BOUND_S)
            for source, to in (("d/", "old/"), ("c/", "d/")):
                moved = rename_directory(superuser, ROOT, ns, ids[source], (parent, source), (parent, to))
                assert moved is None, moved
        assert answer.result() == expected
    is_carols = lambda: bob.call("GET", f"/v1/ns/{open_bucket}/usage/shared/d/").status == 403
    wait_until(is_carols, "the index to know that the directory is Carol's", READY_BOUND_S)


def test_keys_below_a_closed_directory_are_left_out_of_every_page(open_bucket, s3_of, carol):
    """Pages begin and end before, at and after what is left out."""
    put = lambda who, key: s3_of(who).put_object(Bucket=open_bucket, Key=f"shared/{key}", Body=b"1")
    for key in ("a", "c/1", "c/2/3", "e/1", "z"):
        put("carol", key)
    s3_of("carol").put_object(Bucket=open_bucket, Key="shared/c/")
    chmod(carol, open_bucket, "shared/e/", "0711")
    chmod(carol, open_bucket, "shared/c/", "0744")
    shown = ["shared/", "shared/a", "shared/c/", "shared/z"]
    bob = s3_of("bob")
    for size in (1, 2, 3, 10):
        pages = bob.get_paginator("list_objects_v2").paginate(
            Bucket=open_bucket, Prefix="shared/", PaginationConfig={"PageSize": size}
        )
        assert [found["Key"] for page in pages for found in page.get("Contents", [])] == shown, size
    for start in ("shared/c/", "shared/c/1", "shared/c/2/", "shared/e/", "shared/e/1"):
        assert keys(bob, open_bucket, StartAfter=start) == ["shared/z"], start
    assert keys(bob, open_bucket, Prefix="shared/", Delimiter="/", StartAfter="shared/c/1") == ["shared/z"]
    assert refused(bob.list_objects_v2, Bucket=open_bucket, Prefix="shared/c/") == DENIED
    assert len(keys(s3_of("carol"), open_bucket)) == 7, "and shown to whoever may"


def upload_calls(s3, bucket: str, key: str, upload: str, source: str) -> dict[str, tuple | None]:
    """The refusal of each call that goes on with an upload."""
    of = {"Bucket": bucket, "Key": key, "UploadId": upload}
    parts = {"Parts": [{"PartNumber": 1, "ETag": "0" * 32}]}
    return {
        "list": refusal(s3.list_parts, **of),
        "part": refusal(s3.upload_part, **of, PartNumber=1, Body=b"1"),
        "part copy": refusal(s3.upload_part_copy, **of, PartNumber=1, CopySource=source),
        "complete": refusal(s3.complete_multipart_upload, **of, MultipartUpload=parts),
        "abort": refusal(s3.abort_multipart_upload, **of),
    }


def begin(s3, bucket: str, key: str) -> str:
    return s3.create_multipart_upload(Bucket=bucket, Key=key)["UploadId"]


def test_uploads_behind_a_closed_directory_are_not_told(open_bucket, private, s3_of, bob, alice):
    s3_of("bob").put_object(Bucket=open_bucket, Key="shared/source", Body=b"1")
    assert alice.call("PUT", f"/v1/ns/{open_bucket}/dirs/closed/").status == 201
    chmod(alice, open_bucket, "closed/", "0700")
    for bucket, key in ((private, "k"), (private, "d/k"), (open_bucket, "closed/k"), (open_bucket, "closed/d/k")):
        upload = begin(s3_of("alice"), bucket, key)
        asked = [(key, upload), (key, "0" * 15 + "7"), (key, "none"), (key + "2", upload)]
        answers = [upload_calls(s3_of("bob"), bucket, *one, f"{open_bucket}/shared/source") for one in asked]
        assert all(answer == answers[0] for answer in answers), answers
        assert {error[:2] for error in answers[0].values()} == {(403, DENIED)}, answers[0]
        s3_of("alice").abort_multipart_upload(Bucket=bucket, Key=key, UploadId=upload)


def test_an_upload_does_not_go_on_where_its_directory_was_closed(open_bucket, s3_of, alice, carol):
    source = f"{open_bucket}/shared/source"
    s3_of("bob").put_object(Bucket=open_bucket, Key="shared/source", Body=b"1")
    assert carol.call("PUT", f"/v1/ns/{open_bucket}/dirs/shared/c/").status == 201
    chmod(carol, open_bucket, "shared/c/", "0777")
    upload = begin(s3_of("bob"), open_bucket, "shared/c/k")
    assert refused(s3_of("bob").list_parts, Bucket=open_bucket, Key="shared/c/k", UploadId=upload) is None
    chmod(carol, open_bucket, "shared/c/", "0700")
    answers = upload_calls(s3_of("bob"), open_bucket, "shared/c/k", upload, source)
    assert {error and error[:2] for error in answers.values()} == {(403, DENIED)}, answers
    listed = s3_of("alice").list_multipart_uploads(Bucket=open_bucket)["Uploads"]
    assert [found["Key"] for found in listed] == ["shared/c/k"]
    s3_of("alice").abort_multipart_upload(Bucket=open_bucket, Key="shared/c/k", UploadId=upload)
    assert "Uploads" not in s3_of("alice").list_multipart_uploads(Bucket=open_bucket), "the bucket's owner ends any"


def expecting(s3, bucket: str, owner: int, elsewhere: str) -> dict[str, tuple | None]:
    """The refusals of calls that expect an owner of the bucket."""
    of = {"Bucket": bucket, "ExpectedBucketOwner": str(owner)}
    copy = {"Bucket": elsewhere, "Key": f"shared/{uuid.uuid4().hex}", "CopySource": f"{bucket}/shared/o"}
    part = {"Bucket": elsewhere, "Key": "shared/part", "UploadId": begin(s3, elsewhere, "shared/part"), "PartNumber": 1}
    return {
        "head bucket": refusal(s3.head_bucket, **of),
        "location": refusal(s3.get_bucket_location, **of),
        "list": refusal(s3.list_objects_v2, **of),
        "acl": refusal(s3.get_bucket_acl, **of),
        "get": refusal(s3.get_object, **of, Key="shared/o"),
        "head": refusal(s3.head_object, **of, Key="shared/o"),
        "tags": refusal(s3.get_object_tagging, **of, Key="shared/o"),
        "put": refusal(s3.put_object, **of, Key="shared/new", Body=b"1"),
        "uploads": refusal(s3.list_multipart_uploads, **of),
        "copy": refusal(s3.copy_object, **copy, ExpectedSourceBucketOwner=str(owner)),
        "part copy": refusal(
            s3.upload_part_copy, **part, CopySource=copy["CopySource"], ExpectedSourceBucketOwner=str(owner)
        ),
    }


def test_an_expected_owner_tells_no_owner_of_a_closed_bucket(open_bucket, private, s3_of, alice):
    for bucket in (open_bucket, private):
        s3_of("alice").put_object(Bucket=bucket, Key="shared/o", Body=b"1")
    owner, other = PRINCIPALS["alice"][0], PRINCIPALS["carol"][0]
    right, wrong = (expecting(s3_of("bob"), private, uid, open_bucket) for uid in (owner, other))
    assert right == wrong and {error[0] for error in right.values()} == {403}, (right, wrong)
    # To whoever may use the bucket, the header says what it is for.
    assert set(expecting(s3_of("alice"), private, owner, open_bucket).values()) == {None}
    for name in ("alice", "bob"):
        wrong = expecting(s3_of(name), open_bucket, other, open_bucket)
        assert {error and error[0] for error in wrong.values()} == {403}, (name, wrong)
    right = expecting(s3_of("bob"), open_bucket, owner, open_bucket)
    assert set(right.values()) == {None}, right
    chmod(alice, private, "", "0000")
    for uid, code in ((other, DENIED), (owner, "BucketNotEmpty")):
        assert refused(s3_of("alice").delete_bucket, Bucket=private, ExpectedBucketOwner=str(uid)) == code, uid
    chmod(alice, private, "", "0700")


@pytest.mark.parametrize(
    ("mode", "same", "other"), [("0700", DENIED, DENIED), ("0704", None, DENIED), ("0702", None, None)]
)
def test_putting_the_key_of_a_directory_tells_no_metadata(open_bucket, s3_of, carol, mode, same, other):
    """Its answer must not tell whether the metadata is what is there already."""
    key = {"Bucket": open_bucket, "Key": "shared/m/"}
    for there in ({"patient": "doe"}, {}):
        s3_of("carol").put_object(**key, Metadata=there)
        chmod(carol, open_bucket, "shared/m/", mode)
        assert refused(s3_of("bob").put_object, **key, Metadata=there) == same, there
        assert refused(s3_of("bob").put_object, **key, Metadata={"patient": "roe"}) == other, there
    assert entry(carol, open_bucket, "shared/m/")["mode"] == mode


@pytest.mark.parametrize(("mode", "answer"), [("0755", DENIED), ("0775", None)])
def test_a_condition_does_not_replace_a_permission(open_bucket, s3_of, alice, carol, mode, answer):
    """To put the key of a directory that is there takes w and x in the directory that holds it, with any condition."""
    alice.insist("PATCH", f"/v1/ns/{open_bucket}/entries/shared/", {"group": 50})
    key = {"Bucket": open_bucket, "Key": "shared/m/"}
    etag = s3_of("carol").put_object(**key, Metadata={"by": "carol"})["ETag"]
    chmod(carol, open_bucket, "shared/m/", "0777")
    chmod(alice, open_bucket, "shared/", mode)
    for number, condition in enumerate(({}, {"IfMatch": "*"}, {"IfMatch": etag})):
        metadata = {"by": f"bob {number}"}
        assert refused(s3_of("bob").put_object, **key, Metadata=metadata, **condition) == answer, condition
        shown = s3_of("bob").head_object(**key)["Metadata"]
        assert (shown == metadata) == (answer is None), condition


@pytest.mark.parametrize(("mode", "shown"), [("0711", []), ("0744", ["c/"]), ("0755", ["c/", "c/in/"])])
def test_totals_by_level_show_only_directories_that_the_caller_may_read(open_bucket, s3_of, bob, carol, mode, shown):
    s3_of("carol").put_object(Bucket=open_bucket, Key="shared/c/in/payroll", Body=b"12345")
    chmod(carol, open_bucket, "shared/c/", mode)
    usage = f"/v1/ns/{open_bucket}/usage/shared/"
    found = bob.insist("GET", usage + "?depth=2").body
    assert [below["path"] for below in found["below"]] == [f"shared/{path}" for path in shown]
    assert (found["objects"], found["bytes"]) == (1, 5), "all are counted"
    assert bob.call("GET", usage + "c/").status == (200 if shown else 403), "as each of them by itself"
