"""Multipart uploads on several nodes: an upload's rows are on the node of its id, its object anywhere (P53)."""

import uuid
from contextlib import closing, suppress

import psycopg
import pytest

from stack import citus
from stack.poll import wait_until

from .copies import delete
from .distributed import SpreadNamespace, distributed_target
from .tree import Op
from .verbs import PRINCIPAL

pytestmark = pytest.mark.skipif(not citus.is_installed(), reason="Citus is not installed")

BOUND_S = 30.0
LOOKS = 200
FOUND = "SELECT m.id, m.version FROM mantle.meta m WHERE m.pid = %s AND m.name = %s AND m.ts = 0"
WAITS = "SELECT count(*) FROM mantle.latches WHERE class = 'name' AND NOT granted"


@pytest.fixture(scope="module")
def target(citus_cluster):
    with distributed_target(citus_cluster, "mantle_uploads") as target:
        yield target


def put(spread: SpreadNamespace, pid: int, name: str) -> str:
    at = f"objects/00/{spread.ns}-{name}-{uuid.uuid4()}"
    assert spread.call(spread.coordinator, Op("put_object", pid, name, spread.new_id(), locator=at)).code is None
    return at


def begin(spread: SpreadNamespace, worker: int, key: str = "k") -> int:
    """An upload on a node."""
    id = spread.new_id()
    while spread.worker_of(id) != worker:
        id = spread.new_id()
    created = "SELECT mantle.create_upload_delegated(%s, %s, %s, %s, 7, NULL, NULL, NULL, 'FULL_OBJECT')"
    assert spread.coordinator.execute(created, (id, spread.ns, key, PRINCIPAL)).fetchone() == (None,)
    return id


def put_part(session: psycopg.Connection, ns: int, upload: int, part: int, locator: str, length: int = 1):
    """Code, and the locators that it replaces."""
    values = (upload, ns, part, f"e{part}", [locator], [0], [length])
    call = "SELECT * FROM mantle.put_part_delegated(%s, %s, %s, %s, 'c', %s, %s, %s, false, NULL)"
    return session.execute(call, values).fetchone()


Found = tuple[int, int]  # id and version


def copy_part(session: psycopg.Connection, ns: int, source: tuple[int, str], found: Found, upload: int, at: str):
    values = (*source, *found, upload, ns, [at], [0], [1])
    call = "SELECT code FROM mantle.copy_part(%s, %s, %s, %s, %s, %s, 1, 'e1', 'c', %s, %s, %s, NULL)"
    return session.execute(call, values).fetchone()[0]


def seal(session: psycopg.Connection, ns: int, upload: int, parts: list[int], destination: int, size: int):
    values = (upload, ns, parts, [f"e{part}" for part in parts], destination, size)
    call = "SELECT * FROM mantle.seal_upload_delegated(%s, %s, %s, %s, 1, %s, 'e-1', %s, 'c')"
    return session.execute(call, values).fetchone()


def unused(session: psycopg.Connection, *locators: str) -> list[str]:
    rows = session.execute("SELECT * FROM mantle.unused_locators(%s)", (list(locators),)).fetchall()
    return [row[0] for row in rows]


@pytest.mark.parametrize("worker", [0, 1])
def test_any_session_works_on_an_upload(spread, worker):
    upload = begin(spread, worker)
    sessions = [spread.coordinator, *spread.sessions]
    for number, session in enumerate(sessions, 1):
        assert put_part(session, spread.ns, upload, number, f"objects/00/{upload}-{number}") == (None, [])
    for session in sessions:
        assert put_part(session, spread.ns, upload, 1, f"objects/00/{upload}-{uuid.uuid4()}")[0] is None
    for session in sessions:
        listed = session.execute("SELECT part, size FROM mantle.list_parts(%s, 0, 10)", (upload,)).fetchall()
        assert listed == [(1, 1), (2, 1), (3, 1)]
        assert seal(session, spread.ns, upload, [1, 3], 5, 2) == (None, "sealed", 0, 5)
        assert put_part(session, spread.ns, upload, 2, "late")[0] == "MT039"
    for session in sessions:
        session.execute("SELECT mantle.unseal_upload_delegated(%s, 0)", (upload,))
    assert seal(spread.sessions[0], spread.ns, upload, [3], 5, 1) == (None, "sealed", 1, 5)
    spread.sessions[1].execute("SELECT mantle.finish_upload_delegated(%s, 1)", (upload,))
    assert unused(spread.coordinator, f"objects/00/{upload}-3", f"objects/00/{upload}-2") == [f"objects/00/{upload}-2"]
    for _ in range(2):
        gone = spread.sessions[0].execute("SELECT mantle.drop_manifest_delegated(%s, 0)", (upload,)).fetchone()
    assert gone == ([f"objects/00/{upload}-3"],)


