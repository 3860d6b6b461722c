"""Permissions are checked under the latch of the directory: no check races a change of the permission (P56).

A caller gives the permission that its lookup found. These tests let the lookup be old: the permission is changed, and
the change acknowledged, between the lookup and the verb.
"""

import uuid
from dataclasses import replace

import psycopg
import pytest

from stack.poll import wait_until

from . import verbs
from .tree import Op
from .verbs import Answer, Key

BOUND_S = 30.0
DENIED = "MT030"
# A caller that is neither the owner (7) nor in the group (7) of what the tests make.
OTHER = "9,20"
OPEN, CLOSED = "7,7,511", "7,7,448"
WAITING = "SELECT count(*) FROM mantle.latches WHERE class = 'directory' AND NOT granted"


@pytest.fixture(scope="module")
def target(make_target):
    return make_target("permissions")


class Shared:
    """A directory of mode 0777 with two objects of mode 0666 and two empty directories, and one beside it."""

    def __init__(self, connection: psycopg.Connection):
        self.connection = connection
        self.ns = verbs.create_namespace(connection, f"perm-{uuid.uuid4().hex[:12]}")
        self.next_id = verbs.allocate_ids(connection, 100)
        connection.execute("SELECT mantle.set_umask(0, n.name, 0) FROM mantle.namespaces n WHERE n.ns = %s", (self.ns,))
        self.id = self.new_id()
        self.done(Op("mkdir", self.ns, "shared/", self.id, mode=0o777))
        self.inner, self.object = self.new_id(), self.new_id()
        self.done(Op("mkdir", self.id, "d/", self.inner, mode=0o777))
        self.put(self.id, "o", self.object)
        self.put(self.id, "p", self.new_id())
        self.beside = self.new_id()
        self.done(Op("mkdir", self.ns, "beside/", self.beside, mode=0o777))
        # Recorded, so that what the callers say of it does not count.
        self.done(Op("set_attributes", self.ns, "beside/", self.beside, mode=0o777))
        self.put(self.beside, "i", self.new_id())
        self.moving = self.new_id()
        self.done(Op("mkdir", self.beside, "m/", self.moving, mode=0o777))
        (self.epoch,) = connection.execute("SELECT epoch FROM mantle.index_group(1)").fetchone()

    def new_id(self) -> int:
        self.next_id += 1
        return self.next_id

    def call(self, op: Op, connection: psycopg.Connection | None = None, **given: str) -> Answer:
        return verbs.call(connection or self.connection, self.ns, [op], [Key(uuid.uuid4())], **given)[0]

    def done(self, op: Op) -> None:
        assert self.call(op).code is None, op

    def put(self, pid: int, name: str, id: int) -> None:
        self.done(Op("put_object", pid, name, id, mode=0o666, locator=f"file:{uuid.uuid4().hex}"))

    def chmod(self, mode: int, connection: psycopg.Connection | None = None) -> Answer:
        return self.call(Op("set_attributes", self.ns, "shared/", self.id, mode=mode), connection)

    def change(self, verb: str) -> Op:
        """A change that needs to search the directory. Most need to write to it, too."""
        to_beside = {"dst_pid": self.beside, "epoch": self.epoch}
        from_beside = {"dst_pid": self.id, "epoch": self.epoch}
        return {
            "create": Op("put_object", self.id, "new", self.new_id()),
            "overwrite": Op("put_object", self.id, "o", self.new_id()),
            "mkdir": Op("mkdir", self.id, "new/", self.new_id()),
            "delete": Op("delete_object", self.id, "o"),
            "rmdir": Op("rmdir", self.id, "d/", self.inner),
            "rename from": Op("rename_object", self.id, "o", dst_pid=self.beside, dst_name="o"),
            "rename to": Op("rename_object", self.beside, "i", dst_pid=self.id, dst_name="i"),
            "rename onto": Op("rename_object", self.id, "o", dst_pid=self.id, dst_name="p", overwrite=True),
            "copy from": Op("copy_object", self.id, "o", self.new_id(), dst_pid=self.beside, dst_name="c"),
            "copy to": Op("copy_object", self.beside, "i", self.new_id(), dst_pid=self.id, dst_name="c"),
            "copy onto": Op("copy_object", self.beside, "i", self.new_id(), dst_pid=self.id, dst_name="o"),
            "metadata": Op("set_attributes", self.id, "o", self.object, mode=None, metadata='{"a": "b"}'),
            "tags": Op("set_attributes", self.id, "o", self.object, mode=None, metadata="{}", part_of="tags"),
            "put key": Op("set_attributes", self.id, "d/", self.inner, mode=None, metadata="{}", part_of="put"),
            "make implicit": Op("set_attributes", self.id, "d/", self.inner, mode=None, stays=False),
            "rename directory": Op(
                "rename_directory", self.id, "d/", self.inner, dst_pid=self.id, dst_name="e/", epoch=self.epoch
            ),
            "move from": Op("rename_directory", self.id, "d/", self.inner, dst_name="d/", **to_beside),
            "move to": Op("rename_directory", self.beside, "m/", self.moving, dst_name="m/", **from_beside),
            "move onto": Op(
                "rename_directory", self.beside, "m/", self.moving, dst_name="d/", victim=self.inner, **from_beside
            ),
            "remove tree": Op("remove_tree", self.id, "d/", self.inner, epoch=self.epoch),
        }[verb]


