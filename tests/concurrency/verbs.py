"""Calls of the extension's verbs, as the gateway makes them: arrays, an answer per element. Every SQL text that mutates
through a verb is here.
"""

import itertools
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field

import psycopg

from .tree import Op, Outcome

PRINCIPAL = 5
# Of namespaces and entries.
OWNER = 7
# Uid 0: what it may do depends on no permission.
CALLER = "0"
INDEX_GROUP = 1
BATCHED = ("put_object", "delete_object", "mkdir", "rmdir", "set_attributes")
# The worker's verbs, and the index's: no client retries them, so no answer is recorded.
WITHOUT_REQUEST = ("compact", "prune", "raise_epoch")
attempts = itertools.count(1)


@dataclass(frozen=True)
class Key:
    """A request id and the hash of the request. `attempt`: for a rename, the one that the index answered to the
    prepare.
    """

    request: uuid.UUID
    hash: int = 0
    attempt: int = field(default_factory=lambda: next(attempts))


@dataclass(frozen=True)
class Answer:
    """A verb's answer for one element."""

    code: str | None
    id: int | None = None
    version: int | None = None
    replayed: bool = False

    @property
    def outcome(self) -> Outcome:
        return Outcome(self.code, self.id, self.version)


CALLS = {
    "put_object": "SELECT code, id, version, replayed FROM mantle.put_object(%(principal)s::int[],"
    " %(ns)s::bigint[], %(pid)s::bigint[], %(name)s::text[], %(id)s::bigint[], %(owner)s::int[], %(owner)s::int[],"
    " %(mode)s::int[], %(size)s::bigint[], %(etag)s::text[], %(etag)s::text[], %(null)s::text[]::jsonb[],"
    " %(locator)s::text[], %(condition)s::text[], %(request)s::uuid[], %(hash)s::bigint[],"
    " p_caller => %(caller)s::text[], p_parent => %(parent)s::text[], p_inline => %(inline)s::bytea[]) ORDER BY ord",
    "delete_object": "SELECT code, id, NULL, replayed FROM mantle.delete_object(%(principal)s::int[],"
    " %(ns)s::bigint[], %(pid)s::bigint[], %(name)s::text[], %(null)s::text[]::bigint[], %(null)s::text[]::bigint[],"
    " %(request)s::uuid[], %(hash)s::bigint[], p_caller => %(caller)s::text[],"
    " p_parent => %(parent)s::text[]) ORDER BY ord",
    "mkdir": "SELECT code, id, version, replayed FROM mantle.mkdir(%(principal)s::int[], %(ns)s::bigint[],"
    " %(pid)s::bigint[], %(name)s::text[], %(id)s::bigint[], %(owner)s::int[], %(owner)s::int[], %(mode)s::int[],"
    " %(explicit)s::boolean[], %(null)s::text[]::jsonb[], %(request)s::uuid[], %(hash)s::bigint[],"
    " p_caller => %(caller)s::text[], p_parent => %(parent)s::text[]) ORDER BY ord",
    "rmdir": "SELECT code, id, NULL, replayed FROM mantle.rmdir(%(principal)s::int[], %(ns)s::bigint[],"
    " %(pid)s::bigint[], %(name)s::text[], %(id)s::bigint[], %(request)s::uuid[], %(hash)s::bigint[],"
    " p_caller => %(caller)s::text[], p_parent => %(parent)s::text[]) ORDER BY ord",
    "set_attributes": "SELECT code, id, version, replayed FROM mantle.set_attributes(%(principal)s::int[],"
    " %(ns)s::bigint[], %(pid)s::bigint[], %(name)s::text[], %(id)s::bigint[], %(new_owner)s::int[], %(null)s::int[],"
    " %(mode)s::int[], %(metadata)s::text[]::jsonb[], %(stays)s::boolean[], %(request)s::uuid[],"
    " %(hash)s::bigint[], p_caller => %(caller)s::text[], p_parent => %(parent)s::text[],"
    " p_part_of => %(part_of)s::text[]) ORDER BY ord",
    "rename_object": "SELECT code, id, NULL, replayed FROM mantle.rename_object(%(principal)s, %(ns)s, %(pid)s,"
    " %(name)s, %(dst_pid)s, %(dst_name)s, %(overwrite)s, %(request)s, %(hash)s, p_caller => %(caller)s,"
    " p_src_parent => %(parent)s, p_dst_parent => %(parent)s)",
    "copy_object": "SELECT c.code, c.id, NULL, c.replayed FROM mantle.meta m, mantle.copy_object(%(principal)s, %(ns)s,"
    " %(pid)s, %(name)s, m.id, m.version, %(ns)s, %(dst_pid)s, %(dst_name)s, %(id)s, 7, 7, %(mode)s, NULL, NULL, NULL,"
    " %(request)s, %(hash)s, p_caller => %(caller)s, p_dst_parent => %(parent)s, p_src_parent => %(parent)s) AS c"
    " WHERE m.pid = %(pid)s AND m.name = %(name)s AND m.ts = 0",
    "rename_directory": "SELECT code, id, version, replayed FROM mantle.rename_directory(%(principal)s, %(ns)s,"
    " %(pid)s, %(name)s, %(id)s, %(dst_pid)s, %(dst_name)s, %(victim)s, %(group)s, %(epoch)s, %(attempt)s,"
    " %(request)s, %(hash)s, p_caller => %(caller)s, p_src_parent => %(parent)s, p_dst_parent => %(parent)s,"
    " p_proof => mantle.prove(%(group)s, %(epoch)s, %(attempt)s, %(principal)s, %(ns)s, %(request)s,"
    " %(pid)s, %(name)s, %(id)s, %(dst_pid)s, %(dst_name)s, %(victim)s))",
    "remove_tree": "SELECT code, id, version, replayed FROM mantle.remove_tree(%(principal)s, %(ns)s, %(pid)s,"
    " %(name)s, %(id)s, %(group)s, %(epoch)s, %(attempt)s, %(request)s, %(hash)s, gen_random_uuid(),"
    " p_caller => %(caller)s, p_src_parent => %(parent)s, p_proof =>"
    " mantle.prove(%(group)s, %(epoch)s, %(attempt)s, %(principal)s, %(ns)s, %(request)s, %(pid)s, %(name)s, %(id)s,"
    " 1, '', 0))",
    "compact": "SELECT NULL, NULL, NULL, false FROM mantle.compact(%(pid)s)",
    "raise_epoch": "SELECT CASE WHEN e IS NULL THEN 'MT024' END, NULL, NULL, false FROM"
    " mantle.raise_epoch(%(group)s, %(epoch)s, 't') AS e",
    "prune": "SELECT NULL, NULL, NULL, false FROM mantle.prune(%(id)s)",
}


