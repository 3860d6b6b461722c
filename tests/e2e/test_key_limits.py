"""A rename of a directory leaves every key below it within the limits of a key, or is refused."""

import os
import random
from urllib.parse import quote

import pytest

from tests.support.rest import Refused

from . import import_command
from .uploads import refused

LEVELS_MAX, BYTES_MAX = 128, 1024
ROUNDS = 60
# So many below a directory are not read as a matter of course.
ENTRIES = 1000
# Beside these, what a namespace permits at first is little.
LONG = "n" * 195


def keys(s3, bucket: str) -> list[str]:
    pages = s3.get_paginator("list_objects_v2").paginate(Bucket=bucket)
    return [entry["Key"] for page in pages for entry in page.get("Contents", [])]


def assert_addressable(wire, s3, bucket: str) -> None:
    for key in keys(s3, bucket):
        assert wire.exists(f"/{bucket}/{quote(key)}"), key


def measured(stack) -> float:
    """How often entries below a directory were read."""
    return stack.gateway.metrics().get('mantle_gateway_sql_seconds_count{statement="names_below"}', 0)


def releases(stack) -> float:
    """How often a rename's lock was released because the rename did not happen."""
    return stack.gateway.metrics().get('mantle_gateway_index_seconds_count{call="release_rename"}', 0)


def bound(sql, bucket: str) -> tuple[int, int]:
    query = "SELECT key_levels + moved_levels, key_bytes + moved_bytes FROM mantle.namespaces WHERE name = %s"
    return sql.execute(query, (bucket,)).fetchone()


def chain(name: str, levels: int) -> str:
    return "/".join([name] * levels)


@pytest.mark.parametrize(
    ("name", "levels", "code"), [("s", 100, "path_too_deep"), (LONG, 4, "key_too_long")], ids=["levels", "bytes"]
)
@pytest.mark.parametrize("by", ["rest", "s3"])
def test_keys_would_become_too_large(wire, s3, rest, bucket, name, levels, code, by):
    for top in "ab":
        s3.put_object(Bucket=bucket, Key=f"{top}/{chain(name, levels - 1)}/object", Body=b"1")
    source, destination = "a/", f"b/{chain(name, levels - 1)}/moved/"
    before = keys(s3, bucket)
    if by == "rest":
        with pytest.raises(Refused) as caught:
            rest.rename(bucket, source, destination)
        assert (caught.value.status, caught.value.code) == (400, code)
    else:
        renamed = {"Bucket": bucket, "Key": destination, "RenameSource": f"/{bucket}/{source}"}
        assert refused(s3.rename_object, **renamed) == ("KeyTooLongError", 400)
    assert keys(s3, bucket) == before
    assert_addressable(wire, s3, bucket)
    rest.rename(bucket, source, "c/")  # nothing is locked


@pytest.mark.parametrize(("above", "fits"), [(2, True), (3, False)], ids=["the largest", "one too large"])
@pytest.mark.parametrize("of", ["object", "directory"])
def test_the_limit_is_exact_in_components(wire, s3, rest, bucket, above, fits, of):
    """What moves has 125 components below it; the largest key has 128 or 129 afterwards."""
    ending = "/" if of == "directory" else ""
    s3.put_object(Bucket=bucket, Key=f"a/{chain('s', 125)}{ending}", Body=b"")
    s3.put_object(Bucket=bucket, Key=f"{chain('t', above)}/x", Body=b"")
    rename = (bucket, "a/", f"{chain('t', above)}/a/")
    if fits:
        rest.rename(*rename)
    else:
        with pytest.raises(Refused, match="path_too_deep"):
            rest.rename(*rename)
    assert_addressable(wire, s3, bucket)


@pytest.mark.parametrize(("length", "fits"), [(199, True), (200, False)], ids=["the largest", "one too large"])
@pytest.mark.parametrize("of", ["object", "directory"])
def test_the_limit_is_exact_in_bytes(wire, s3, rest, bucket, length, fits, of):
    ending = "/" if of == "directory" else ""
    below = "/".join(["b" * 200] * 4) + "/" + "l" * (20 - len(ending)) + ending  # 824 bytes
    s3.put_object(Bucket=bucket, Key=f"a/{below}", Body=b"")
    rename = (bucket, "a/", "d" * length + "/")
    if fits:
        rest.rename(*rename)
        assert max(len(key) for key in keys(s3, bucket)) == BYTES_MAX
    else:
        with pytest.raises(Refused, match="key_too_long"):
            rest.rename(*rename)
    assert_addressable(wire, s3, bucket)


