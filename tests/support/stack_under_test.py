"""The stack that the suite starts for its phases, in .test/; the stack of `make run` is never touched.

MANTLE_TEST_FOLDER and MANTLE_TEST_PORT_BASE set its directory, by a name in the repository, and its first port.
"""

import os

from stack.layout import REPOSITORY
from stack.stack import Stack

FOLDER = REPOSITORY / os.environ.get("MANTLE_TEST_FOLDER", ".test")
PORT_BASE = int(os.environ.get("MANTLE_TEST_PORT_BASE", "7600"))
INDEX_GROUPS = (1, 2)
EPOCH_LEASE_MS = 2000


def make() -> Stack:
    return Stack(FOLDER, PORT_BASE, INDEX_GROUPS)


def shorten_lease(stack: Stack) -> None:
    """Tests found index groups and move namespaces; both wait until the gateways' leases have expired."""
    stack.postgresql.psql(f"ALTER SYSTEM SET mantle.epoch_lease_ms = {EPOCH_LEASE_MS}")
    stack.postgresql.psql("SELECT pg_reload_conf()")
