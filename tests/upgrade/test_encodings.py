"""Databases with other encodings: the extension refuses them, since it compares and measures names as UTF-8."""

import os

import psycopg
import pytest

SAID = {
    **{encoding: f"UTF8, and this one has {encoding}" for encoding in ("LATIN1", "WIN1252", "KOI8R", "SQL_ASCII")},
    # PostgreSQL refuses the script itself: its text, which is UTF-8, is none in an encoding of several bytes.
    "EUC_JP": "invalid byte sequence",
}


@pytest.mark.parametrize("encoding", SAID)
def test_another_encoding_is_refused(encoding: str):
    name = f"mantle_upgrade_encoding_{os.getpid()}"
    with psycopg.connect(dbname="postgres", autocommit=True) as server:
        server.execute(f"CREATE DATABASE {name} ENCODING '{encoding}' LOCALE 'C' TEMPLATE template0")
        try:
            with psycopg.connect(dbname=name, autocommit=True) as connection:
                with pytest.raises(psycopg.Error, match=SAID[encoding]):
                    connection.execute("CREATE EXTENSION mantle")
                assert connection.execute("SELECT to_regnamespace('mantle')").fetchone() == (None,)
        finally:
            server.execute(f"DROP DATABASE {name} WITH (FORCE)")


@pytest.mark.parametrize("client", ["LATIN1", "SQL_ASCII"])
def test_a_client_may_have_another_encoding(make_database, client: str):
    """The server converts what such a client sends. What it does not convert has to be UTF-8."""
    connection = make_database("client")
    connection.execute("CREATE EXTENSION mantle")
    connection.execute(f"SET client_encoding = '{client}'")
    text = "caf\u00e9/"
    sent = text.encode("latin-1" if client == "LATIN1" else "utf-8")
    query = b"SELECT convert_to('%s', 'UTF8') = '\\x%s' AND mantle.directory_name_fault('%s') IS NULL"
    asked = query % (sent, text.encode().hex().encode(), sent)
    assert connection.execute(asked).fetchone() == (True,)
