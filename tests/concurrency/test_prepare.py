"""A directory rename that no index has prepared is refused by the database itself.

What "prepared" can mean in SQL: the caller names the epoch of the namespace's own index group, an attempt that was neither
aborted nor superseded, and the id that was locked. The database does not know the prepares themselves (they are in the Raft
log), so it cannot tell a made-up attempt under the right epoch from a real one: a gateway is trusted that far, and no other
role may call the verb at all. Nor does it walk up from the destination: loops are the prepare's to refuse, but for the
directory into itself.
"""

import uuid
from dataclasses import replace

import psycopg
import pytest

import state
import verbs
from scenes import D, E, ES, IDS, LEVELS, NEW_A
from verbs import Answer, Key

OTHER_GROUP = 2


class Renames:
    """A scene, and the one rename that all tests attempt: e/s/ to d/n/."""

    def __init__(self, target):
        self.connection = target.connect()
        self.ns = verbs.create_namespace(self.connection, "prepared")
        self.first = verbs.allocate_ids(self.connection, IDS)
        self.tree = LEVELS.build(self.ns, self.first)
        self.op = LEVELS.operations(self.ns, self.first, NEW_A)["rename e/s/ to d/n/"]
        state.plant(self.connection, self.ns, self.tree)

    def attempt(self, key: Key, **changes) -> Answer:
        return verbs.call_one(self.connection, self.ns, replace(self.op, **changes), key)

    def assert_unmoved(self) -> None:
        assert state.differences(self.connection, self.ns, self.tree) == []
        assert self.connection.execute("SELECT count(*) FROM mantle.requests WHERE ns = %s", (self.ns,)).fetchone() == (0,)

    def raise_epoch(self) -> int:
        epoch = self.connection.execute("SELECT epoch FROM mantle.index_group(1)").fetchone()[0]
        return self.connection.execute("SELECT mantle.raise_epoch(1, %s, 'other')", (epoch,)).fetchone()[0]


@pytest.fixture
def renames(make_target, request):
    return Renames(make_target(f"prepare_{uuid.uuid4().hex[:8]}"))


def test_a_prepared_one_is_done(renames):
    """The ground on which the refusals below stand."""
    renames.tree.apply(renames.op)
    assert renames.attempt(Key(uuid.uuid4())).code is None
    assert state.differences(renames.connection, renames.ns, renames.tree) == []


@pytest.mark.parametrize("epoch", [-1, 1, 2**40, None])
def test_another_epoch_is_refused(renames, epoch):
    assert renames.attempt(Key(uuid.uuid4()), epoch=epoch).code == "MT024"
    renames.assert_unmoved()


def test_the_epoch_of_before_a_rebuild_is_refused(renames):
    key, epoch = Key(uuid.uuid4()), renames.raise_epoch()
    renames.tree.epoch = renames.raise_epoch()
    assert renames.attempt(key, epoch=epoch).code == "MT024"
    renames.assert_unmoved()
    assert renames.attempt(key, epoch=epoch + 1).code is None


@pytest.mark.parametrize("epoch", [0, None])
def test_an_unknown_index_group_is_refused(renames, monkeypatch, epoch):
    monkeypatch.setattr(verbs, "INDEX_GROUP", 999)
    assert renames.attempt(Key(uuid.uuid4()), epoch=epoch).code == "MT024"
    renames.assert_unmoved()


@pytest.mark.parametrize("verb", ["rename_directory", "remove_tree"])
def test_another_group_s_epoch_is_refused(renames, monkeypatch, verb):
    """The epoch that fences is that of the group which serves the namespace and holds its locks."""
    renames.connection.execute("INSERT INTO mantle.index_groups (index_group, slot_name) VALUES (%s, 'other')", (OTHER_GROUP,))
    renames.tree.epoch = renames.raise_epoch()
    monkeypatch.setattr(verbs, "INDEX_GROUP", OTHER_GROUP)
    assert renames.attempt(Key(uuid.uuid4()), epoch=0, verb=verb).code == "MT024"
    renames.assert_unmoved()


def test_an_aborted_attempt_is_refused(renames):
    key = Key(uuid.uuid4())
    assert verbs.abort_rename(renames.connection, renames.ns, key) == "aborted"
    assert renames.attempt(key).code == "MT025"
    renames.assert_unmoved()
    newer = Key(key.request)
    assert newer.attempt > key.attempt
    assert renames.attempt(newer).code is None


def test_a_superseded_attempt_is_refused(renames):
    """A newer prepare of the same request is known to the database once it was aborted, or has committed."""
    key = Key(uuid.uuid4())
    assert verbs.abort_rename(renames.connection, renames.ns, Key(key.request)) == "aborted"
    assert renames.attempt(key).code == "MT025"
    renames.assert_unmoved()


def test_an_attempt_that_a_newer_one_has_overtaken_is_refused(renames):
    key = Key(uuid.uuid4())
    assert renames.attempt(Key(key.request)).code is None
    assert renames.attempt(key).code == "MT025"


def test_a_missing_attempt_is_refused(renames):
    assert renames.attempt(Key(uuid.uuid4(), attempt=None)).code == "MT006"
    renames.assert_unmoved()


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"id": D}, "MT026"),
        ({"name": "gone/"}, "MT026"),
        ({"dst_pid": ES}, "MT022"),
        ({"dst_pid": E, "dst_name": "s/"}, "MT012"),
        ({"victim": D}, None),
    ],
    ids=["another source", "no source", "into itself", "to itself", "a victim that is not there"],
)
def test_what_was_locked_is_what_moves(renames, changes, code):
    given = {name: renames.first + value if isinstance(value, int) else value for name, value in changes.items()}
    assert renames.attempt(Key(uuid.uuid4()), **given).code == code
    if code is not None:
        renames.assert_unmoved()


@pytest.mark.parametrize("role", ["mantle_analyst", "mantle_index", "mantle_monitor"])
def test_only_gateways_may_try(renames, role):
    with renames.connection.transaction(force_rollback=True), pytest.raises(psycopg.errors.InsufficientPrivilege):
        renames.connection.execute(f"SET LOCAL ROLE {role}")
        verbs.call(renames.connection, renames.ns, [renames.op], [Key(uuid.uuid4())])
