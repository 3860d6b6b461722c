"""The database itself refuses a directory rename that no index has prepared.

"Prepared" means in SQL: the caller names the epoch of the namespace's index group, an attempt that was neither aborted
nor superseded, and the locked id, and has the group's proof of all of it. (`mantle.prove` makes it here; the group's
leader does so with a key that only it may request.) The database does not know the prepares themselves, which are in
the Raft log, and does not walk up from the destination. So the prepare must refuse loops, except for a directory into
itself.
"""

import uuid
from dataclasses import replace

import psycopg
import pytest

from . import state, verbs
from .scenarios import ES, IDS, LEVELS, NEW_A, D, E
from .verbs import Answer, Key

OTHER_GROUP = 2


class Renames:
    """A scenario, and the one rename that all tests attempt: e/s/ to d/n/."""

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
        assert self.connection.execute("SELECT count(*) FROM mantle.requests WHERE ns = %s", (self.ns,)).fetchone() == (
            0,
        )

    def raise_epoch(self) -> int:
        epoch = self.connection.execute("SELECT epoch FROM mantle.index_group(1)").fetchone()[0]
        return self.connection.execute("SELECT mantle.raise_epoch(1, %s, 'other')", (epoch,)).fetchone()[0]


@pytest.fixture
def renames(make_target, request):
    return Renames(make_target(f"prepare_{uuid.uuid4().hex[:8]}"))


def test_a_prepared_one_is_done(renames):
    """Shows that the refusals below have no other cause."""
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
    """The epoch must be that of the group which serves the namespace and holds its locks."""
    renames.connection.execute(
        "INSERT INTO mantle.index_groups (index_group, slot_name) VALUES (%s, 'other')", (OTHER_GROUP,)
    )
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
    """The database knows a newer prepare of the same request once that was aborted, or has committed."""
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
    call = (
        "SELECT FROM mantle.rename_directory(5, 1024, 1024, 'a/', 1025, 1024, 'b/', 0, 1, 0, 1, gen_random_uuid(), 0)"
    )
    with renames.connection.transaction(force_rollback=True):
        renames.connection.execute(f"SET LOCAL ROLE {role}")
        with pytest.raises(psycopg.errors.InsufficientPrivilege, match="rename_directory"):
            renames.connection.execute(call)


@pytest.mark.parametrize("role", ["mantle_gateway", "mantle_analyst", "mantle_monitor"])
@pytest.mark.parametrize(
    "call",
    [
        "TABLE mantle.prepare_keys",
        "SELECT mantle.prepare_key(1)",
        "SELECT mantle.prove(1, 0, 1, 5, 1024, gen_random_uuid(), 1024, 'a/', 1025, 1024, 'b/', 0)",
        "SELECT mantle.proof('key', 1, 0, 1, 5, 1024, gen_random_uuid(), 1024, 'a/', 1025, 1024, 'b/', 0)",
    ],
    ids=["table", "key", "proof by the group", "proof by a key"],
)
def test_only_the_index_has_the_key(renames, role, call):
    with renames.connection.transaction(force_rollback=True):
        renames.connection.execute(f"SET LOCAL ROLE {role}")
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            renames.connection.execute(call)


MADE_UP = {"none": "NULL", "another": "sha256('made up')", "short": "'\\x00'"}


@pytest.mark.parametrize("verb", ["rename_directory", "remove_tree"])
@pytest.mark.parametrize("proof", list(MADE_UP))
def test_a_made_up_attempt_is_refused(renames, monkeypatch, verb, proof):
    """With the right epoch, and a directory that exists."""
    text = verbs.CALLS[verb]
    monkeypatch.setitem(verbs.CALLS, verb, f"{text[: text.index('mantle.prove(')]}{MADE_UP[proof]})")
    assert renames.attempt(Key(uuid.uuid4()), verb=verb).code == "MT046"
    renames.assert_unmoved()


@pytest.mark.parametrize(
    "proven", ["attempt + 1", "request, other", "to another place", "of another directory", "of a removal"]
)
def test_a_proof_of_something_else_is_refused(renames, monkeypatch, proven):
    text = verbs.CALLS["rename_directory"]
    call, proof = text[: text.index("mantle.prove(")], text[text.index("mantle.prove(") :]
    other = {
        "attempt + 1": ("%(attempt)s", "%(attempt)s + 1"),
        "request, other": ("%(request)s", "gen_random_uuid()"),
        "to another place": ("%(dst_name)s", "'elsewhere/'"),
        "of another directory": ("%(id)s", "%(id)s + 1"),
        "of a removal": ("%(dst_pid)s, %(dst_name)s", "1, ''"),
    }[proven]
    changed = proof.replace(*other)
    assert changed != proof
    monkeypatch.setitem(verbs.CALLS, "rename_directory", call + changed)
    assert renames.attempt(Key(uuid.uuid4())).code == "MT046"
    renames.assert_unmoved()


def test_a_group_without_a_key_is_taken_at_its_word(renames, monkeypatch):
    """So that renames go on while IndexNodes and gateways of a version without proofs are replaced."""
    text = verbs.CALLS["rename_directory"]
    monkeypatch.setitem(verbs.CALLS, "rename_directory", f"{text[: text.index('mantle.prove(')]}NULL)")
    renames.connection.execute("DELETE FROM mantle.prepare_keys")
    told = "SELECT count(*) FROM mantle.check_cluster() WHERE problem = 'prepare_keys'"
    assert renames.connection.execute(told).fetchone() == (1,)
    assert renames.attempt(Key(uuid.uuid4())).code is None
    assert renames.connection.execute("SELECT mantle.make_prepare_keys(), mantle.make_prepare_keys()").fetchone() == (
        1,
        0,
    )
    assert renames.connection.execute(told).fetchone() == (0,)
    assert renames.attempt(Key(uuid.uuid4())).code == "MT046"


def test_a_group_is_made_with_a_key(renames):
    renames.connection.execute("SELECT mantle.create_index_group(%s)", (OTHER_GROUP,))
    keys = "SELECT octet_length(key) FROM mantle.prepare_keys WHERE index_group = %s"
    assert renames.connection.execute(keys, (OTHER_GROUP,)).fetchone() == (32,)
    renames.connection.execute("SELECT mantle.drop_index_group(%s)", (OTHER_GROUP,))
    assert renames.connection.execute(keys, (OTHER_GROUP,)).fetchone() is None
