"""Compares the tables with the model, and fills the tables from a model."""

import psycopg

from .tree import TRASH, Entry, Tree

# A directory's counts are split, so that there is a primary record to update in place and a delta record to fold.
_IN_DELTA = (-1, 0, -7)

_ENTRIES = """
    SELECT pid, name, id, version, mode, size, etag, explicit FROM mantle.meta
     WHERE ns = %s AND ts = 0 AND id IS NOT NULL AND pid <> 0
"""


def read_tree(connection: psycopg.Connection, ns: int) -> Tree:
    """Entries and tombstones of a namespace, in one snapshot each, without the root's own entry."""
    tree = Tree()
    for pid, name, *columns in connection.execute(_ENTRIES, (ns,)).fetchall():
        tree.place(pid, name, Entry(*columns))
    tree.removed = {
        pid for (pid,) in connection.execute("SELECT pid FROM mantle.meta WHERE removed AND ns = %s", (ns,))
    }
    tree.epoch = connection.execute("SELECT epoch FROM mantle.index_group(1)").fetchone()[0]
    return tree


def plant(connection: psycopg.Connection, ns: int, tree: Tree, has_primary: bool = True) -> None:
    """Replaces a namespace's content by a model's."""
    entries = [
        (pid, name, 0, ns, e.id, 7, 7, e.mode, e.version, e.explicit, e.size, e.etag, None, None, None, None)
        for (pid, name), e in tree.entries.items()
    ]
    counts = tree.counts()
    records = []
    for id in {ns, *(entry.id for entry in tree.entries.values() if entry.is_directory)}:
        found = counts.get(id, (0, 0, 0))
        primary = tuple(total - part for total, part in zip(found, _IN_DELTA, strict=True))
        for ts, values in ((0 if has_primary else 1, primary), (2, _IN_DELTA)):
            records.append((id, "/_ATTR", ts, ns, *[None] * 8, *values, False if ts == 0 else None))
    with connection.transaction():
        for table in ("meta", "requests", "rename_attempts"):
            connection.execute(
                f"DELETE FROM mantle.{table} WHERE ns = %s{' AND pid <> 0' if table == 'meta' else ''}", (ns,)
            )
        connection.execute("DELETE FROM mantle.prune_queue")
        connection.execute("DELETE FROM mantle.operations")
        connection.execute("UPDATE mantle.index_groups SET epoch = %s WHERE index_group = 1", (tree.epoch,))
        connection.cursor().executemany(
            "INSERT INTO mantle.meta (pid, name, ts, ns, id, owner, grp, mode, version, explicit, size, etag, entries,"
            " subdirectories, bytes, removed) VALUES (" + ", ".join(["%s"] * 16) + ")",
            entries + records,
        )


def damage(connection: psycopg.Connection) -> list[str]:
    """The problems that mantle.check() finds."""
    with connection.transaction():
        connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        found = connection.execute("SELECT problem, pid, name, detail FROM mantle.check()").fetchall()
    return [f"check: {problem} at ({pid}, {name}): {detail}" for problem, pid, name, detail in found]


def differences(connection: psycopg.Connection, ns: int, expected: Tree) -> list[str]:
    """Differences between tables and model (entries, tombstones, counts), and problems of check()."""
    found = read_tree(connection, ns)
    texts = [
        f"tree: at {place} is {found.entries.get(place)}, expected {expected.entries.get(place)}"
        for place in sorted(found.entries.keys() | expected.entries.keys())
        if found.entries.get(place) != expected.entries.get(place)
    ]
    texts += [f"tree: directory {id} and its tombstone" for id in sorted(found.removed ^ expected.removed)]
    if found.epoch != expected.epoch:
        texts.append(f"tree: the epoch is {found.epoch}, expected {expected.epoch}")
    counts = expected.counts()
    ids = sorted({ns, *counts, *(e.id for e in expected.entries.values() if e.is_directory)} - {TRASH})
    rows = connection.execute(
        "SELECT code, entries, subdirectories, bytes FROM mantle.dirstat(%s, %s::bigint[]) ORDER BY ord", (ns, ids)
    ).fetchall()
    for id, (code, *recorded) in zip(ids, rows, strict=True):
        if code is not None or tuple(recorded) != counts.get(id, (0, 0, 0)):
            texts.append(f"dirstat: directory {id} says {code} {recorded}, there are {counts.get(id, (0, 0, 0))}")
    return texts + damage(connection)
