"""Who may do what, between principals: attacks that worked once, and rules that no single cell of the matrix shows.

Alice (1001) and Bob (1002) are in group 50, Carol (1003) is not.
"""

import uuid
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest

from stack import secret
from stack.poll import wait_until

from .clients import connect_as
from .principals import chmod, entry, refused

BOUND_S = 30.0


@pytest.fixture
def s3(s3_of):
    """The S3 client of a principal."""
    return s3_of


def test_a_new_bucket_is_private(private, s3, alice, bob):
    s3("alice").put_object(Bucket=private, Key="payroll/2027.csv", Body=b"salaries", Metadata={"x": "y"})
    root, directory = entry(alice, private, ""), entry(alice, private, "payroll/")
    assert (root["mode"], directory["mode"], entry(alice, private, "payroll/2027.csv")["mode"]) == (
        "0700",
        "0700",
        "0600",
    )
    assert bob.call("GET", f"/v1/ns/{private}/entries/").status == 403, "not even the root"
    assert (
        bob.call("POST", f"/v1/ns/{private}/stat", {"paths": [""]}).body["entries"][0]["error"]["code"]
        == "access_denied"
    )
    for key in ("payroll/2027.csv", "payroll/none", "none", "none/below"):
        assert refused(s3("bob").get_object, Bucket=private, Key=key) == "AccessDenied"
        assert bob.call("GET", f"/v1/ns/{private}/entries/{key}").status == 403
    assert refused(s3("bob").list_objects_v2, Bucket=private) == "AccessDenied"
    assert refused(s3("bob").head_bucket, Bucket=private) == "403"
    assert private not in [found["Name"] for found in s3("bob").list_buckets()["Buckets"]]
    assert private in [found["Name"] for found in s3("alice").list_buckets()["Buckets"]]
    assert bob.call("DELETE", f"/v1/ns/{private}").status == 403
    assert bob.call("PATCH", f"/v1/ns/{private}", {"umask": "000"}).status == 403


def test_the_umask_of_a_bucket(private, s3, alice):
    assert alice.call("PATCH", f"/v1/ns/{private}", {"umask": "027"}).status == 204
    s3("alice").put_object(Bucket=private, Key="d/o", Body=b"1")
    s3("alice").copy_object(Bucket=private, Key="d/c", CopySource=f"{private}/d/o")
    assert [entry(alice, private, path)["mode"] for path in ("d/", "d/o", "d/c")] == ["0750", "0640", "0640"]
    for bad in ("0700", "8", "", "-7", "1000"):
        assert alice.call("PATCH", f"/v1/ns/{private}", {"umask": bad}).status == 400, bad


def test_an_overwrite_keeps_owner_group_and_mode(open_bucket, s3, alice):
    key = "shared/private.txt"
    s3("alice").put_object(Bucket=open_bucket, Key=key, Body=b"1")
    chmod(alice, open_bucket, key, "0600")
    s3("alice").put_object(Bucket=open_bucket, Key=key, Body=b"2 salary list")
    assert entry(alice, open_bucket, key)["mode"] == "0600"
    assert refused(s3("bob").get_object, Bucket=open_bucket, Key=key) == "AccessDenied"
    assert refused(s3("bob").put_object, Bucket=open_bucket, Key=key, Body=b"bob was here") == "AccessDenied"
    chmod(alice, open_bucket, key, "0622")
    s3("bob").put_object(Bucket=open_bucket, Key=key, Body=b"bob was here")
    source = {"Bucket": open_bucket, "Key": "shared/bobs"}
    s3("bob").put_object(**source, Body=b"3")
    s3("bob").copy_object(Bucket=open_bucket, Key=key, CopySource=source)
    upload = s3("bob").create_multipart_upload(Bucket=open_bucket, Key=key)["UploadId"]
    part = s3("bob").upload_part(Bucket=open_bucket, Key=key, UploadId=upload, PartNumber=1, Body=b"4")
    parts = {"Parts": [{"PartNumber": 1, "ETag": part["ETag"]}]}
    s3("bob").complete_multipart_upload(Bucket=open_bucket, Key=key, UploadId=upload, MultipartUpload=parts)
    found = entry(alice, open_bucket, key)
    assert (found["owner"], found["group"], found["mode"], found["size"]) == (1001, 1001, "0622", 1)
    assert refused(s3("bob").get_object, Bucket=open_bucket, Key=key) == "AccessDenied", "still not readable"


