"""What turns an install script into an upgrade script."""

import pytest

from stack.failure import Failure
from stack.upgrade import statements, upgrade_script


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        ("SELECT 1; SELECT 2;", ["SELECT 1", "SELECT 2"]),
        ("-- a; b\nSELECT 1; /* c; */ ;", ["SELECT 1"]),
        ("SELECT ';--', 'it''s;', \"a;\"\"b\";", ["SELECT ';--', 'it''s;', \"a;\"\"b\""]),
        ("SELECT E'\\';', 2;", ["SELECT E'\\';', 2"]),
        ("DO $$ a; $b$ c; $$; DO $b$ -- d; $$ ' $b$;", ["DO $$ a; $b$ c; $$", "DO $b$ -- d; $$ ' $b$"]),
        ("SELECT f($1, $2); SELECT a$b;", ["SELECT f($1, $2)", "SELECT a$b"]),
        ("SELECT f(\n\ta, /* Array < & str > */\n\tb);", ["SELECT f(\n\ta, \n\tb)"]),
    ],
)
def test_statements(script: str, expected: list[str]):
    assert statements(script) == expected


@pytest.mark.parametrize("script", ["SELECT 'a;", "DO $$ a;", "SELECT 1", "/* a; SELECT 1;", "/* a /* b */ c */ SELECT 1;", 'SELECT "a;',
                                    "CREATE FUNCTION f() RETURNS int BEGIN ATOMIC SELECT 1; END;"])  # fmt: skip
def test_what_is_not_understood_is_refused(script: str):
    with pytest.raises(Failure):
        statements(script)


INSTALL = """
CREATE TABLE mantle.t (a int);
CREATE TABLE mantle.t2 (a int);
CREATE  FUNCTION "f"() RETURNS int LANGUAGE c AS 'MODULE_PATHNAME', 'f_wrapper';
CREATE OR REPLACE VIEW mantle.v AS SELECT 1;
COMMENT ON TABLE mantle.t IS 'x';
INSERT INTO mantle.t VALUES (1);
"""


def test_marks_are_filled_in():
    assert upgrade_script("-- why\n--@ CREATE TABLE mantle.t\n--@ repeatable\n", INSTALL).splitlines() == [
        "-- why",
        "CREATE TABLE mantle.t (a int);",
        "CREATE OR REPLACE FUNCTION \"f\"() RETURNS int LANGUAGE c AS 'MODULE_PATHNAME', 'f_wrapper';",
        "CREATE OR REPLACE VIEW mantle.v AS SELECT 1;",
        "COMMENT ON TABLE mantle.t IS 'x';",
    ]


def test_a_mark_without_a_statement_is_refused():
    with pytest.raises(Failure, match=r"CREATE TABLE mantle\.gone"):
        upgrade_script("--@ CREATE TABLE mantle.gone\n", INSTALL)
