"""What a database holds, to be compared with a copy of it."""

import psycopg

# Tables whose rows a dump leaves out: they belong to one server's history (sql/tables/volumes.sql, freed.sql).
NOT_DUMPED = ("admitted_segments", "freed")


def digests(connection: psycopg.Connection) -> dict[str, tuple]:
    """For each table of the extension, its number of rows and a digest over them."""
    tables = connection.execute(
        "SELECT c.relname FROM pg_depend d JOIN pg_class c ON c.oid = d.objid JOIN pg_extension e ON e.oid = d.refobjid"
        " WHERE e.extname = 'mantle' AND d.classid = 'pg_class'::regclass AND d.deptype = 'e'"
        " AND c.relkind = 'r' ORDER BY 1"
    ).fetchall()
    return {
        table: connection.execute(
            f"SELECT count(*), sum(('x' || left(md5(t::text), 15))::bit(60)::bigint) FROM mantle.{table} AS t"
        ).fetchone()
        for (table,) in tables
    }
