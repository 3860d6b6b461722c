"""Checks the pages: links and anchors lead somewhere, named paths exist, sentences of the first pages are short.

`make lint` runs it; exit 1 names page and line. Anchors follow GitHub's rule: lower case, punctuation gone, spaces to
hyphens.
"""

import re
import subprocess
import sys
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
FIRST_PAGES = ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md")
SENTENCE_WORDS_MAX = 40
PATH = re.compile(r"`([\w.-]+/[\w./-]*)`")  # a path from the repository's root
LINK = re.compile(r"(?<!`)\[[^\]]*\]\(([^)\s]+)\)")


def without_code(text: str) -> str:
    """The page with its code blocks emptied, so that line numbers stay."""
    return re.sub(r"^```.*?^```", lambda block: "\n" * block[0].count("\n"), text, flags=re.DOTALL | re.MULTILINE)


def anchors(page: Path) -> set[str]:
    found: set[str] = set()
    for heading in re.findall(r"^#+ +(.+?) *$", without_code(page.read_text(encoding="utf-8")), re.MULTILINE):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower()
        slug = re.sub(r"[^\w\- ]", "", plain).replace(" ", "-")
        count, unique = 0, slug
        while unique in found:
            count, unique = count + 1, f"{slug}-{count + 1}"
        found.add(unique)
    return found


def broken_links(page: Path) -> list[str]:
    problems = []
    for number, line in enumerate(without_code(page.read_text(encoding="utf-8")).splitlines(), 1):
        for target in LINK.findall(line):
            if re.match(r"[a-z]+:", target):
                continue
            path, _, anchor = target.partition("#")
            file = (page.parent / path).resolve() if path else page
            if not file.exists():
                problems.append(f"{page.relative_to(REPOSITORY)}:{number}: no file {target}")
            elif anchor and file.suffix == ".md" and anchor not in anchors(file):
                problems.append(f"{page.relative_to(REPOSITORY)}:{number}: no heading for {target}")
    return problems


def missing_paths(page: Path) -> list[str]:
    """Paths in backquotes that are not there. Folders that a program makes begin with a dot."""
    tops = {path.name for path in REPOSITORY.iterdir()}
    named = PATH.findall(without_code(page.read_text(encoding="utf-8")))
    wrong = [path for path in named if path.split("/")[0] in tops and not (REPOSITORY / path).exists()]
    return [f"{page.relative_to(REPOSITORY)}: no file {path}" for path in wrong if not path.startswith((".", "target"))]


def long_sentences(page: Path) -> list[str]:
    text = re.sub(r"^    .*$", "", without_code(page.read_text(encoding="utf-8")), flags=re.MULTILINE)
    text = re.sub(r"\]\([^)]*\)", "]", text)
    problems = []
    # A table's row, a list's item and a heading end what stands before them.
    for block in re.split(r"\n\s*\n|\n(?=\s*(?:[-*|#]|\d+\.) ?)|\|", text):
        for sentence in re.split(r"(?<=[.!?])\s+", block.strip()):
            words = re.findall(r"\w[\w'`/.\-]*", sentence)
            if len(words) > SENTENCE_WORDS_MAX:
                problems.append(f"{page.name}: a sentence of {len(words)} words: {' '.join(words[:12])} …")
    return problems


def main() -> int:
    listed = subprocess.run(
        ["git", "ls-files", "*.md"], cwd=REPOSITORY, capture_output=True, text=True, check=True
    ).stdout
    pages = [REPOSITORY / name for name in listed.split() if (REPOSITORY / name).exists()]
    problems = [problem for page in pages for problem in broken_links(page) + missing_paths(page)]
    problems += [problem for name in FIRST_PAGES for problem in long_sentences(REPOSITORY / name)]
    print("\n".join(problems) or f"pages: {len(pages)} pages, no broken link")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
