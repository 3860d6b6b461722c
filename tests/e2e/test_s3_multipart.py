"""Multipart uploads: what S3 promises of them, and what a crash leaves."""

import base64
import hashlib
import os
import uuid
import zlib

import pytest

from tests.support.s3_wire import code

from .uploads import PART, begin, complete, etag_of, files, pieces, put, refused


def test_an_object_in_parts(s3, bucket, stack):
    bodies = pieces(PART, PART + 1, 7)
    upload = begin(s3, bucket, ContentType="text/plain", Metadata={"colour": "blue"}, CacheControl="no-store")
    parts = put(s3, upload, bodies)
    before = files(stack)
    assert refused(s3.head_object, Bucket=bucket, Key="a/b/k")[1] == 404
    result = complete(s3, upload, parts)
    assert files(stack) == before, "completing copies no bytes"
    assert result["ETag"] == etag_of(bodies)
    found, whole = s3.get_object(Bucket=bucket, Key="a/b/k"), b"".join(bodies)
    assert found["Body"].read() == whole
    assert (found["ETag"], found["ContentLength"]) == (etag_of(bodies), len(whole))
    assert (found["ContentType"], found["Metadata"], found["CacheControl"]) == (
        "text/plain",
        {"colour": "blue"},
        "no-store",
    )
    listed = s3.list_objects_v2(Bucket=bucket, Prefix="a/")["Contents"][0]
    assert (listed["ETag"], listed["Size"]) == (etag_of(bodies), len(whole))
    for first, last in (
        (0, 0),
        (PART - 1, PART),
        (PART, 2 * PART),
        (2 * PART, 2 * PART + 7),
        (len(whole) - 3, len(whole) + 9),
    ):
        found = s3.get_object(Bucket=bucket, Key="a/b/k", Range=f"bytes={first}-{last}")
        assert found["Body"].read() == whole[first : last + 1], (first, last)
    assert refused(s3.list_parts, **upload) == ("NoSuchUpload", 404)


def test_a_part_of_an_object(s3, bucket):
    bodies = pieces(PART, PART, 3)
    upload = begin(s3, bucket)
    complete(s3, upload, put(s3, upload, bodies))
    place = {"Bucket": bucket, "Key": "a/b/k"}
    first = 0
    for number, body in enumerate(bodies, 1):
        for call in (s3.head_object, s3.get_object):
            found = call(**place, PartNumber=number)
            assert found["PartsCount"] == 3 and found["ContentLength"] == len(body)
            assert found["ResponseMetadata"]["HTTPStatusCode"] == 206
            assert found["ContentRange"] == f"bytes {first}-{first + len(body) - 1}/{2 * PART + 3}"
        assert found["Body"].read() == body
        first += len(body)
    assert refused(s3.get_object, **place, PartNumber=4) == ("InvalidPartNumber", 416)
    attributes = s3.get_object_attributes(**place, ObjectAttributes=["ObjectParts", "ETag"])["ObjectParts"]
    assert attributes["TotalPartsCount"] == 3
    assert [(part["PartNumber"], part["Size"]) for part in attributes["Parts"]] == [(1, PART), (2, PART), (3, 3)]
    page = s3.get_object_attributes(**place, ObjectAttributes=["ObjectParts"], MaxParts=1, PartNumberMarker=1)
    assert [part["PartNumber"] for part in page["ObjectParts"]["Parts"]] == [2]
    assert page["ObjectParts"]["IsTruncated"] and page["ObjectParts"]["NextPartNumberMarker"] == 2


