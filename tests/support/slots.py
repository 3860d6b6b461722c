"""The slot of an index group, as an operator might drop it."""

import psycopg

SLOT = "mantle_index_1"


def drop_slot(connection: psycopg.Connection) -> bool:
    """Drops the slot while it is free of its reader; false when the reader was faster."""
    connection.execute(
        "SELECT pg_terminate_backend(active_pid, 5000) FROM pg_replication_slots WHERE slot_name = %s", (SLOT,)
    )
    try:
        connection.execute("SELECT pg_drop_replication_slot(%s)", (SLOT,))
    except psycopg.errors.ObjectInUse:
        return False
    return True
