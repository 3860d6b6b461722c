"""From the oldest version to the one just built: the scripts (test_script.py), the catalog and the data (test_upgrade.py).

The server is the one that libpq's variables (PGHOST, …) name, as a superuser; each test makes databases of its own there and
removes them.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing

import psycopg
import pytest


@pytest.fixture
def make_database() -> Iterator[Callable[[str], psycopg.Connection]]:
    """A database of this name, empty; its connection commits each statement."""
    with ExitStack() as connections, psycopg.connect(dbname="postgres", autocommit=True) as server:
        made = []

        def make(name: str) -> psycopg.Connection:
            name = f"mantle_upgrade_{name}_{os.getpid()}"
            server.execute(f"CREATE DATABASE {name}")
            made.append(name)
            return connections.enter_context(closing(psycopg.connect(dbname=name, autocommit=True)))

        try:
            yield make
        finally:
            connections.close()
            for name in made:
                server.execute(f"DROP DATABASE {name} WITH (FORCE)")