def test_parts_may_be_replaced_left_out_and_come_in_any_order(s3, bucket, stack):
    bodies = pieces(PART, PART, 9)
    upload = begin(s3, bucket)
    s3.upload_part(**upload, PartNumber=700, Body=bodies[2])
    s3.upload_part(**upload, PartNumber=5, Body=b"left out")
    s3.upload_part(**upload, PartNumber=2, Body=b"replaced")
    before = len(files(stack))
    s3.upload_part(**upload, PartNumber=2, Body=bodies[0])
    assert len(files(stack)) == before, "replaced bytes are removed"
    s3.upload_part(**upload, PartNumber=30, Body=bodies[1])
    numbers = [2, 30, 700]
    parts = [
        {"PartNumber": number, "ETag": hashlib.md5(body).hexdigest()}
        for number, body in zip(numbers, bodies, strict=True)
    ]
    complete(s3, upload, parts)
    assert len(files(stack)) == before, "and so are those that were left out"
    assert s3.get_object(Bucket=bucket, Key="a/b/k")["Body"].read() == b"".join(bodies)
    assert s3.get_object(Bucket=bucket, Key="a/b/k", PartNumber=30)["Body"].read() == bodies[1]


def test_what_complete_refuses_leaves_the_upload(s3, bucket):
    bodies = pieces(PART - 1, PART, 1)
    upload = begin(s3, bucket)
    small, large, last = put(s3, upload, bodies)
    wrong = {"PartNumber": 2, "ETag": small["ETag"]}
    absent = {"PartNumber": 9, "ETag": small["ETag"]}
    for parts, error in (
        ([small, large], "EntityTooSmall"),
        ([large, small], "InvalidPartOrder"),
        ([large, large], "InvalidPartOrder"),
        ([wrong], "InvalidPart"),
        ([large, absent], "InvalidPart"),
        ([], "MalformedXML"),
    ):
        assert refused(complete, s3, upload, parts) == (error, 400), parts
    s3.put_object(Bucket=bucket, Key="a/b/k", Body=b"there")
    assert refused(complete, s3, upload, [large, last], IfNoneMatch="*") == ("PreconditionFailed", 412)
    assert refused(complete, s3, upload, [large, last], IfMatch='"x"') == ("PreconditionFailed", 412)
    assert s3.get_object(Bucket=bucket, Key="a/b/k")["Body"].read() == b"there"
    # A condition that did not hold leaves all parts: others may be chosen now, and more may come.
    s3.upload_part(**upload, PartNumber=4, Body=b"more")
    etag = complete(s3, upload, [large, {"PartNumber": 4, "ETag": hashlib.md5(b"more").hexdigest()}])["ETag"]
    assert s3.get_object(Bucket=bucket, Key="a/b/k", IfMatch=etag)["Body"].read() == bodies[1] + b"more"


def test_a_repeated_complete_answers_the_same(s3, bucket):
    upload = begin(s3, bucket)
    parts = put(s3, upload, pieces(PART, 1))
    first = complete(s3, upload, parts)
    s3.put_object(Bucket=bucket, Key="a/b/k", Body=b"newer")
    again = complete(s3, upload, parts)
    assert [again[name] for name in ("ETag", "Key", "Bucket")] == [first[name] for name in ("ETag", "Key", "Bucket")]
    assert s3.get_object(Bucket=bucket, Key="a/b/k")["Body"].read() == b"newer"
    assert refused(complete, s3, upload, parts[1:]) == ("NoSuchUpload", 404)
    assert refused(s3.upload_part, **upload, PartNumber=1, Body=b"late") == ("NoSuchUpload", 404)
    assert refused(s3.abort_multipart_upload, **upload) == ("NoSuchUpload", 404)


def test_abort_removes_the_parts(s3, bucket, stack):
    before = files(stack)
    upload = begin(s3, bucket)
    parts = put(s3, upload, pieces(PART, 1))
    s3.abort_multipart_upload(**upload)
    assert files(stack) == before
    for call in (s3.list_parts, s3.abort_multipart_upload):
        assert refused(call, **upload) == ("NoSuchUpload", 404)
    assert refused(complete, s3, upload, parts) == ("NoSuchUpload", 404)
    assert "Uploads" not in s3.list_multipart_uploads(Bucket=bucket)


