"""ListObjectsV2 and the native listing: exact key order, pages, prefixes, delimiters."""

import pytest

from tests.support.rest import Refused

from .trees import children, in_order

KEYS = [
    "a",
    "a-/x",
    "a.b",
    "a.b/",  # replaced below where a file has that name
    "ab/c/d",
    "b/",
    "b0",
    "b/1",
    "b/10",
    "b/2",
    "c d/e f+g%h",
    "ø/å",
    "öl",
    "日本/語.txt",
    "zz/𝄞",
    "zz/\ue000",  # after the surrogates in UTF-16, before U+1D11E in UTF-8
    "!bang",
    "~tilde",
]
KEYS.remove("a.b/")


@pytest.fixture
def filled(bucket, s3, rest) -> str:
    for key in KEYS:
        if key.endswith("/"):
            rest.mkdir(bucket, key)
        else:
            s3.put_object(Bucket=bucket, Key=key, Body=key.encode())
    return bucket


def pages(s3, **arguments):
    return s3.get_paginator("list_objects_v2").paginate(**arguments)


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
def test_keys_come_in_byte_order_whatever_the_page_size(filled, s3, size):
    got = [
        entry["Key"]
        for page in pages(s3, Bucket=filled, PaginationConfig={"PageSize": size})
        for entry in page.get("Contents", [])
    ]
    assert got == in_order(KEYS)


@pytest.mark.parametrize("size", [1, 2, 1000])
def test_delimiter_folds_directories(filled, s3, size):
    for prefix in ["", "a", "ab/", "b", "b/", "b/1", "c d/", "zz/", "ø", "nothing/", "b/1/"]:
        assert folded(s3, filled, prefix, size) == folded_by_hand(prefix), prefix


def folded(s3, filled, prefix: str, size: int) -> list[str]:
    got: list[str] = []
    for page in pages(s3, Bucket=filled, Prefix=prefix, Delimiter="/", PaginationConfig={"PageSize": size}):
        rows = [(entry["Prefix"]) for entry in page.get("CommonPrefixes", [])] + [
            entry["Key"] for entry in page.get("Contents", [])
        ]
        assert len(rows) <= size
        got += in_order(rows)
    return got


def folded_by_hand(prefix: str) -> list[str]:
    wanted = set()
    for key in KEYS:
        if key.startswith(prefix):
            name, slash, _ = key[len(prefix) :].partition("/")
            wanted.add(prefix + name + slash)
    return in_order(wanted)


def test_start_after_may_name_nothing(filled, s3):
    for after in ["", "a", "a/", "b/", "b/1", "b/1/zzz", "not there", "zzzz", "日"]:
        page = s3.list_objects_v2(Bucket=filled, StartAfter=after)
        wanted = [key for key in in_order(KEYS) if key.encode() > after.encode()]
        assert [entry["Key"] for entry in page.get("Contents", [])] == wanted, after


def test_the_native_listing_agrees(filled, rest, sql):
    for path in ("", "b/", "zz/"):
        wanted = children(KEYS, path)
        for limit in (1, 2, 1000):
            assert rest.list(filled, path, limit=limit) == wanted
        assert [row[0] for row in sql.execute("SELECT name FROM mantle.ls(%s, %s)", (filled, path))] == wanted


def test_listing_a_missing_directory(filled, rest, s3):
    with pytest.raises(Refused) as refused:
        rest.list(filled, "missing/")
    assert (refused.value.status, refused.value.code) == (404, "not_found")
    assert s3.list_objects_v2(Bucket=filled, Prefix="missing/")["KeyCount"] == 0


def test_max_keys_zero_and_over_the_limit(filled, s3):
    assert s3.list_objects_v2(Bucket=filled, MaxKeys=0)["KeyCount"] == 0
    assert s3.list_objects_v2(Bucket=filled, MaxKeys=5000)["KeyCount"] == len(KEYS)


def test_encoding_type_url(filled, s3):
    keys = [
        entry["Key"] for entry in s3.list_objects_v2(Bucket=filled, EncodingType="url", Prefix="c").get("Contents", [])
    ]
    assert keys == ["c%20d/e%20f%2Bg%25h"] or keys == ["c+d/e+f%2Bg%25h"]