def test_uploads_of_all_nodes_are_listed_together(spread):
    ids = [begin(spread, number % 2, f"listed/{number}") for number in range(6)]
    for session in (spread.coordinator, *spread.sessions):
        listed = session.execute(
            "SELECT id, key FROM mantle.list_uploads(%s, 'listed/', '', 0, NULL, 4)", (spread.ns,)
        ).fetchall()
        assert listed == [(id, f"listed/{number}") for number, id in enumerate(ids[:4])]
        every = session.execute("SELECT id FROM mantle.all_uploads(%s, 1000)", (min(ids) - 1,)).fetchall()
        assert {(id,) for id in ids} <= set(every)
        assert session.execute("SELECT uploads >= 6 FROM mantle.upload_usage(%s)", (spread.ns,)).fetchone() == (True,)


@pytest.mark.parametrize("where", [0, 1])
def test_a_fence_is_where_the_request_is(spread, where):
    """A request that was not made is not made afterwards, whoever asks; one that was made is known."""
    pid, request = spread.by_worker[where][0], uuid.uuid4()
    fence = lambda session, request: session.execute(
        "SELECT mantle.fence_request_delegated(%s, %s, %s, %s)", (pid, spread.ns, PRINCIPAL, request)
    ).fetchone()[0]
    for session in (spread.coordinator, *spread.sessions):
        assert fence(session, request) is False
    made = (
        "SELECT code FROM mantle.put_object(ARRAY[%s]::int[], ARRAY[%s]::bigint[], ARRAY[%s]::bigint[], '{k}',"
        " ARRAY[%s]::bigint[], '{7}', '{7}', '{420}', '{1}', '{e}', '{t}', ARRAY[NULL]::jsonb[], '{l}',"
        " ARRAY[NULL]::text[], ARRAY[%s]::uuid[], '{1}', p_caller => '{0}')"
    )
    values = lambda request: (PRINCIPAL, spread.ns, pid, spread.new_id(), request)
    assert spread.sessions[0].execute(made, values(request)).fetchone() == ("MT020",)
    request = uuid.uuid4()
    assert spread.sessions[1].execute(made, values(request)).fetchone() == (None,)
    assert fence(spread.coordinator, request) is True


@pytest.mark.parametrize("apart", [False, True])
def test_a_copied_part_shares_the_bytes_of_its_source(spread, apart):
    source, name = spread.by_worker[0][0], f"source-{apart}"
    at, upload = put(spread, source, name), begin(spread, int(apart))
    found = spread.coordinator.execute(FOUND, (source, name)).fetchone()
    session = spread.sessions[int(apart)]
    assert copy_part(session, spread.ns, (source, name), (found[0], found[1] + 1), upload, at) == "MT026"
    assert copy_part(session, spread.ns, (source, name), found, upload, at) is None
    assert delete(spread.coordinator, spread.ns, source, name) == (None, None), "nobody may remove the bytes at once"
    assert unused(spread.coordinator, at) == []
    assert copy_part(session, spread.ns, (source, name), found, upload, at) == "MT026"


def test_the_delete_of_a_source_waits_for_the_copied_part(target, spread, later):
    source = spread.by_worker[0][0]
    at, upload = put(spread, source, "waited"), begin(spread, 1)
    found = spread.coordinator.execute(FOUND, (source, "waited")).fetchone()
    copying = spread.sessions[1]
    with closing(psycopg.connect(**target.all[1], autocommit=True)) as there:
        with copying.transaction():
            assert copy_part(copying, spread.ns, (source, "waited"), found, upload, at) is None
            deleting = later(delete, spread.sessions[0], spread.ns, source, "waited")
            wait_until(lambda: deleting.done() or there.execute(WAITS).fetchone()[0], "the delete", BOUND_S)
            assert not deleting.done(), "it did not wait"
        assert deleting.result(BOUND_S) == (None, None)
    assert unused(spread.coordinator, at) == []


