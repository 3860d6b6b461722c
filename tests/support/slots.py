"""The slot of an index group, as an operator might drop it."""

import psycopg


def slot_name(connection: psycopg.Connection, index_group: int = 1) -> str:
    """The name of the slot of a group, in the session's database."""
    query = "SELECT slot_name FROM mantle.index_groups WHERE index_group = %s"
    return connection.execute(query, (index_group,)).fetchone()[0]


def drop_slot(connection: psycopg.Connection) -> bool:
    """Drops the slot of group 1 while it is free of its reader; false when the reader was faster."""
    slot = slot_name(connection)
    connection.execute(
        "SELECT pg_terminate_backend(active_pid, 5000) FROM pg_replication_slots WHERE slot_name = %s", (slot,)
    )
    try:
        connection.execute("SELECT pg_drop_replication_slot(%s)", (slot,))
    except psycopg.errors.ObjectInUse:
        return False
    return True
