"""Finds words that docs/glossary.md replaced, so that they do not return. `make lint` runs it; exit 1 names each place.

`words.txt` has a line for each: a regular expression, the word to use, and the paths where the old one may stay (a
prefix each), separated by tabs. Searched: Rust, SQL, Python and Markdown, identifiers and comments alike; not the
released SQL versions.
"""

import re
import subprocess
import sys
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
WORDS = Path(__file__).with_name("words.txt")
SEARCHED = ("*.rs", "*.sql", "*.py", "*.md", "*.proto")
NOT_SEARCHED = ("sql/versions/",)


def words() -> list[tuple[re.Pattern[str], str, tuple[str, ...]]]:
    """Expression, replacement, and where it is allowed."""
    found = []
    for line in WORDS.read_text(encoding="utf-8").splitlines():
        if line and not line.startswith("#"):
            expression, instead, *allowed = line.split("\t")
            found.append((re.compile(expression), instead, tuple(allowed)))
    return found


def files() -> list[str]:
    command = ["git", "ls-files", "--", *SEARCHED]
    listed = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=True).stdout.splitlines()
    return [name for name in listed if not name.startswith(NOT_SEARCHED) and (REPOSITORY / name).is_file()]


def main() -> int:
    listed, found = words(), 0
    for name in files():
        here = [
            (expression, instead) for expression, instead, allowed in listed if not name.startswith(("\0", *allowed))
        ]
        for number, line in enumerate((REPOSITORY / name).read_text(encoding="utf-8").splitlines(), 1):
            for expression, instead in here:
                if match := expression.search(line):
                    print(f"{name}:{number}: `{match[0]}`: say {instead}")
                    found += 1
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