def test_uploads_are_found_by_bucket_key_and_id(s3, bucket, rest):
    upload = begin(s3, bucket)
    other = f"{bucket}-other"
    s3.create_bucket(Bucket=other)
    for wrong in (
        {"Key": "other"},
        {"Bucket": other},
        {"UploadId": "0" * 16},
        {"UploadId": "x"},
        {"Bucket": other, "Key": "x"},
    ):
        assert refused(s3.list_parts, **(upload | wrong)) == ("NoSuchUpload", 404), wrong
    assert refused(s3.list_parts, **(upload | {"Bucket": "no-such-bucket-at-all"})) == ("NoSuchBucket", 404)
    for number in (0, 10_001):
        assert refused(s3.upload_part, **upload, PartNumber=number, Body=b"") == ("InvalidArgument", 400)


def test_parts_are_listed_in_pages(s3, bucket):
    bodies = pieces(3, 1, 4)
    upload = begin(s3, bucket)
    parts = put(s3, upload, bodies)
    page = s3.list_parts(**upload, MaxParts=2)
    assert [(p["PartNumber"], p["Size"], p["ETag"]) for p in page["Parts"]] == [
        (1, 3, parts[0]["ETag"]),
        (2, 1, parts[1]["ETag"]),
    ]
    assert page["IsTruncated"] and page["NextPartNumberMarker"] == 2 and page["MaxParts"] == 2
    rest_of_them = s3.list_parts(**upload, PartNumberMarker=2)
    assert [p["PartNumber"] for p in rest_of_them["Parts"]] == [3] and not rest_of_them["IsTruncated"]
    assert rest_of_them["StorageClass"] == "STANDARD" and rest_of_them["Owner"]["ID"] == rest_of_them["Initiator"]["ID"]


def test_uploads_are_listed_as_objects_are(s3, bucket):
    keys = ["a", "a", "b/1", "b/2", "c", "d/e/1", "z"]
    ids = [begin(s3, bucket, key)["UploadId"] for key in keys]
    listed = s3.list_multipart_uploads(Bucket=bucket)
    assert [(u["Key"], u["UploadId"]) for u in listed["Uploads"]] == list(zip(keys, ids, strict=True))
    folded = s3.list_multipart_uploads(Bucket=bucket, Delimiter="/")
    assert [u["Key"] for u in folded["Uploads"]] == ["a", "a", "c", "z"]
    assert [p["Prefix"] for p in folded["CommonPrefixes"]] == ["b/", "d/"]
    below = s3.list_multipart_uploads(Bucket=bucket, Prefix="b/", Delimiter="/")
    assert [u["Key"] for u in below["Uploads"]] == ["b/1", "b/2"]
    for delimiter in ("", "/"):
        found, markers = [], {}
        while True:
            page = s3.list_multipart_uploads(Bucket=bucket, MaxUploads=1, Delimiter=delimiter, **markers)
            found += [u["UploadId"] for u in page.get("Uploads", [])] + [
                p["Prefix"] for p in page.get("CommonPrefixes", [])
            ]
            if not page["IsTruncated"]:
                break
            markers = {"KeyMarker": page["NextKeyMarker"]}
            if page.get("NextUploadIdMarker"):
                markers["UploadIdMarker"] = page["NextUploadIdMarker"]
        assert found == (ids if not delimiter else [ids[0], ids[1], "b/", ids[4], "d/", ids[6]]), delimiter
    after = s3.list_multipart_uploads(Bucket=bucket, KeyMarker="a", UploadIdMarker=ids[0])
    assert [u["UploadId"] for u in after["Uploads"]] == ids[1:]


