"""From an older version to the one just built: the scripts (test_script.py), the catalog and the data
(test_upgrade.py).

libpq's variables (PGHOST, …) name the server, as a superuser, on this machine. Each test makes databases of its own
there and removes them.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import psycopg
import pytest

from stack import upgrade

from . import older


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
                server.execute(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")


@pytest.fixture(scope="session")
def older_version(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Freezes an artificial older version in a temporary directory; installs its upgrade scripts into the server."""
    with psycopg.connect(dbname="postgres") as server:
        (share,) = server.execute("SELECT setting FROM pg_config() WHERE name = 'SHAREDIR'").fetchone()
    folder = Path(share) / "extension"
    current = upgrade.installed_version(folder)
    statements = upgrade.statements((folder / f"mantle--{current}.sql").read_text(encoding="utf-8"))
    versions = tmp_path_factory.mktemp("versions")
    (versions / f"mantle--{older.VERSION}.sql").write_text(older.install_script(statements), encoding="utf-8")
    (versions / f"{older.VERSION}--{current}.sql").write_text(older.WAY, encoding="utf-8")
    written = upgrade.install_scripts(folder, versions)
    yield older.VERSION
    for script in written:
        script.unlink()
