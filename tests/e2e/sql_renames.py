"""Renames of directories by SQL alone, as if the index had prepared them."""

import uuid
from collections.abc import Sequence
from dataclasses import dataclass

import psycopg

from tests.support.permission_model import Permission

ATTEMPT = 1 << 50


@dataclass(frozen=True)
class Who:
    """A caller: its uid, and the text that the verbs take."""

    uid: int
    text: str


ROOT = Who(0, "0")


def marks(count: int) -> str:
    return ", ".join(["%s"] * count)


def record_permission(connection: psycopg.Connection, ns: int, id: int, of: Permission) -> None:
    """As a change of mode leaves it. Of what was never changed, the index alone has checked the permission."""
    record = "SELECT FROM mantle.record_permission_delegated(%s, %s, %s, %s, %s)"
    connection.execute(record, (id, ns, of.owner, of.group, of.mode))


def rename_directory(
    connection: psycopg.Connection,
    who: Who,
    ns: int,
    id: int,
    source: tuple[int, str],
    to: tuple[int, str],
    old: int = 0,
    parents: Sequence[str | None] = (None, None),
) -> str | None:
    """The code of the verb. Source and destination: the parent's id, and the name. `old`: what it replaces.

    `parents`: the permissions of both parents, as the index had them.
    """
    (epoch,) = connection.execute("SELECT epoch FROM mantle.index_group(1)").fetchone()
    request = uuid.uuid4()
    moved = [who.uid, ns, *source, id, *to, old, 1, epoch, ATTEMPT, request]
    proof = [1, epoch, ATTEMPT, who.uid, ns, request, *source, id, *to, old]
    query = f"SELECT code FROM mantle.rename_directory({marks(12)}, 0, NULL, %s, mantle.prove({marks(12)}), %s, %s)"
    return connection.execute(query, [*moved, who.text, *proof, *parents]).fetchone()[0]