def test_a_part_may_be_copied(s3, bucket, stack):
    source = os.urandom(PART + 100)
    s3.put_object(Bucket=bucket, Key="s", Body=source)
    in_parts = begin(s3, bucket, "in parts")
    bodies = pieces(PART, PART, 5)
    complete(s3, in_parts, put(s3, in_parts, bodies))
    upload = begin(s3, bucket)
    before = files(stack)
    copies = [
        ({"Key": "s"}, None, source),
        ({"Key": "in parts"}, (PART - 10, 2 * PART + 1), b"".join(bodies)[PART - 10 : 2 * PART + 2]),
        ({"Key": "s"}, (3, 5), source[3:6]),
    ]
    parts = []
    for number, (place, bounds, wanted) in enumerate(copies, 1):
        given = {} if bounds is None else {"CopySourceRange": f"bytes={bounds[0]}-{bounds[1]}"}
        result = s3.upload_part_copy(**upload, PartNumber=number, CopySource={"Bucket": bucket, **place}, **given)
        etag = result["CopyPartResult"]["ETag"]
        assert etag == f'"{hashlib.md5(wanted).hexdigest()}"'
        parts.append({"PartNumber": number, "ETag": etag})
    assert files(stack) == before, "a copied part uses the bytes of its source"
    complete(s3, upload, parts)
    for key in ("s", "in parts"):
        s3.delete_object(Bucket=bucket, Key=key)
    assert s3.get_object(Bucket=bucket, Key="a/b/k")["Body"].read() == b"".join(wanted for _, _, wanted in copies)
    again = begin(s3, bucket, "again")
    copied = s3.upload_part_copy(**again, PartNumber=1, CopySource={"Bucket": bucket, "Key": "a/b/k"})["CopyPartResult"]
    complete(s3, again, [{"PartNumber": 1, "ETag": copied["ETag"]}])
    s3.delete_object(Bucket=bucket, Key="a/b/k")
    assert s3.get_object(Bucket=bucket, Key="again")["Body"].read() == b"".join(wanted for _, _, wanted in copies)


def test_what_a_copied_part_refuses(s3, bucket):
    s3.put_object(Bucket=bucket, Key="s", Body=b"0123456789")
    etag = s3.head_object(Bucket=bucket, Key="s")["ETag"]
    upload = begin(s3, bucket)
    copy = lambda **given: s3.upload_part_copy(
        **upload, PartNumber=1, CopySource={"Bucket": bucket, "Key": "s"}, **given
    )
    for bounds in ("0-3", "bytes=0-", "bytes=-3", "bytes=5-3", "bytes=x-3"):
        assert refused(copy, CopySourceRange=bounds) == ("InvalidArgument", 400), bounds
    for bounds in ("bytes=0-10", "bytes=10-11"):
        assert refused(copy, CopySourceRange=bounds) == ("InvalidRange", 416), bounds
    assert refused(copy, CopySourceIfMatch='"x"') == ("PreconditionFailed", 412)
    assert refused(copy, CopySourceIfNoneMatch=etag) == ("PreconditionFailed", 412)
    absent = {"Bucket": bucket, "Key": "absent"}
    assert refused(s3.upload_part_copy, **upload, PartNumber=1, CopySource=absent) == ("NoSuchKey", 404)
    assert "Parts" not in s3.list_parts(**upload)
    copy(CopySourceRange="bytes=0-9", CopySourceIfMatch=etag)


def crc32(body: bytes) -> str:
    return base64.b64encode(zlib.crc32(body).to_bytes(4, "big")).decode()


