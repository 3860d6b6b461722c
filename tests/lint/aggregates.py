"""Finds aggregates that do not say their order. `make lint` runs it; exit 1 names each.

An aggregate such as `array_agg` keeps the order of its input. That order is nobody's promise: since 16 PostgreSQL sorts
the input of a whole SELECT by the DISTINCT or ORDER BY of one of its aggregates, and the others follow. So each says
its order, `array_agg(x ORDER BY n)`, or its SELECT says that it needs none by a comment `-- any order` on a line from
the one before SELECT to the aggregate's. Two without an order still agree with each other, so their SELECT may then
have no aggregate that sorts.
"""

import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
SEARCHED = ("sql", "extension", "gateway/src", "indexnode/src", "patroni", "bench/src")
ENDINGS = (".sql", ".rs", ".py")
KEEPS_ORDER = re.compile(r"\b(?:array_agg|string_agg|jsonb?_agg|json_object_agg|xmlagg)\s*\(", re.IGNORECASE)
SORTS = re.compile(r"\bORDER\s+BY\b|^\s*DISTINCT\b", re.IGNORECASE)
SELECT = re.compile(r"\bSELECT\b", re.IGNORECASE)
ANY_ORDER = re.compile(r"-- any order\b")


@dataclass(frozen=True)
class Aggregate:
    """One call. `select`: where its SELECT begins."""

    start: int
    select: int
    sorts: bool


def closing(text: str, opening: int) -> int:
    """Where the parenthesis that opens there is closed."""
    depth = 0
    for at in range(opening, len(text)):
        depth += (text[at] == "(") - (text[at] == ")")
        if depth == 0:
            return at
    return len(text)


def select_of(text: str, start: int) -> int:
    """The SELECT whose rows an aggregate takes: the last one before it that is not inside closed parentheses."""
    depth = 0
    for at in range(start - 1, -1, -1):
        if text[at] == ")":
            depth += 1
        elif text[at] == "(":
            depth = max(0, depth - 1)
        elif depth == 0 and SELECT.match(text, at):
            return at
    return 0


def aggregates(text: str) -> list[Aggregate]:
    found = []
    for call in KEEPS_ORDER.finditer(text):
        arguments = text[call.end() : closing(text, call.end() - 1)]
        found.append(Aggregate(call.start(), select_of(text, call.start()), SORTS.search(arguments) is not None))
    return found


def is_marked(text: str, aggregate: Aggregate) -> bool:
    before = text.rfind("\n", 0, text.rfind("\n", 0, aggregate.select)) + 1
    after = text.find("\n", aggregate.start)
    return ANY_ORDER.search(text, before, after if after >= 0 else len(text)) is not None


def faults(text: str) -> Iterator[tuple[int, str]]:
    """Line and fault."""
    found = aggregates(text)
    sorting = {aggregate.select for aggregate in found if aggregate.sorts}
    for aggregate in found:
        line = text.count("\n", 0, aggregate.start) + 1
        if aggregate.sorts:
            continue
        if aggregate.select in sorting:
            yield line, "another aggregate of its SELECT sorts the rows, so it needs an ORDER BY of its own"
        elif not is_marked(text, aggregate):
            yield line, "it says neither ORDER BY nor, in a comment, `-- any order`"


# The lint itself is tested by each run: a text, and the lines with a fault.
EXAMPLES = (
    ("SELECT array_agg(a) FROM t", [1]),
    ("SELECT array_agg(a ORDER BY n) FROM t", []),
    ("SELECT array_agg(DISTINCT a) FROM t", []),
    ("SELECT array_agg(a) FROM t  -- any order", []),
    ("-- any order\nSELECT array_agg(a),\n  string_agg(b, ',') FROM t", []),
    ("-- any order\n\nSELECT array_agg(a) FROM t", [3]),
    ("-- any order\nSELECT array_agg(a), array_agg(DISTINCT b) FROM t", [2]),
    ("-- any order\nSELECT array_agg(a), (SELECT array_agg(b ORDER BY b) FROM u) FROM t", []),
    ("SELECT coalesce(array_agg(f(a, (SELECT max(b) FROM u))), '{}'),\n  array_agg(a ORDER BY n) FROM t", [1]),
)


def main() -> int:
    problems = []
    for text, lines in EXAMPLES:
        if (seen := [line for line, _ in faults(text)]) != lines:
            problems.append(f"this lint finds {seen} instead of {lines} in {text!r}")
    listed = subprocess.run(
        ["git", "ls-files", *SEARCHED], cwd=REPOSITORY, capture_output=True, text=True, check=True
    ).stdout.splitlines()
    for name in listed:
        if name.endswith(ENDINGS) and not name.startswith("sql/versions/") and (REPOSITORY / name).is_file():
            text = (REPOSITORY / name).read_text(encoding="utf-8")
            problems += [f"{name}:{line}: {what}" for line, what in faults(text)]
    print("\n".join(problems))
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