def test_what_is_shown_without_the_permission_to_read(open_bucket, s3, alice, bob):
    key = "shared/record"
    s3("alice").put_object(Bucket=open_bucket, Key=key, Body=b"x", Metadata={"patient": "J. Doe"}, Tagging="a=b")
    chmod(alice, open_bucket, key, "0600")
    shown = entry(bob, open_bucket, key)
    assert not shown.keys() & {"etag", "content_type", "user_metadata", "headers"}
    assert (shown["size"], shown["mode"], shown["owner"]) == (1, "0600", 1001) and "modified" in shown
    listed = bob.call("GET", f"/v1/ns/{open_bucket}/list/shared/").body["entries"][0]
    batch = bob.call("POST", f"/v1/ns/{open_bucket}/stat", {"paths": [key]}).body["entries"][0]["entry"]
    assert not (listed.keys() | batch.keys()) & {"etag", "content_type", "user_metadata", "headers"}
    for prefix in ("shared/", ""):
        found = s3("bob").list_objects_v2(Bucket=open_bucket, Prefix=prefix)["Contents"][-1]
        assert (found["Key"], found["Size"], found.get("ETag")) == (key, 1, None)
    assert s3("alice").list_objects_v2(Bucket=open_bucket)["Contents"][0]["ETag"]
    for call in ("head_object", "get_object", "get_object_tagging"):
        assert refused(getattr(s3("bob"), call), Bucket=open_bucket, Key=key) in ("AccessDenied", "403")


@pytest.mark.parametrize(
    ("mode", "may_read", "may_write"),
    [
        ("0700", False, False), ("0701", False, False), ("0704", False, False), ("0702", False, False),
        ("0705", True, False), ("0703", False, True), ("0707", True, True),
    ],
)  # fmt: skip
def test_tags_of_a_bucket(private, s3, alice, mode, may_read, may_write):
    """They are metadata of its root: to read them takes x and r, to change them x and w."""
    tags = {"Bucket": private, "Tagging": {"TagSet": [{"Key": "a", "Value": "b"}]}}
    s3("alice").put_bucket_tagging(**tags)
    chmod(alice, private, "", mode)
    answers = {allowed: None if allowed else "AccessDenied" for allowed in (True, False)}
    carol = s3("carol")
    assert refused(carol.get_bucket_tagging, Bucket=private) == answers[may_read]
    assert refused(carol.put_bucket_tagging, **tags) == answers[may_write]
    assert refused(carol.delete_bucket_tagging, Bucket=private) == answers[may_write]
    there = refused(s3("alice").get_bucket_tagging, Bucket=private)
    assert there == ("NoSuchTagSet" if may_write else None)


def test_uploads_of_others_are_not_listed(open_bucket, s3):
    """The bucket's owner and uid 0 see all, others their own."""
    for name in ("alice", "bob", "carol"):
        s3(name).create_multipart_upload(Bucket=open_bucket, Key=f"shared/{name}")
    shown = {
        name: [upload["Key"] for upload in s3(name).list_multipart_uploads(Bucket=open_bucket)["Uploads"]]
        for name in ("alice", "bob", "carol", "root")
    }
    everybodys = ["shared/alice", "shared/bob", "shared/carol"]
    assert shown == {"alice": everybodys, "root": everybodys, "bob": ["shared/bob"], "carol": ["shared/carol"]}


@pytest.mark.parametrize("matches", [True, False])
def test_conditions_tell_no_etag(open_bucket, s3, alice, matches):
    key = "shared/oracle"
    etag = s3("alice").put_object(Bucket=open_bucket, Key=key, Body=b"secret")["ETag"] if matches else '"0123"'
    if not matches:
        s3("alice").put_object(Bucket=open_bucket, Key=key, Body=b"secret")
    chmod(alice, open_bucket, key, "0622")
    bob, object_ = s3("bob"), {"Bucket": open_bucket, "Key": key}
    answers = {
        refused(bob.put_object, **object_, Body=b"b", IfMatch=etag),
        refused(bob.delete_object, **object_, IfMatch=etag),
        refused(bob.get_object, **object_, IfNoneMatch=etag),
        refused(bob.copy_object, Bucket=open_bucket, Key="shared/copy", CopySource=object_, CopySourceIfMatch=etag),
    }
    assert answers == {"AccessDenied"}
    assert refused(bob.head_object, **object_, IfMatch=etag) == "403"