def test_checksums_of_parts_and_of_the_whole(s3, bucket):
    bodies = pieces(PART, 77)
    whole = b"".join(bodies)
    for kind in ("FULL_OBJECT", "COMPOSITE"):
        upload = begin(s3, bucket, kind, ChecksumAlgorithm="CRC32", ChecksumType=kind)
        parts = []
        for number, body in enumerate(bodies, 1):
            made = s3.upload_part(**upload, PartNumber=number, Body=body, ChecksumAlgorithm="CRC32")
            assert made["ChecksumCRC32"] == crc32(body)
            parts.append({"PartNumber": number, "ETag": made["ETag"], "ChecksumCRC32": made["ChecksumCRC32"]})
        listed = s3.list_parts(**upload)
        assert (listed["ChecksumAlgorithm"], listed["ChecksumType"]) == ("CRC32", kind)
        assert [part["ChecksumCRC32"] for part in listed["Parts"]] == [crc32(body) for body in bodies]
        digests = b"".join(zlib.crc32(body).to_bytes(4, "big") for body in bodies)
        wanted = crc32(whole) if kind == "FULL_OBJECT" else f"{crc32(digests)}-2"
        wrong = [parts[0] | {"ChecksumCRC32": "AAAAAA=="}, parts[1]]
        assert refused(complete, s3, upload, wrong) == ("InvalidPart", 400)
        assert refused(complete, s3, upload, parts, ChecksumCRC32="AAAAAA==") == ("BadDigest", 400)
        other = [parts[0] | {"ChecksumSHA1": "AAAAAAAAAAAAAAAAAAAAAAAAAAA="}, parts[1]]
        assert refused(complete, s3, upload, other) == ("InvalidArgument", 400), "two checksums of a part"
        del other[0]["ChecksumCRC32"]
        assert refused(complete, s3, upload, other) == ("BadDigest", 400), "a checksum of another algorithm"
        malformed = [parts[0] | {"ChecksumCRC32": "crc"}, parts[1]]
        assert refused(complete, s3, upload, malformed) == ("InvalidArgument", 400)
        for given in (
            {"MpuObjectSize": 1},
            {"ChecksumCRC32": "crc"},
            {"ChecksumCRC32": f"{wanted.split('-')[0]}-x"},
            {"ChecksumType": "COMPOSITE" if kind == "FULL_OBJECT" else "FULL_OBJECT"},
        ):
            assert refused(complete, s3, upload, parts, **given) == ("InvalidRequest", 400), given
        made = complete(s3, upload, parts, ChecksumCRC32=wanted, MpuObjectSize=len(whole))
        assert (made["ChecksumCRC32"], made["ChecksumType"]) == (wanted, kind)
        found = s3.head_object(Bucket=bucket, Key=kind, ChecksumMode="ENABLED")
        assert (found["ChecksumCRC32"], found["ChecksumType"]) == (wanted, kind)
        kept = s3.get_object_attributes(Bucket=bucket, Key=kind, ObjectAttributes=["Checksum"])["Checksum"]
        assert (kept["ChecksumCRC32"], kept["ChecksumType"]) == (wanted, kind)
    upload = begin(s3, bucket, "sha", ChecksumAlgorithm="SHA256")
    assert refused(s3.upload_part, **upload, PartNumber=1, Body=b"", ChecksumAlgorithm="CRC32") == (
        "InvalidRequest",
        400,
    )
    for given in ({"ChecksumAlgorithm": "SHA256", "ChecksumType": "FULL_OBJECT"}, {"ChecksumType": "COMPOSITE"}):
        assert refused(s3.create_multipart_upload, Bucket=bucket, Key="k", **given) == ("InvalidRequest", 400)


@pytest.mark.parametrize(
    ("algorithm", "value"),
    [
        ("SHA512", base64.b64encode(hashlib.sha512(b"abc").digest()).decode()),
        ("MD5", base64.b64encode(hashlib.md5(b"abc").digest()).decode()),
        ("XXHASH64", "RLws9a13CZk="),
    ],
)
def test_newer_checksums_are_named_in_documents(s3, bucket, wire, algorithm, value):
    upload = begin(s3, bucket, "k", ChecksumAlgorithm=algorithm)["UploadId"]
    target, element = f"/{bucket}/k", f"<Checksum{algorithm}>"
    place = f"{target}?partNumber={{}}&uploadId={upload}"
    part = wire.call("PUT", place.format(1), b"abc")
    given = part.headers[f"x-amz-checksum-{algorithm.lower()}"]
    assert given == value
    source = f"/{bucket}/source"
    wire.call("PUT", source, b"abc")
    copied = wire.call("PUT", place.format(2), headers={"x-amz-copy-source": source}).text
    listed = wire.call("GET", f"{target}?uploadId={upload}").text
    document = f"<CompleteMultipartUpload><Part><PartNumber>1</PartNumber><ETag>{part.headers['etag']}</ETag></Part>"
    made = wire.call("POST", f"{target}?uploadId={upload}", f"{document}</CompleteMultipartUpload>".encode()).text
    attributes = {"x-amz-object-attributes": "Checksum,ObjectParts"}
    attributes = wire.call("GET", f"{target}?attributes", headers=attributes).text
    for text, count in ((copied, 1), (listed, 2), (made, 1), (attributes, 2)):
        assert text.count(element) == count, text
        assert "ChecksumCRC32" not in text
    assert f"{element}{value}<" in listed and f"{element}{value}<" in attributes


