"""Entries and pages of directories as mantle.stat_local and mantle.list_local answer them, and as PostgreSQL copies the
same rows.
"""

import psycopg

LOCAL = (
    "SELECT ord, code, page FROM mantle.list_local"
    "(%s::bigint[], %s::bigint[], %s::text[], %s::text[], %s::int[], %s::boolean[]) ORDER BY ord"
)
ARGUMENTS = 6
ENTRIES = "SELECT ord, code, entry FROM mantle.stat_local(%s::bigint[], %s::bigint[], %s::text[]) ORDER BY ord"
# Of the binary COPY format: before and after the rows.
HEADER_BYTES, TRAILER_BYTES = 19, 2


def pages_together(connection: psycopg.Connection, pages: list[tuple]) -> list[tuple]:
    """Code and page of each: namespace, directory, start, prefix, limit, filled."""
    columns = [list(column) for column in zip(*pages, strict=True)] or [[] for _ in range(ARGUMENTS)]
    found = connection.execute(LOCAL, columns).fetchall()
    assert [row[0] for row in found] == list(range(1, len(pages) + 1))
    return [row[1:] for row in found]


def entries_together(connection: psycopg.Connection, places: tuple) -> list[tuple]:
    """Number, code and entry of each element: namespaces, directories, names."""
    found = connection.execute(ENTRIES, places).fetchall()
    assert [row[0] for row in found] == list(range(1, len(found) + 1))
    return found


def copied(connection: psycopg.Connection, query: str, given: tuple) -> bytes:
    """The rows of a query in the binary COPY format."""
    with connection.cursor() as cursor, cursor.copy(f"COPY ({query}) TO STDOUT (FORMAT binary)", given) as copy:
        return b"".join(copy)[HEADER_BYTES:-TRAILER_BYTES]