def test_the_sticky_bit(open_bucket, s3, alice, bob, carol):
    chmod(alice, open_bucket, "shared/", "1777")
    assert entry(bob, open_bucket, "shared/")["mode"] == "1777"
    assert bob.call("GET", f"/v1/ns/{open_bucket}/list/").body["entries"][0]["mode"] == "1777"
    s3("carol").put_object(Bucket=open_bucket, Key="shared/c", Body=b"carol")
    chmod(carol, open_bucket, "shared/c", "0666")
    s3("bob").put_object(Bucket=open_bucket, Key="shared/b", Body=b"bob")
    assert carol.call("PUT", f"/v1/ns/{open_bucket}/dirs/shared/d/").status == 201
    chmod(carol, open_bucket, "shared/d/", "0777")
    rename = lambda source, destination, **more: (
        bob.call("POST", f"/v1/ns/{open_bucket}/rename", {"src": source, "dst": destination, **more}).status
    )
    assert refused(s3("bob").delete_object, Bucket=open_bucket, Key="shared/c") == "AccessDenied"
    assert refused(s3("bob").put_object, Bucket=open_bucket, Key="shared/c", Body=b"b") == "AccessDenied"
    assert rename("shared/c", "shared/mine") == rename("shared/b", "shared/c", overwrite=True) == 403
    assert rename("shared/d/", "shared/mine/") == 403
    assert bob.call("DELETE", f"/v1/ns/{open_bucket}/dirs/shared/d/").status == 403
    assert bob.call("DELETE", f"/v1/ns/{open_bucket}/dirs/shared/d/?recursive=true").status == 403
    assert rename("shared/b", "shared/b2") == 200, "one's own"
    s3("alice").delete_object(Bucket=open_bucket, Key="shared/c")
    assert carol.call("DELETE", f"/v1/ns/{open_bucket}/dirs/shared/d/").status == 204
    for bad in ("2777", "4777", "7777", "01777777", "0o777"):
        assert alice.call("PATCH", f"/v1/ns/{open_bucket}/entries/shared/", {"mode": bad}).status == 400, bad


def test_the_sticky_bit_keeps_a_closed_directory_in_its_place(open_bucket, alice, bob, carol):
    """Bob renames Carol's 0700 directory in its parent. In a 0777 directory he may, as in POSIX."""
    assert carol.call("PUT", f"/v1/ns/{open_bucket}/dirs/shared/c2/").status == 201
    chmod(carol, open_bucket, "shared/c2/", "0700")
    rename = lambda source, destination: (
        bob.call("POST", f"/v1/ns/{open_bucket}/rename", {"src": source, "dst": destination}).status
    )
    chmod(alice, open_bucket, "shared/", "1777")
    assert rename("shared/c2/", "shared/stolen/") == 403
    assert entry(carol, open_bucket, "shared/c2/")["owner"] == 1003
    chmod(alice, open_bucket, "shared/", "0777")
    assert rename("shared/c2/", "shared/stolen/") == 200


@pytest.mark.parametrize("of", ["key", "tags"])
def test_a_request_that_has_passed_the_gateway_waits_for_a_chmod(open_bucket, superuser, s3, alice, of):
    """The gateway has found a permission that is being taken away. The verb checks it again."""
    assert alice.call("PUT", f"/v1/ns/{open_bucket}/dirs/shared/d/").status == 201
    s3("alice").put_object(Bucket=open_bucket, Key="shared/o", Body=b"1")
    for path in ("shared/d/", "shared/o"):
        chmod(alice, open_bucket, path, "0777")
    object_, tags = {"Bucket": open_bucket, "Key": "shared/o"}, {"TagSet": [{"Key": "a", "Value": "b"}]}
    marker = {"Bucket": open_bucket, "Key": "shared/d/"}
    etag = s3("alice").head_object(**marker)["ETag"]
    # What is closed, and the call that needs it.
    closed, mode, call = {
        "key": (
            "shared/", 0o775, lambda: refused(
                # Other metadata each time: a put that changes nothing needs less.
                s3("bob").put_object, **marker, Metadata={"a": uuid.uuid4().hex}, IfMatch=etag
            ),
        ),
        "tags": ("shared/o", 0o333, lambda: refused(s3("bob").put_object_tagging, **object_, Tagging=tags)),
    }[of]  # fmt: skip
    assert call() is None
    (ns,) = superuser.execute("SELECT ns FROM mantle.namespace(%s)", (open_bucket,)).fetchone()
    found = "SELECT m.pid, m.name, m.id FROM mantle.meta m WHERE m.ns = %s AND m.name = %s AND m.ts = 0"
    pid, name, id = superuser.execute(found, (ns, closed.removeprefix("shared/") or closed)).fetchone()
    change = (
        "SELECT code FROM mantle.set_attributes('{0}', ARRAY[%s::bigint], ARRAY[%s::bigint], ARRAY[%s::text],"
        " ARRAY[%s::bigint], '{NULL}', '{NULL}', ARRAY[%s::int], '{NULL}', '{NULL}', ARRAY[gen_random_uuid()], '{0}')"
    )
    waits = "SELECT EXISTS (SELECT FROM mantle.latches WHERE NOT granted)"
    with ThreadPoolExecutor() as beside:
        with superuser.transaction():
            assert superuser.execute(change, (ns, pid, name, id, mode)).fetchone() == (None,)
            answer = beside.submit(call)
            wait_until(lambda: answer.done() or superuser.execute(waits).fetchone()[0], "the request", BOUND_S)
            assert not answer.done(), "it did not wait"
        assert answer.result(BOUND_S) == "AccessDenied"


