"""Makes the scripts that upgrade a database from an older version of the extension to the one just built.

sql/versions/ holds released versions: their install scripts and the upgrade scripts between them, which are installed
unchanged. For the version being built it holds one hand-written script (`X--Y.sql`): what happens to tables and their
rows, and what is dropped. A line of it such as

    --@ CREATE INDEX meta_subdirectory

stands for the statements of the install script that begin so. `--@ repeatable` stands for all statements that may run
again: every function and view (as CREATE OR REPLACE), comment, grant and revocation. (Comments on policies are not
included: they come after functions.) So each object is defined once. Dropped or withdrawn objects have no statement
there. The hand-written script must name them, and tests/upgrade finds those that were forgotten. While no version is
frozen, no script is made.
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


def frozen_versions(versions: Path = VERSIONS) -> list[str]:
    """The released versions. A database can be upgraded from each."""
    return sorted(path.stem.split("--")[1] for path in versions.glob("mantle--*.sql") if path.stem.count("--") == 1)


def installed_version(folder: Path) -> str:
    """The version that a server's extension directory installs."""
    control = (folder / "mantle.control").read_text(encoding="utf-8")
    return re.search(r"^default_version = '(.+)'$", control, re.MULTILINE)[1]


def install_scripts(folder: Path, versions: Path = VERSIONS) -> list[Path]:
    """Writes the scripts that upgrade to the installed version beside its install script; returns their paths."""
    version = installed_version(folder)
    frozen = frozen_versions(versions)
    if version in frozen:
        raise Failure(f"{version} is frozen in {versions}: it cannot be built again, raise the version")
    written = [Path(shutil.copyfile(script, folder / script.name)) for script in sorted(versions.glob("mantle--*.sql"))]
    templates = list(versions.glob("[0-9]*--*.sql"))
    if [template.stem.split("--")[1] for template in templates] != [version] * bool(frozen):
        wanted = f"one hand-written part, to {version}" if frozen else "no hand-written part, since nothing is frozen"
        raise Failure(f"{versions} must hold {wanted}; it has {[template.name for template in templates]}")
    install_script = (folder / f"mantle--{version}.sql").read_text(encoding="utf-8")
    for template in templates:
        script = folder / f"mantle--{template.name}"
        script.write_text(upgrade_script(template.read_text(encoding="utf-8"), install_script), encoding="utf-8")
        written.append(script)
    return written


# After a manual `cargo pgrx install`: PYTHONPATH=patroni python3 -m stack.upgrade <extension directory>
if __name__ == "__main__":
    install_scripts(Path(sys.argv[1]))
