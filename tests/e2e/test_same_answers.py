"""S3, the native API and SQL agree about a tree, also right after the rename of a directory with tens of thousands of
subdirectories.
"""

import time
import uuid

import pytest

from stack import secret

from . import import_command
from .trees import children, directories, documents, in_order, write_listing

PACKAGES = 30_000
MOVED_BOUND_S = 2.0


@pytest.fixture(scope="module")
def tree() -> list[str]:
    return documents(PACKAGES)


@pytest.fixture(scope="module")
def loaded(stack, tree, tmp_path_factory) -> str:
    """A namespace with the tree, for all tests of this file; the test that moves it comes last."""
    ns = f"t-{uuid.uuid4().hex[:12]}"
    stack.gateway.create_namespace(ns, secret.read(stack.layout, "token"))
    rows = import_command.whole(stack, ns, write_listing(tmp_path_factory.mktemp("tree") / "tree.list", tree))
    assert {row.code for row in rows} == {"not_ascii"}
    return ns


def s3_keys(s3, ns: str, prefix: str) -> list[str]:
    pages = s3.get_paginator("list_objects_v2").paginate(Bucket=ns, Prefix=prefix)
    return [entry["Key"] for page in pages for entry in page.get("Contents", [])]


def s3_children(s3, ns: str, path: str) -> list[str]:
    """As `aws s3 ls` lists: with a delimiter."""
    names: list[str] = []
    for page in s3.get_paginator("list_objects_v2").paginate(Bucket=ns, Prefix=path, Delimiter="/"):
        names += [entry["Prefix"] for entry in page.get("CommonPrefixes", [])]
        names += [entry["Key"] for entry in page.get("Contents", [])]
    return [name[len(path) :] for name in in_order(names) if name != path]


def sql_children(sql, ns: str, path: str) -> list[str]:
    return [row[0] for row in sql.execute("SELECT name FROM mantle.ls(%s, %s)", (ns, path)).fetchall()]


def assert_all_agree(ns: str, keys: list[str], path: str, s3, rest, sql) -> None:
    wanted = children(keys, path)
    assert s3_children(s3, ns, path) == wanted
    assert rest.list(ns, path) == wanted
    assert sql_children(sql, ns, path) == wanted
    below = in_order(key for key in keys if key.startswith(path))
    assert s3_keys(s3, ns, path) == below
    objects, folders, _bytes = sql.execute(
        "SELECT objects, directories, bytes FROM mantle.du(%s, %s)", (ns, path)
    ).fetchone()
    assert (objects, folders) == (len(below), len([d for d in directories(below) if d.startswith(path) and d != path]))


def test_paths_of_ids_lead_back(loaded, tree, sql, rest):
    path = next(key for key in tree if "/examples/" in key).rpartition("/")[0] + "/"
    identity = rest.stat(loaded, path)["id"]
    assert sql.execute("SELECT mantle.path_of(%s, %s)", (loaded, identity)).fetchone()[0].strip("/") == path.strip("/")


def test_a_page_costs_the_same_at_both_ends(loaded, tree, s3):
    """The first and the last page of ListObjectsV2, the fastest of several tries each."""
    keys = in_order(tree)

    def cost(after: str) -> float:
        tries = []
        for _ in range(15):
            began = time.perf_counter()
            page = s3.list_objects_v2(Bucket=loaded, StartAfter=after, MaxKeys=200)
            tries.append(time.perf_counter() - began)
            assert page["KeyCount"] == 200
        return min(tries)

    first, last = cost(keys[0]), cost(keys[-202])
    assert last < 3 * first + 0.002, f"first page {first * 1e3:.1f} ms, last page {last * 1e3:.1f} ms"


def test_listings_agree_before_and_after_a_rename_of_everything(loaded, tree, s3, rest, sql):
    assert_all_agree(loaded, tree, "usr/share/doc/", s3, rest, sql)
    identity = rest.stat(loaded, "usr/share/doc/")["id"]

    began = time.monotonic()
    rest.rename(loaded, "usr/share/doc/", "usr/share/documents/")
    took = time.monotonic() - began
    moved = [key.replace("usr/share/doc/", "usr/share/documents/", 1) for key in tree]

    # Right after the acknowledgement: no old name, every new one, on every interface.
    assert not rest.exists(loaded, "usr/share/doc/")
    assert s3_keys(s3, loaded, "usr/share/doc/") == []
    assert sql_children(sql, loaded, "usr/share/") == ["documents/"]
    assert rest.stat(loaded, "usr/share/documents/")["id"] == identity
    assert_all_agree(loaded, moved, "usr/share/documents/", s3, rest, sql)
    assert_all_agree(loaded, moved, "", s3, rest, sql)
    assert took < MOVED_BOUND_S, f"a rename must not depend on what is below; it took {took:.2f} s"