def test_bytes_that_go_from_objects_to_parts_are_in_use(target, spread, later):
    """Each object becomes a part of an upload and is deleted then. The sweeper never sees its bytes without a name."""
    source, uploads = spread.by_worker[0][0], [begin(spread, 1), begin(spread, 0)]
    put_at: list[str] = []
    ended = False

    def work() -> int:
        rounds = 0
        with closing(target.connect()) as session:
            while not ended:
                name = f"part{rounds}"
                at = put(spread, source, name)
                put_at.append(at)
                found = session.execute(FOUND, (source, name)).fetchone()
                upload = uploads[rounds % 2]
                values = (source, name, *found, upload, spread.ns, rounds % 10_000 + 1, [at], [0], [1])
                call = "SELECT code FROM mantle.copy_part(%s, %s, %s, %s, %s, %s, %s, 'e', 'c', %s, %s, %s, NULL)"
                assert session.execute(call, values).fetchone() == (None,)
                assert delete(session, spread.ns, source, name) == (None, None)
                rounds += 1
        return rounds

    working, missed = later(work), []
    try:
        wait_until(lambda: put_at, "the first object", BOUND_S)
        with closing(psycopg.connect(**target.all[1], autocommit=True)) as session:
            for _ in range(LOOKS):
                asked = put_at[-5:-1]
                with suppress(psycopg.errors.LockNotAvailable):
                    missed += unused(session, *asked)
    finally:
        ended = True
    assert working.result(BOUND_S) > 0
    assert missed == []


WAITS_FOR_ROW = "SELECT count(*) FROM pg_locks WHERE NOT granted AND locktype IN ('transactionid', 'tuple')"


def manifest_object(spread: SpreadNamespace, worker: int, pid: int, name: str, locator: str) -> int:
    """An object with a manifest of one part; the upload is on this worker."""
    upload = begin(spread, worker)
    assert put_part(spread.coordinator, spread.ns, upload, 1, locator) == (None, [])
    assert seal(spread.coordinator, spread.ns, upload, [1], pid, 1)[0] is None
    op = Op("put_object", pid, name, spread.new_id(), locator=f"manifest:{upload}")
    assert spread.call(spread.coordinator, op).code is None
    assert spread.coordinator.execute("SELECT mantle.finish_upload_delegated(%s, 0)", (upload,)).fetchone() == ([],)
    return upload


def replace(session: psycopg.Connection, upload: int, old: str, new: str):
    call = "SELECT * FROM mantle.replace_extents_delegated(%s, 1, %s, %s, '{0}', '{1}')"
    return session.execute(call, (upload, [old], [new])).fetchone()


def test_bytes_that_move_wait_for_the_part_that_copies_them(target, spread, later):
    """Then the part names them, so nobody removes them. A later part is refused, and looks where they are."""
    source, name = spread.by_worker[0][0], "moving"
    old, new = (f"objects/00/{uuid.uuid4()}" for _ in range(2))
    manifest = manifest_object(spread, 0, source, name, old)
    found = spread.coordinator.execute(FOUND, (source, name)).fetchone()
    copying = spread.sessions[1]
    with closing(psycopg.connect(**target.all[1], autocommit=True)) as there:
        with copying.transaction():
            assert copy_part(copying, spread.ns, (source, name), found, begin(spread, 1), old) is None
            moving = later(replace, spread.sessions[0], manifest, old, new)
            wait_until(lambda: moving.done() or there.execute(WAITS_FOR_ROW).fetchone()[0], "the move", BOUND_S)
            assert not moving.done(), "it did not wait"
        assert moving.result(BOUND_S) == (None, [old])
    target.settle()
    assert unused(spread.coordinator, old, new) == []
    late = begin(spread, 1)
    assert copy_part(copying, spread.ns, (source, name), found, late, old) == "MT026"
    assert copy_part(copying, spread.ns, (source, name), found, late, new) is None
