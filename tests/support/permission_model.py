"""The permission model, as one table: which bits, on which directory or entry, each operation needs.

The tests take the expected answer of every cell from here, and docs/permissions.md its table. It states the rules
independently of the code: indexnode/types/src/permission.rs has them for the services and the SQL verbs.
"""

from dataclasses import dataclass, replace
from itertools import product

STICKY = 0o1000
READ, WRITE, SEARCH = 4, 2, 1
LETTERS = {READ: "r", WRITE: "w", SEARCH: "x"}
CLASSES = ("owner", "group", "other")
SHIFTS = {"owner": 6, "group": 3, "other": 0}
NOBODY, CALLER, GROUP, OTHER_GROUP = 1009, 1002, 50, 51


@dataclass(frozen=True)
class Permission:
    """Owner, group and mode of a directory or an object."""

    owner: int
    group: int
    mode: int

    def bits(self, uid: int, gids: tuple[int, ...]) -> int:
        """The bits of the first class that matches the caller, and of no other."""
        if uid == 0:
            return 7
        matches = ("owner", uid == self.owner), ("group", self.group in gids), ("other", True)
        shift = next(SHIFTS[name] for name, does in matches if does)
        return self.mode >> shift & 7


def of_class(name: str, bits: int, mode: int = 0) -> Permission:
    """A permission whose class `name` is the caller's and has these bits. The other classes have the opposite, so that
    a check of another class is noticed.
    """
    owner = CALLER if name == "owner" else NOBODY
    group = GROUP if name != "other" else OTHER_GROUP
    opposite = 7 ^ bits
    for other, shift in SHIFTS.items():
        mode |= (bits if other == name else opposite) << shift
    return Permission(owner, group, mode)


@dataclass(frozen=True)
class Cell:
    """What an operation meets: a directory on the way, the directory that it changes or reads, and the entry in it."""

    above: Permission
    directory: Permission
    entry: Permission


@dataclass(frozen=True)
class Rule:
    """What an operation needs. `entry`: bits of the entry; its owner may do without them if `or_owner`.

    `sticky`: in a directory with the sticky bit, only the owner of the directory, of the entry, and uid 0 may.
    `owner_only`: bits do not help.
    """

    operation: str
    directory: int
    entry: int = 0
    or_owner: bool = False
    sticky: bool = False
    owner_only: bool = False
    note: str = ""

    def allows(self, cell: Cell, uid: int = CALLER, gids: tuple[int, ...] = (GROUP,)) -> bool:
        if uid == 0:
            return True
        here, entry = cell.directory, cell.entry
        if not cell.above.bits(uid, gids) & SEARCH or self.directory & ~here.bits(uid, gids):
            return False
        if self.sticky and here.mode & STICKY and uid not in (here.owner, entry.owner):
            return False
        owns = uid == entry.owner
        if self.owner_only:
            return owns
        return not self.entry & ~entry.bits(uid, gids) or (self.or_owner and owns)


WX = WRITE | SEARCH
RULES = (
    Rule("put a new object", WX, note="also copy to it, complete an upload of it"),
    Rule("make a directory", WX),
    Rule(
        "overwrite an object", SEARCH, WRITE, or_owner=True, sticky=True,
        note="put, copy onto, complete onto; it keeps owner, group and mode",
    ),
    Rule("read an object", SEARCH, READ, note="GET, HEAD, attributes, tags; also as the source of a copy"),
    Rule("stat", SEARCH, note="without r on the entry: no etag, content type, metadata"),
    Rule("list", READ | SEARCH, note="as stat, for each entry"),
    Rule("delete an object", WX, sticky=True),
    Rule("remove an empty directory", WX, sticky=True),
    Rule("rename an object away", WX, sticky=True),
    Rule("rename an object to a new name", WX, note="at the destination"),
    Rule(
        "rename an object onto another", WX, WRITE, or_owner=True, sticky=True,
        note="at the destination; the object that moves keeps its own owner, group and mode",
    ),
    Rule("rename a directory in its parent", WX, sticky=True),
    Rule("move a directory to another parent", WX, WRITE, or_owner=True, sticky=True),
    Rule("change the mode", SEARCH, owner_only=True),
    Rule("change the group", SEARCH, owner_only=True, note="to a group of the caller's"),
    Rule("change user metadata", SEARCH, WRITE, or_owner=True, note="also tags"),
)  # fmt: skip
BY_NAME = {rule.operation: rule for rule in RULES}
OPEN = Permission(NOBODY, OTHER_GROUP, 0o777)


def cells(rule: Rule) -> list[Cell]:
    """Every class with every bit, of each of the three places, while the other two are open; and every combination of
    owners that the sticky bit tells apart.
    """
    base = Cell(OPEN, OPEN, replace(OPEN, owner=CALLER, group=GROUP) if rule.owner_only else OPEN)
    varied = [of_class(name, bits) for name, bits in product(CLASSES, range(8))]
    found = [replace(base, **{place: one}) for place in ("above", "directory", "entry") for one in varied]
    owners = (CALLER, NOBODY)
    for mine, its in product(owners, owners):
        for entry_mode in (0o777, 0o000):
            directory = Permission(mine, OTHER_GROUP, 0o777 | STICKY)
            found.append(Cell(OPEN, directory, Permission(its, OTHER_GROUP, entry_mode)))
    return found


def _letters(bits: int) -> str:
    return "".join(letter for bit, letter in LETTERS.items() if bits & bit) or "–"


def table() -> str:
    """The table of docs/permissions.md."""
    lines = [
        "| operation | on the way | in the directory | on the entry | sticky directory | |",
        "|---|---|---|---|---|---|",
    ]
    for rule in RULES:
        entry = "its owner" if rule.owner_only else _letters(rule.entry) + (", or its owner" if rule.or_owner else "")
        sticky = "owner of directory or entry" if rule.sticky else "–"
        lines.append(f"| {rule.operation} | x | {_letters(rule.directory)} | {entry} | {sticky} | {rule.note} |")
    return "\n".join(lines) + "\n"