@pytest.mark.parametrize("mode", ["0704", "0714", "0701"])
def test_a_root_that_one_may_not_search_and_read_shows_no_totals(private, alice, carol, mode):
    """So mantle.check_cluster() may leave out a root that others can read and not search."""
    chmod(alice, private, "", mode)
    for call in ("usage/", "usage/?depth=0", "list/"):
        assert carol.call("GET", f"/v1/ns/{private}/{call}").status == 403, call
        assert alice.call("GET", f"/v1/ns/{private}/{call}").status == 200, call


def test_what_no_directory_decides(private, s3, alice, bob, shared):
    """Anybody makes namespaces, and lists its own. An operation is shown to whoever began it, and to uid 0. Only uid 0
    moves the bytes of all.
    """
    assert alice.call("PUT", f"/v1/ns/{private}/dirs/t/").status == 201
    operation = alice.call("DELETE", f"/v1/ns/{private}/dirs/t/?recursive=true").body["id"]
    root = shared.rest("root")
    shown = [client.call("GET", f"/v1/operations/{operation}").status for client in (alice, root, bob)]
    assert shown == [200, 200, 404]
    assert (bob.call("GET", "/v1/migration").status, root.call("GET", "/v1/migration").status) == (403, 200)
    assert bob.call("POST", "/v1/migration").status == 403
    s3("bob").create_bucket(Bucket=f"{private}-bobs")
    listed = [found["name"] for found in bob.call("GET", "/v1/ns").body["namespaces"]]
    assert private not in listed and f"{private}-bobs" in listed


def remove_all(client, ns: str, path: str):
    return client.call("DELETE", f"/v1/ns/{ns}/dirs/{path}?recursive=true")


def test_a_recursive_delete_needs_what_each_removal_needs(open_bucket, s3, alice, bob, carol):
    for directory in ("shared/proj/", "shared/proj/carolpriv/", "shared/proj/open/", "shared/proj/open/deep/"):
        assert carol.call("PUT", f"/v1/ns/{open_bucket}/dirs/{directory}").status == 201
        chmod(carol, open_bucket, directory, "0777")
    s3("carol").put_object(Bucket=open_bucket, Key="shared/proj/carolpriv/thesis", Body=b"only copy")
    for mode in ("0700", "0755", "0775", "0773", "1777", "0776"):
        chmod(carol, open_bucket, "shared/proj/carolpriv/", mode)
        answer = remove_all(bob, open_bucket, "shared/proj/")
        assert (answer.status, answer.body["code"]) == (403, "access_denied"), mode
        assert remove_all(bob, open_bucket, "shared/proj/carolpriv/").status == 403
    assert s3("carol").get_object(Bucket=open_bucket, Key="shared/proj/carolpriv/thesis")["Body"].read() == b"only copy"
    chmod(carol, open_bucket, "shared/proj/carolpriv/", "0777")
    assert remove_all(bob, open_bucket, "shared/proj/").status == 202
    assert carol.call("GET", f"/v1/ns/{open_bucket}/entries/shared/proj/").status == 404
    # The namespace's owner removes what it could not look into.
    assert carol.call("PUT", f"/v1/ns/{open_bucket}/dirs/shared/closed/in/?parents=true").status == 201
    chmod(carol, open_bucket, "shared/closed/", "0700")
    assert remove_all(alice, open_bucket, "shared/closed/").status == 202


def test_a_directory_that_one_may_not_write_to_stays_with_its_parent(open_bucket, bob, carol):
    assert carol.call("PUT", f"/v1/ns/{open_bucket}/dirs/shared/c2/").status == 201
    assert bob.call("PUT", f"/v1/ns/{open_bucket}/dirs/shared/bobs/").status == 201
    chmod(carol, open_bucket, "shared/c2/", "0700")
    move = {"src": "shared/c2/", "dst": "shared/bobs/c2/"}
    assert bob.call("POST", f"/v1/ns/{open_bucket}/rename", move).status == 403
    chmod(carol, open_bucket, "shared/c2/", "0777")
    assert bob.call("POST", f"/v1/ns/{open_bucket}/rename", move).status == 200


