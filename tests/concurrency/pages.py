"""Pages of directories as mantle.list_local answers them, and as PostgreSQL copies the same rows."""

import psycopg

LOCAL = (
    "SELECT ord, code, page FROM mantle.list_local"
    "(%s::bigint[], %s::bigint[], %s::text[], %s::text[], %s::int[], %s::boolean[]) ORDER BY ord"
)
ARGUMENTS = 6
# Of the binary COPY format: before and after the rows.
HEADER_BYTES, TRAILER_BYTES = 19, 2


def pages_together(connection: psycopg.Connection, pages: list[tuple]) -> list[tuple]:
    """Code and page of each: namespace, directory, start, prefix, limit, filled."""
    columns = [list(column) for column in zip(*pages, strict=True)] or [[] for _ in range(ARGUMENTS)]
    found = connection.execute(LOCAL, columns).fetchall()
    assert [row[0] for row in found] == list(range(1, len(pages) + 1))
    return [row[1:] for row in found]


def copied(connection: psycopg.Connection, query: str, given: tuple) -> bytes:
    """The rows of a query in the binary COPY format."""
    with connection.cursor() as cursor, cursor.copy(f"COPY ({query}) TO STDOUT (FORMAT binary)", given) as copy:
        return b"".join(copy)[HEADER_BYTES:-TRAILER_BYTES]