# The index has checked these already. So they are not refused if the permission is unknown.
PREPARED = ("rename directory", "move from", "move to", "move onto", "remove tree")
CHANGES = (
    "create", "overwrite", "mkdir", "delete", "rmdir", "rename from", "rename to", "rename onto", "copy from",
    "copy to", "copy onto", "metadata", "tags", "put key", "make implicit", *PREPARED,
)  # fmt: skip
# They take or replace an entry. Its owner is 7.
STICKY = (
    "delete", "rmdir", "rename from", "rename onto", "overwrite", "copy onto", "make implicit", "rename directory",
    "move from", "move onto", "remove tree",
)  # fmt: skip


@pytest.fixture
def shared(target):
    with target.connect() as connection:
        yield Shared(connection)
        assert connection.execute("SELECT * FROM mantle.check()").fetchall() == []


@pytest.mark.parametrize("verb", CHANGES)
def test_what_a_lookup_found_before_a_chmod_does_not_count(shared, verb):
    op = shared.change(verb)
    with shared.connection.transaction(force_rollback=True):
        assert shared.call(op, caller=OTHER, parent=OPEN).code is None, "it is allowed before"
    assert shared.call(op, caller=OTHER, parent=CLOSED).code == DENIED
    if verb not in PREPARED:
        assert shared.call(op, caller=OTHER).code == DENIED, "an unknown permission allows nothing"
    assert shared.chmod(0o700).code is None
    assert shared.call(op, caller=OTHER, parent=OPEN).code == DENIED, "the lookup was before the chmod"
    assert shared.chmod(0o777).code is None
    assert shared.call(op, caller=OTHER, parent=CLOSED).code is None, "and so was this one"


@pytest.mark.parametrize("verb", STICKY)
def test_the_sticky_bit_holds_at_once(shared, verb):
    op = shared.change(verb)
    assert shared.chmod(0o1777).code is None
    assert shared.call(op, caller=OTHER, parent=OPEN).code == DENIED
    with shared.connection.transaction(force_rollback=True):
        assert shared.call(op, caller="7", parent=OPEN).code is None, "the owner may"
    assert shared.call(shared.change("create"), caller=OTHER, parent=OPEN).code is None


@pytest.mark.parametrize("verb", ["rename directory", "move from", "move onto", "remove tree"])
def test_a_new_owner_counts_in_a_sticky_directory_that_was_never_changed(shared, verb):
    """The index has checked the sticky bit against the owner before."""
    sticky, inner = shared.new_id(), shared.new_id()
    shared.done(Op("mkdir", shared.ns, "sticky/", sticky, mode=0o1777))
    shared.done(Op("mkdir", sticky, "d/", inner, mode=0o777))
    shared.id, shared.inner = sticky, inner
    op, chown = shared.change(verb), Op("set_attributes", sticky, "d/", inner, mode=None, new_owner=9)
    shared.done(chown)
    with shared.connection.transaction(force_rollback=True):
        assert shared.call(op, caller=OTHER, parent="7,7,1023").code is None, "it belongs to the caller"
    shared.done(replace(chown, new_owner=7))
    assert shared.call(op, caller=OTHER, parent="7,7,1023").code == DENIED


def test_the_put_of_a_key_needs_to_write_to_the_directory(shared):
    """mkdir checks it in another transaction, if the directory is there already."""
    put = shared.change("put key")
    assert shared.call(put, caller=OTHER, parent="7,7,509").code == DENIED
    assert shared.call(replace(put, part_of=None), caller=OTHER, parent="7,7,509").code is None, "its metadata need not"
    assert shared.chmod(0o775).code is None
    assert shared.call(put, caller=OTHER, parent=OPEN).code == DENIED, "the lookup was before the chmod"
    assert shared.call(put, caller="7", parent=CLOSED).code is None


