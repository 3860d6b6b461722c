"""The scripts that bring a database from an older version of the extension to the one just built.

sql/versions/ holds two kinds of files:

- frozen, of released versions: their install scripts (`mantle--A.sql`) and the upgrade scripts between them
  (`mantle--A--B.sql`). They are installed unchanged.
- one script to the version being built (`A--B.sql`, without prefix), written by hand: what happens to tables and their
  rows, and what is dropped.

A line of the second kind such as

    --@ CREATE INDEX meta_subdirectory

stands for the statements of the install script that begin so. `--@ repeatable` stands for all statements that may run
again: every function and view (as CREATE OR REPLACE), comment, grant and revocation. (Comments on policies are not
included: they come after functions.) So each object is defined once. Objects that were dropped or withdrawn have no
statement there. They must be named by hand, and tests/upgrade finds those that were forgotten.

To release a version, copy its install script and the script made here into sql/versions/ with their prefix, then
replace the hand-written script by a new one.
"""

import re
import shutil
import sys
from pathlib import Path

from .failure import Failure
from .layout import REPOSITORY

VERSIONS = REPOSITORY / "sql" / "versions"
MARK = "--@ "
REPEATABLE = re.compile(r"(CREATE (OR REPLACE )?(FUNCTION|PROCEDURE|VIEW)|COMMENT ON(?! POLICY)|GRANT|REVOKE) ")

# Quotes and comments that may hide a semicolon, the semicolon, and openings that have no end.
TOKEN = re.compile(
    r"""(?P<comment> --[^\n]* | /\*.*?\*/ )
      | (?P<quoted> \b[eE]'(?:[^'\\]|\\.|'')*' | '(?:[^']|'')*' | "(?:[^"]|"")*"
            | (?<![\w$])\$(?P<tag>(?:[A-Za-z_]\w*)?)\$.*?\$(?P=tag)\$ )
      | (?P<end> ; )
      | (?P<open> ['"] | /\* | (?<![\w$])\$(?:[A-Za-z_]\w*)?\$ | \bBEGIN\s+ATOMIC\b )""",
    re.VERBOSE | re.DOTALL | re.IGNORECASE,
)


def statements(script: str) -> list[str]:
    """The statements of a script without semicolons, and without comments except in quoted bodies."""
    found, statement, position = [], "", 0
    for token in TOKEN.finditer(script):
        statement += script[position : token.start()]
        position = token.end()
        if token["open"]:
            line = script.count("\n", 0, token.start()) + 1
            raise Failure(f"line {line}: {token[0]!r} has no end, or begins something that is not understood here")
        if token["quoted"]:
            statement += token[0]
        elif token["comment"]:
            if "/*" in token[0][2:] and token[0].startswith("/*"):
                raise Failure(f"comments in comments are not understood here: {token[0]!r}")
        else:
            found.append(statement.strip())
            statement = ""
    if (statement + script[position:]).strip():
        raise Failure(f"a statement without an end: {(statement + script[position:]).strip()[:80]!r}")
    return [statement for statement in found if statement]


def upgrade_script(template: str, install_script: str) -> str:
    """The hand-written script with its marks replaced by statements."""
    installs = statements(install_script)
    lines = []
    for line in template.splitlines():
        if not line.startswith(MARK):
            lines.append(line)
            continue
        wanted = line.removeprefix(MARK).strip()
        if wanted == "repeatable":
            chosen = [_replacing(statement) for statement in installs if REPEATABLE.match(_spaced(statement))]
        else:
            chosen = [statement for statement in installs if _begins(_spaced(statement), wanted)]
        if not chosen:
            raise Failure(f"the install script has no statement for `{line}`")
        lines += [f"{statement};" for statement in chosen]
    return "\n".join(lines) + "\n"


def _spaced(statement: str) -> str:
    return " ".join(statement.split())


def _begins(statement: str, wanted: str) -> bool:
    """Matches a prefix that does not end inside a name."""
    return re.match(rf"{re.escape(wanted)}(?!\w)", statement) is not None


def _replacing(statement: str) -> str:
    return re.sub(r"^CREATE\s+(?!OR\s)", "CREATE OR REPLACE ", statement)


def installed_version(folder: Path) -> str:
    """The version that a server's extension directory installs."""
    control = (folder / "mantle.control").read_text(encoding="utf-8")
    return re.search(r"^default_version = '(.+)'$", control, re.MULTILINE)[1]


def install_scripts(folder: Path) -> None:
    """Puts all scripts that upgrade to that version beside its install script."""
    version = installed_version(folder)
    for frozen in VERSIONS.glob("mantle--*.sql"):
        if frozen.name == f"mantle--{version}.sql":
            raise Failure(f"{version} is frozen in {frozen.parent}: it cannot be built again, raise the version")
        shutil.copyfile(frozen, folder / frozen.name)
    templates = list(VERSIONS.glob("[0-9]*--*.sql"))
    if [template.stem.split("--")[1] for template in templates] != [version]:
        raise Failure(f"{VERSIONS} must hold one hand-written way, to {version}; it has {[t.name for t in templates]}")
    install_script = (folder / f"mantle--{version}.sql").read_text(encoding="utf-8")
    for template in templates:
        script = upgrade_script(template.read_text(encoding="utf-8"), install_script)
        (folder / f"mantle--{template.name}").write_text(script, encoding="utf-8")


if (
    __name__ == "__main__"
):  # after a manual cargo pgrx install: PYTHONPATH=patroni python3 -m stack.upgrade <extension directory>
    install_scripts(Path(sys.argv[1]))
