"""Copies of objects, as the gateway asks for them."""

import uuid
from dataclasses import dataclass

import psycopg

from .verbs import PRINCIPAL

COPY = (
    "SELECT code, id, replayed, old_locator FROM mantle.copy_object(%(principal)s, %(ns)s, %(src)s, %(name)s, %(id)s,"
    " %(version)s, %(ns)s, %(dst)s, %(new)s, %(new_id)s, 7, 7, 420, NULL, NULL, %(condition)s, %(request)s, 0,"
    " p_caller => '0')"
)
FOUND = "SELECT m.id, m.version FROM mantle.meta m WHERE m.pid = %s AND m.name = %s AND m.ts = 0"
LOCATOR = "SELECT m.locator, m.shared FROM mantle.meta m WHERE m.pid = %s AND m.name = %s AND m.ts = 0"
DELETE = (
    "SELECT code, old_locator FROM mantle.delete_object(ARRAY[%s]::int[], ARRAY[%s]::bigint[], ARRAY[%s]::bigint[],"
    " ARRAY[%s], '{NULL}', '{NULL}', ARRAY[%s]::uuid[], ARRAY[0]::bigint[], p_caller => '{0}')"
)


@dataclass(frozen=True)
class Copied:
    code: str | None
    id: int | None
    replayed: bool
    old_locator: str | None


def copy(
    session: psycopg.Connection, ns: int, source: tuple[int, str], destination: tuple[int, str], new_id: int, **given
) -> Copied:
    """One call. `found`: what was read of the source before, by default what it is now."""
    id, version = given.get("found") or session.execute(FOUND, source).fetchone() or (0, 0)
    values = {
        "principal": PRINCIPAL, "ns": ns, "src": source[0], "name": source[1], "id": id, "version": version,
        "dst": destination[0], "new": destination[1], "new_id": new_id, "condition": given.get("condition"),
        "request": given.get("request") or uuid.uuid4(),
    }  # fmt: skip
    return Copied(*session.execute(COPY, values).fetchone())


def delete(session: psycopg.Connection, ns: int, pid: int, name: str) -> tuple[str | None, str | None]:
    """Code, and the locator of bytes that the caller may remove."""
    return session.execute(DELETE, (PRINCIPAL, ns, pid, name, uuid.uuid4())).fetchone()


def locator(session: psycopg.Connection, pid: int, name: str) -> tuple[str | None, bool | None]:
    """Locator and mark of an object; NULLs if there is none."""
    return session.execute(LOCATOR, (pid, name)).fetchone() or (None, None)
