"""A stand-in for `indexnode/src/index/prepare.rs`: it refuses loops and locked paths before a directory rename goes to
the database.

It suffices for the sessions of one process: chains of parents are read from the database under a mutex, and locks are
kept in memory until the rename's end is known.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import psycopg

from .tree import TRASH, Op

_PARENT = "SELECT m.pid FROM mantle.meta m WHERE m.id = %s AND m.explicit IS NOT NULL"
LEVELS_MAX = 64


class Prepares:
    """The locks of renames in progress, by the id of the moved directory."""

    def __init__(self):
        self._mutex = threading.Lock()
        self._locked: dict[int, Op] = {}

    @contextmanager
    def prepared(self, connection: psycopg.Connection, op: Op) -> Iterator[bool]:
        """False: refused. The lock is released when the caller knows how the rename ended."""
        with self._mutex:
            granted = self._may(connection, op)
            if granted:
                self._locked[op.id] = op
        try:
            yield granted
        finally:
            if granted:
                with self._mutex:
                    del self._locked[op.id]

    def _may(self, connection: psycopg.Connection, op: Op) -> bool:
        paths = self._paths(connection, op)
        if op.id in paths or paths & {None, TRASH} or op.id in self._locked or paths & self._locked.keys():
            return False
        # The reverse: no rename in progress begins or ends below the directory to be moved.
        return all(op.id not in self._paths(connection, other) for other in self._locked.values())

    def _paths(self, connection: psycopg.Connection, op: Op) -> set[int | None]:
        """The directories above an operation's source, and above its destination."""
        found: set[int | None] = set()
        for id in (op.pid, op.dst_pid or op.pid):
            for _ in range(LEVELS_MAX):
                found.add(id)
                if id is None or id <= TRASH:
                    break
                row = connection.execute(_PARENT, (id,)).fetchone()
                id = row[0] if row else None
        return found