def test_tags_need_to_be_readable_under_the_latch(shared):
    tags = shared.change("tags")
    assert shared.call(tags, caller=OTHER, parent=OPEN).code is None
    shared.done(Op("set_attributes", shared.id, "o", shared.object, mode=0o222))
    assert shared.call(tags, caller=OTHER, parent=OPEN).code == DENIED
    assert shared.call(tags, caller="7", parent=OPEN).code == DENIED, "owning it is not enough"
    assert shared.call(replace(tags, part_of=None), caller=OTHER, parent=OPEN).code is None, "metadata are written only"
    assert shared.call(replace(tags, part_of="else"), caller=OTHER, parent=OPEN).code == "MT006"


def test_metadata_of_a_root_need_to_search_it(shared):
    (name,) = shared.connection.execute("SELECT name FROM mantle.namespaces WHERE ns = %s", (shared.ns,)).fetchone()
    root = Op("set_attributes", 0, f"{name}/", shared.ns, mode=None, metadata="{}")
    for mode, code in ((0o776, DENIED), (0o773, None)):
        shared.done(replace(root, mode=mode, metadata=None))
        assert shared.call(root, caller=OTHER).code == code, oct(mode)
    shared.done(replace(root, mode=0o006, metadata=None))
    assert shared.call(root, caller="7").code is None, "the owner may always"


def test_a_source_that_may_not_be_searched_is_not_told_from_none(shared):
    for name in ("o", "none"):
        given = {"dst_pid": shared.beside, "dst_name": "c"}
        query = (
            "SELECT code FROM mantle.copy_object(5, %(ns)s, %(pid)s, %(name)s, 1, 1, %(ns)s, %(dst_pid)s, %(dst_name)s,"
            " %(id)s, 7, 7, 438, NULL, NULL, NULL, gen_random_uuid(), 0, p_caller => %(caller)s,"
            " p_src_parent => %(parent)s)"
        )
        given |= {"ns": shared.ns, "pid": shared.id, "name": name, "id": shared.new_id(), "caller": OTHER}
        assert shared.connection.execute(query, given | {"parent": CLOSED}).fetchone() == (DENIED,), name


PUT_PART = (
    "SELECT code FROM mantle.put_part_delegated(%(upload)s, %(ns)s, 1, 'e', 'c', ARRAY['file:1'], '{0}', '{1}', false,"
    " NULL, p_caller => %(caller)s)"
)
SEAL = (
    "SELECT code FROM mantle.seal_upload_delegated(%(upload)s, %(ns)s, '{1}', '{e}', 1, %(ns)s, 'e-1', 1, 'c',"
    " p_caller => %(caller)s)"
)
ABORT = "SELECT code FROM mantle.abort_upload_delegated(%(upload)s, p_caller => %(caller)s)"


def new_upload(shared, principal: int) -> int:
    id = shared.new_id()
    query = "SELECT mantle.create_upload_delegated(%s, %s, 'k', %s, 7, NULL, NULL, NULL, 'FULL_OBJECT')"
    assert shared.connection.execute(query, (id, shared.ns, principal)).fetchone() == (None,)
    return id


@pytest.mark.parametrize("call", [PUT_PART, SEAL, ABORT], ids=["part", "seal", "abort"])
def test_uploads_are_for_their_owners(shared, call):
    """8 began it, and the namespace is 7's until it is given to 9."""

    def code(caller: str | None) -> str | None:
        with shared.connection.transaction(force_rollback=True):
            given = {"upload": new_upload(shared, 8), "ns": shared.ns}
            if call == SEAL:
                assert shared.connection.execute(PUT_PART, given | {"caller": "8"}).fetchone() == (None,)
            return shared.connection.execute(call, given | {"caller": caller}).fetchone()[0]

    assert [code(caller) for caller in ("8", "7,1", "0", None)] == [None] * 4
    assert [code(caller) for caller in (OTHER, "20,8,7")] == [DENIED] * 2
    (name,) = shared.connection.execute("SELECT name FROM mantle.namespaces WHERE ns = %s", (shared.ns,)).fetchone()
    shared.done(Op("set_attributes", 0, f"{name}/", shared.ns, mode=None, new_owner=9))
    assert (code(OTHER), code("7")) == (None, DENIED)