def test_nothing_is_told_of_what_is_behind_a_closed_directory(open_bucket, s3, alice, bob):
    for path in ("priv/in/",):
        assert alice.call("PUT", f"/v1/ns/{open_bucket}/dirs/{path}?parents=true").status == 201
    s3("alice").put_object(Bucket=open_bucket, Key="priv/file", Body=b"s")
    chmod(alice, open_bucket, "priv/", "0700")
    there, not_there = ("priv/file", "priv/in/", "priv/file/x"), ("priv/nofile", "priv/no/", "priv/no/x")
    ask = {
        "stat": lambda key: bob.call("GET", f"/v1/ns/{open_bucket}/entries/{key}"),
        "list": lambda key: bob.call("GET", f"/v1/ns/{open_bucket}/list/{key}"),
        "mkdir": lambda key: bob.call("PUT", f"/v1/ns/{open_bucket}/dirs/{key.rstrip('/')}/"),
        "rmdir": lambda key: bob.call("DELETE", f"/v1/ns/{open_bucket}/dirs/{key.rstrip('/')}/"),
        "remove all": lambda key: remove_all(bob, open_bucket, key.rstrip("/") + "/"),
        "chmod": lambda key: bob.call("PATCH", f"/v1/ns/{open_bucket}/entries/{key}", {"mode": "0777"}),
        "usage": lambda key: bob.call("GET", f"/v1/ns/{open_bucket}/usage/{key}"),
        "rename": lambda key: bob.call(
            "POST", f"/v1/ns/{open_bucket}/rename", {"src": key.rstrip("/") + "/", "dst": "shared/x/"}
        ),
    }
    for name, call in ask.items():
        for one, other in zip(there, not_there, strict=True):
            answers = [
                (answer.status, answer.body["code"], answer.body["detail"]) for answer in (call(one), call(other))
            ]
            assert answers[0] == answers[1] and answers[0][0] == 403, (name, one, answers)
    for call in ("get_object", "delete_object"):
        assert {refused(getattr(s3("bob"), call), Bucket=open_bucket, Key=key) for key in there + not_there} == {
            "AccessDenied"
        }, call


def test_attributes_belong_to_the_owner(open_bucket, s3, alice, bob):
    s3("alice").put_object(Bucket=open_bucket, Key="shared/o", Body=b"1")
    target = f"/v1/ns/{open_bucket}/entries/shared/o"
    chmod(alice, open_bucket, "shared/o", "0666")
    for body in ({"mode": "0777"}, {"group": 50}, {"owner": 1002}, {"mode": "0666", "user_metadata": {}}):
        assert bob.call("PATCH", target, body).status == 403, body
    assert bob.call("PATCH", target, {"user_metadata": {"a": "b"}}).status == 200, "who may write to it"
    assert (
        alice.call("PATCH", target, {"owner": 1002}).status
        == alice.call("PATCH", target, {"group": 1002}).status
        == 403
    )
    assert alice.call("PATCH", target, {"group": 50}).status == 200
    chmod(alice, open_bucket, "shared/o", "0644")
    assert bob.call("PATCH", target, {"user_metadata": {}}).status == 403


@pytest.mark.allows("postgresql", "permission denied for table meta")
@pytest.mark.parametrize("user", ["operator", "importer", "analyst"])
def test_nobody_but_a_gateway_gives_a_locator(stack, user):
    """Whoever could would make a row of its own that names another one's bytes."""
    assert secret.read(stack.layout, user)
    takes_locator = (
        "SELECT p.oid::regprocedure::text, has_function_privilege(p.oid, 'EXECUTE') FROM pg_proc p"
        " WHERE p.pronamespace = 'mantle'::regnamespace AND p.proargnames::text LIKE '%p\\_locator%'"
    )
    with connect_as(stack, user, user) as session:
        found = session.execute(takes_locator).fetchall()
        assert len(found) > 4 and [name for name, may in found if may] == []
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            session.execute("UPDATE mantle.meta SET locator = NULL")
        for verb in (
            "delete_object",
            "set_attributes",
            "rename_object",
            "copy_object",
            "rename_directory",
            "remove_tree",
        ):
            may = session.execute(
                "SELECT bool_or(has_function_privilege(p.oid, 'EXECUTE')) FROM pg_proc p"
                " WHERE p.pronamespace = 'mantle'::regnamespace AND p.proname = %s",
                (verb,),
            ).fetchone()
            assert may == (False,), verb