def call(
    connection: psycopg.Connection,
    ns: int,
    ops: list[Op],
    keys: list[Key],
    caller: str = CALLER,
    parent: str | None = None,
) -> list[Answer]:
    """One call with one or, for a batched verb, several elements. A call that fails as a whole raises psycopg.Error.

    `parent`: the permission of the directories as a lookup found it.
    """
    verb = ops[0].verb
    if verb in BATCHED:
        given = {
            name: [getattr(op, name) for op in ops]
            for name in (
                "pid", "name", "id", "size", "etag", "condition", "explicit", "mode", "locator", "inline", "new_owner",
                "metadata", "stays", "part_of",
            )
        }  # fmt: skip
        given |= {name: [getattr(key, name) for key in keys] for name in ("request", "hash")}
        given |= {
            name: [value] * len(ops)
            for name, value in (
                ("principal", PRINCIPAL),
                ("ns", ns),
                ("owner", 7),
                ("null", None),
                ("caller", caller),
                ("parent", parent),
            )
        }
    else:
        assert len(ops) == 1
        given = {**vars(ops[0]), **vars(keys[0]), "principal": PRINCIPAL, "ns": ns, "group": INDEX_GROUP}
        given |= {"caller": caller, "parent": parent}
    return [Answer(*row) for row in connection.execute(CALLS[verb], given).fetchall()]


def call_one(connection: psycopg.Connection, ns: int, op: Op, key: Key) -> Answer:
    """One element; a call that fails answers its SQLSTATE."""
    return tried(lambda: call(connection, ns, [op], [key])[0])


def tried(answer: Callable[[], Answer]) -> Answer:
    """The answer, or the SQLSTATE of the error."""
    try:
        return answer()
    except psycopg.Error as error:
        return Answer(error.sqlstate or type(error).__name__)


def abort_rename(connection: psycopg.Connection, ns: int, key: Key) -> str:
    """The leader's call: makes sure that an attempt cannot commit any more, or answers that it has."""
    return connection.execute(
        "SELECT mantle.abort_rename(%s, %s, %s, %s)", (PRINCIPAL, ns, key.request, key.attempt)
    ).fetchone()[0]


def allocate_ids(connection: psycopg.Connection, count: int) -> int:
    """Allocates `count` ids; returns the first."""
    return connection.execute("SELECT first_id FROM mantle.allocate_ids('tests', %s)", (count,)).fetchone()[0]


def create_namespace(connection: psycopg.Connection, name: str) -> int:
    """A namespace's number, which is its root's id."""
    root = allocate_ids(connection, 1)
    assert make_namespace(connection, name, root, Key(uuid.uuid4())).code is None
    return root


def make_namespace(connection: psycopg.Connection, name: str, root: int, key: Key) -> Answer:
    query = "SELECT code, ns, NULL, replayed FROM mantle.create_namespace(%s, %s, %s, 7, 7, 493, %s, %s, p_umask => 0)"
    return Answer(*connection.execute(query, (PRINCIPAL, name, root, key.request, key.hash)).fetchone())


def delete_namespace(connection: psycopg.Connection, name: str, key: Key) -> Answer:
    query = "SELECT code, ns, NULL, replayed FROM mantle.delete_namespace(%s, %s, %s, %s)"
    return Answer(*connection.execute(query, (OWNER, name, key.request, key.hash)).fetchone())