def test_the_source_of_a_copied_part_is_checked_under_the_latch(shared):
    upload = new_upload(shared, 9)
    query = (
        "SELECT c.code FROM mantle.meta m, mantle.copy_part(%(pid)s, 'o', m.id, m.version, %(upload)s, %(ns)s, 1, 'e',"
        " 'c', ARRAY[m.locator], '{0}', '{1}', NULL, %(caller)s, %(parent)s) AS c"
        " WHERE m.pid = %(pid)s AND m.name = 'o' AND m.ts = 0"
    )
    given = {"pid": shared.id, "upload": upload, "ns": shared.ns, "caller": OTHER}
    code = lambda parent: shared.connection.execute(query, given | {"parent": parent}).fetchone()[0]
    assert (code(OPEN), code(CLOSED), code(None)) == (None, DENIED, DENIED)
    shared.done(Op("set_attributes", shared.id, "o", shared.object, mode=0o622))
    assert code(OPEN) == DENIED
    shared.done(Op("set_attributes", shared.id, "o", shared.object, mode=0o644))
    assert shared.chmod(0o776).code is None
    assert code(OPEN) == DENIED, "the lookup was before the chmod"


@pytest.mark.parametrize("verb", CHANGES)
def test_a_chmod_waits_for_changes_that_were_allowed(target, shared, later, verb):
    with target.connect() as changing, target.connect() as closing, target.connect() as observer:
        with changing.transaction():
            assert shared.call(shared.change(verb), changing, caller=OTHER, parent=OPEN).code is None
            chmod = later(shared.chmod, 0o700, closing)
            wait_until(lambda: chmod.done() or observer.execute(WAITING).fetchone()[0], "the chmod", BOUND_S)
            assert not chmod.done(), "it did not wait"
        assert chmod.result(BOUND_S).code is None


def test_a_change_waits_for_a_chmod_and_then_sees_it(target, shared, later):
    with target.connect() as changing, target.connect() as closing, target.connect() as observer:
        with closing.transaction():
            assert shared.chmod(0o700, closing).code is None
            put = later(shared.call, shared.change("create"), changing, caller=OTHER, parent=OPEN)
            wait_until(lambda: put.done() or observer.execute(WAITING).fetchone()[0], "the put", BOUND_S)
            assert not put.done(), "it did not wait"
        assert put.result(BOUND_S).code == DENIED


def test_a_chmod_needs_the_owner_under_the_latch(shared):
    chmod = Op("set_attributes", shared.id, "o", shared.object, mode=0o600)
    assert shared.call(chmod, caller=OTHER, parent=OPEN).code == DENIED
    assert shared.call(chmod, caller="7", parent=OPEN).code is None
    assert shared.chmod(0o666).code is None
    assert shared.call(chmod, caller="7", parent=OPEN).code == DENIED, "the directory may not be searched any more"


def test_an_overwrite_keeps_owner_and_mode(shared):
    find = "SELECT owner, grp, mode, version FROM mantle.meta WHERE pid = %s AND name = 'o' AND ts = 0"
    assert shared.call(shared.change("overwrite"), caller=OTHER, parent="7,7,457").code is None, "writing it is enough"
    assert shared.connection.execute(find, (shared.id,)).fetchone() == (7, 7, 0o666, 2)
    shared.done(Op("set_attributes", shared.id, "o", shared.object, mode=0o604))
    assert shared.call(shared.change("overwrite"), caller=OTHER, parent=OPEN).code == DENIED
    shared.done(Op("set_attributes", shared.id, "o", shared.object, mode=0o400))
    assert shared.call(shared.change("overwrite"), caller="7", parent=OPEN).code is None, "the owner may always"
    assert shared.connection.execute(find, (shared.id,)).fetchone() == (7, 7, 0o400, 5)


def test_a_condition_tells_no_etag_to_who_may_not_read(shared):
    shared.done(Op("set_attributes", shared.id, "o", shared.object, mode=0o622))
    for condition in ("e", "other", "!e", "!other"):
        op = Op("put_object", shared.id, "o", shared.new_id(), condition=condition)
        assert shared.call(op, caller=OTHER, parent=OPEN).code == DENIED, condition
    for condition, code in (("*absent", "MT019"), ("*present", None)):
        op = Op("put_object", shared.id, "o", shared.new_id(), condition=condition)
        assert shared.call(op, caller=OTHER, parent=OPEN).code == code, condition


def test_a_copy_of_the_permission_that_differs_is_damage(target, shared):
    assert shared.chmod(0o750).code is None
    with shared.connection.transaction(force_rollback=True):
        shared.connection.execute(
            "UPDATE mantle.meta SET mode = 511 WHERE pid = %s AND name = '/_ATTR' AND ts = 0", (shared.id,)
        )
        found = shared.connection.execute("SELECT problem, pid, name FROM mantle.check()").fetchall()
        assert found == [("permission", shared.ns, "shared/")]
