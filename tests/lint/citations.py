"""Checks the rules of docs/protocols.md. `make lint` runs it; exit 1 names each fault.

A citation is `P` and one or two digits, as a word of its own (`P50`, `P90`, `P95`, `P99` are percentiles). Each cited
number has a heading (`## P7 — …`), each heading is cited in code, and each file and test that the page names exists. A
test is named `path::name`; its file has a function of that name.
"""

import re
import subprocess
import sys
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
PAGE = "docs/protocols.md"
CODE = (".rs", ".sql", ".py")
CITING = (*CODE, ".md", ".toml", ".yml", ".yaml", ".proto", ".psql")
PERCENTILES = {50, 90, 95, 99}
CITATION = re.compile(r"(?<![\w.-])P([1-9][0-9]?)(?![\w%])")
HEADING = re.compile(r"^## P([1-9][0-9]*) — \S", re.MULTILINE)
NAMED = re.compile(r"`([\w./-]+/[\w.-]+\.\w+)(?:::(\w+))?`")
FUNCTION = {".rs": r"\bfn {}\b", ".py": r"^\s*(?:async )?def {}\("}


def citations(files: list[str]) -> dict[int, list[str]]:
    """Where each number is cited, outside the page."""
    found: dict[int, list[str]] = {}
    for name in files:
        if not name.endswith(CITING) or name == PAGE or name.startswith("sql/versions/"):
            continue
        for number, line in enumerate((REPOSITORY / name).read_text(encoding="utf-8").splitlines(), 1):
            for rule in map(int, CITATION.findall(line)):
                if rule not in PERCENTILES:
                    found.setdefault(rule, []).append(f"{name}:{number}")
    return found


def missing(path: str, test: str | None) -> str | None:
    """What is wrong with a name on the page."""
    file = REPOSITORY / path
    if not file.is_file():
        return f"there is no {path}"
    if test and not re.search(FUNCTION[file.suffix].format(test), file.read_text(encoding="utf-8"), re.MULTILINE):
        return f"{path} has no {test}"
    return None


def faults() -> list[str]:
    command = ["git", "ls-files"]
    listed = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=True).stdout.splitlines()
    cited = citations([name for name in listed if (REPOSITORY / name).is_file()])
    page = (REPOSITORY / PAGE).read_text(encoding="utf-8")
    headings = [int(number) for number in HEADING.findall(page)]
    unknown = sorted(cited.keys() - set(headings))
    found = [f"{place}: P{rule} has no heading in {PAGE}" for rule in unknown for place in cited[rule]]
    for rule in sorted(set(headings)):
        if headings.count(rule) > 1:
            found.append(f"{PAGE}: P{rule} has two headings")
        if not any(place.rsplit(":", 1)[0].endswith(CODE) and "tests/" not in place for place in cited.get(rule, [])):
            found.append(f"{PAGE}: no code cites P{rule} where it is enforced")
    for number, line in enumerate(page.splitlines(), 1):
        wrong = (missing(path, test or None) for path, test in NAMED.findall(line))
        found += [f"{PAGE}:{number}: {what}" for what in wrong if what]
    return found


def main() -> int:
    found = faults()
    print("\n".join(found))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