def test_renames_of_small_directories_use_nothing_up(stack, s3, rest, sql, bucket):
    """However often they are moved to a longer path, a rename reads no more than before."""
    s3.put_object(Bucket=bucket, Key="a/x/k", Body=b"")
    s3.put_object(Bucket=bucket, Key="b/k", Body=b"")
    before, read, released = bound(sql, bucket), measured(stack), releases(stack)
    for _ in range(LEVELS_MAX + 1):
        rest.rename(bucket, "a/", "b/a/")
        rest.rename(bucket, "b/a/", "a/")
    assert bound(sql, bucket) == before
    assert measured(stack) == read and releases(stack) == released


def test_a_measured_directory_counts_in_the_bound(s3, rest, sql, bucket):
    """A large directory that it is in later is not read."""
    s3.put_object(Bucket=bucket, Key=f"a/{chain('s', 10)}/k", Body=b"")
    s3.put_object(Bucket=bucket, Key=f"{chain('t', 15)}/k", Body=b"")
    rest.rename(bucket, "a/", f"{chain('t', 15)}/a/")
    (key,) = (key for key in keys(s3, bucket) if "s" in key)
    levels, size = bound(sql, bucket)
    assert key.count("/") + 1 <= levels and len(key) <= size


def test_many_entries_are_read_only_when_the_keys_may_become_too_large(stack, s3, rest, sql, bucket, tmp_path):
    listing, names = tmp_path / "listing", [f"k{number:04}" for number in range(ENTRIES)]
    listing.write_text("".join(f"a/{name}\n" for name in names), encoding="utf-8")
    import_command.whole(stack, bucket, listing)
    s3.put_object(Bucket=bucket, Key="b/k", Body=b"")
    before, at = measured(stack), "a/"
    while bound(sql, bucket)[0] < LEVELS_MAX:
        for to in ("b/a/", "a/"):
            rest.rename(bucket, at, to)
            at = to
    assert measured(stack) == before
    rest.rename(bucket, "a/", "b/a/")
    assert measured(stack) > before
    assert keys(s3, bucket) == [*(f"b/a/{name}" for name in names), "b/k"]
    read = measured(stack)
    rest.rename(bucket, "b/a/", "a/")  # makes no key larger
    assert measured(stack) == read
    # From now on the directory is measured first, and locked once.
    released = releases(stack)
    rest.rename(bucket, "a/", "b/a/")
    assert measured(stack) > read and releases(stack) == released


def test_imported_keys_count(stack, rest, s3, bucket, tmp_path):
    listing = tmp_path / "listing"
    listing.write_text(f"a/{chain('s', 120)}/k\nb/{chain('t', 9)}/k\n", encoding="utf-8")
    import_command.whole(stack, bucket, listing)
    with pytest.raises(Refused, match="path_too_deep"):
        rest.rename(bucket, "a/", f"b/{chain('t', 9)}/a/")


@pytest.mark.parametrize("of", ["levels", "bytes"])
def test_random_renames_near_the_limit(stack, wire, s3, rest, sql, bucket, of):
    """MANTLE_KEY_LIMITS_SEED repeats the choices."""
    seed = os.environ.get("MANTLE_KEY_LIMITS_SEED", os.urandom(4).hex())
    choose = random.Random(f"{seed}/{of}")
    names = ["s", "t"] if of == "levels" else ["n" * 240, "m" * 200, "o"]
    depth = 100 if of == "levels" else 4
    done = 0
    for _ in range(ROUNDS):
        directories = sorted({key[: at + 1] for key in keys(s3, bucket) for at in range(len(key)) if key[at] == "/"})
        if len(directories) < 2 or choose.random() < 0.3:
            key = "/".join(choose.choices(names, k=choose.randint(1, depth))) + "/k"
            s3.put_object(Bucket=bucket, Key=key, Body=b"")
            continue
        source = choose.choice(directories)
        into = choose.choice(["", *(d for d in directories if not d.startswith(source))])
        try:
            rest.rename(bucket, source, f"{into}{choose.choice(names)}{choose.randrange(1000)}/")
            done += 1
        except Refused as refusal:
            assert refusal.code in ("path_too_deep", "key_too_long"), (seed, refusal)
    assert done, seed
    assert_addressable(wire, s3, bucket)
    levels, size = bound(sql, bucket)
    assert all(key.count("/") + 1 <= levels and len(key) <= size for key in keys(s3, bucket)), seed