def test_a_part_that_does_not_arrive_whole_is_not_there(s3, bucket, wire, stack):
    upload = begin(s3, bucket)
    before = files(stack)
    target = f"/{bucket}/a/b/k?partNumber=1&uploadId={upload['UploadId']}"
    answer = wire.call(
        "PUT", target, b"bytes", {"content-md5": base64.b64encode(hashlib.md5(b"other").digest()).decode()}
    )
    assert code(answer) == "BadDigest"
    assert code(wire.call("PUT", f"/{bucket}/a/b/k?uploadId={upload['UploadId']}", b"bytes")) == "InvalidArgument"
    assert files(stack) == before and "Parts" not in s3.list_parts(**upload)
    assert refused(s3.head_object, Bucket=bucket, Key="a/b/k")[1] == 404


def test_a_copy_shares_the_manifest(s3, bucket):
    bodies = pieces(PART, 10)
    upload = begin(s3, bucket)
    etag = complete(s3, upload, put(s3, upload, bodies))["ETag"]
    s3.copy_object(Bucket=bucket, Key="copy", CopySource={"Bucket": bucket, "Key": "a/b/k"})
    s3.delete_object(Bucket=bucket, Key="a/b/k")
    found = s3.get_object(Bucket=bucket, Key="copy")
    assert (found["Body"].read(), found["ETag"]) == (b"".join(bodies), etag)
    assert s3.head_object(Bucket=bucket, Key="copy", PartNumber=2)["ContentLength"] == 10


def test_an_upload_outlives_its_directory(s3, bucket, rest):
    """The directory is renamed and made again; the object appears under the key that was asked for."""
    s3.put_object(Bucket=bucket, Key="a/b/other", Body=b"1")
    upload = begin(s3, bucket)
    parts = put(s3, upload, pieces(PART, 1))
    rest.rename(bucket, "a/", "moved/")
    complete(s3, upload, parts)
    assert s3.head_object(Bucket=bucket, Key="a/b/k")["ContentLength"] == PART + 1
    assert refused(s3.head_object, Bucket=bucket, Key="moved/b/k")[1] == 404


def test_a_bucket_goes_with_its_uploads(s3, bucket, rest):
    upload = begin(s3, bucket, "k")
    parts = put(s3, upload, pieces(5))
    usage = rest.insist("GET", f"/v1/ns/{bucket}/usage/?depth=1").body
    assert usage["unfinished_uploads"] == 1 and usage["unfinished_upload_bytes"] == 5
    s3.delete_bucket(Bucket=bucket)
    assert refused(complete, s3, upload, parts) == ("NoSuchBucket", 404)
    s3.create_bucket(Bucket=bucket)
    assert refused(complete, s3, upload, parts) == ("NoSuchUpload", 404)
    assert "Uploads" not in s3.list_multipart_uploads(Bucket=bucket)


def test_an_object_may_be_one_empty_part(s3, bucket):
    upload = begin(s3, bucket, f"empty-{uuid.uuid4()}")
    complete(s3, upload, put(s3, upload, [b""]))
    found = s3.get_object(Bucket=bucket, Key=upload["Key"])
    assert (found["Body"].read(), found["ContentLength"], found["ETag"]) == (b"", 0, etag_of([b""]))
