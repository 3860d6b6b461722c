"""What turns an install script into an upgrade script."""

from pathlib import Path

import pytest

from stack.failure import Failure
from stack.upgrade import frozen_versions, install_scripts, statements, upgrade_script


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


@pytest.mark.parametrize(
    "script",
    [
        *("SELECT 'a;", "DO $$ a;", "SELECT 1", "/* a; SELECT 1;", "/* a /* b */ c */ SELECT 1;", 'SELECT "a;'),
        "CREATE FUNCTION f() RETURNS int BEGIN ATOMIC SELECT 1; END;",
    ],
)
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


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A server's extension directory with version 0.3.0, and beside it an empty `versions`."""
    (tmp_path / "versions").mkdir()
    folder = tmp_path / "extension"
    folder.mkdir()
    (folder / "mantle.control").write_text("comment = 'x'\ndefault_version = '0.3.0'\n")
    (folder / "mantle--0.3.0.sql").write_text(INSTALL)
    return folder


def freeze(folder: Path, *names: str) -> Path:
    versions = folder.parent / "versions"
    for name in names:
        (versions / name).write_text("--@ repeatable\n")
    return versions


def test_nothing_is_made_while_nothing_is_frozen(folder: Path):
    versions = freeze(folder, "README.md")
    assert frozen_versions(versions) == [] and install_scripts(folder, versions) == []


def test_the_scripts_of_every_frozen_version_are_installed(folder: Path):
    versions = freeze(folder, "mantle--0.1.0.sql", "mantle--0.1.0--0.2.0.sql", "mantle--0.2.0.sql", "0.2.0--0.3.0.sql")
    assert frozen_versions(versions) == ["0.1.0", "0.2.0"]
    written = {script.name: script.read_text() for script in install_scripts(folder, versions)}
    assert set(written) == {
        "mantle--0.1.0.sql",
        "mantle--0.1.0--0.2.0.sql",
        "mantle--0.2.0.sql",
        "mantle--0.2.0--0.3.0.sql",
    }
    assert written["mantle--0.2.0--0.3.0.sql"].startswith("CREATE OR REPLACE FUNCTION"), (
        "the hand-written part is filled in"
    )


@pytest.mark.parametrize(
    ("names", "why"),
    [
        (["mantle--0.3.0.sql"], "0.3.0 is frozen"),
        (["mantle--0.2.0.sql"], "one hand-written part, to 0.3.0"),
        (["mantle--0.2.0.sql", "0.2.0--0.2.1.sql"], "one hand-written part, to 0.3.0"),
        (["0.2.0--0.3.0.sql"], "nothing is frozen"),
    ],
)
def test_versions_that_do_not_fit_are_refused(folder: Path, names: list[str], why: str):
    with pytest.raises(Failure, match=why):
        install_scripts(folder, freeze(folder, *names))
