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


OPEN = Permission(NOBODY, OTHER_GROUP, 0o777)


@dataclass(frozen=True)
class Cell:
    """What an operation meets: a directory on the way, the directory that it changes or reads, the entry in it, and, if
    that is a directory that is removed with everything below, a directory in it.
    """

    above: Permission = OPEN
    directory: Permission = OPEN
    entry: Permission = OPEN
    below: Permission = OPEN


@dataclass(frozen=True)
class Rule:
    """What an operation needs.

    `entry`: bits of the entry; its owner may do without them if `or_owner`. `reads`: r on the entry too, also for its
    owner. `sticky`: in a directory with the sticky bit, only the owner of the directory, of the entry, and uid 0 may.
    `owner_only`: bits of the entry do not help. `root_only`: nor does owning it. `empties`: the entry and every
    directory below it have to be such that the caller could remove what is in them.
    `is_directory`, `is_namespace`: what the entry is; an object otherwise.
    """

    operation: str
    directory: int = 0
    entry: int = 0
    or_owner: bool = False
    reads: bool = False
    sticky: bool = False
    owner_only: bool = False
    root_only: bool = False
    empties: bool = False
    is_directory: bool = False
    is_namespace: bool = False
    note: str = ""

    def allows(self, cell: Cell, uid: int = CALLER, gids: tuple[int, ...] = (GROUP,)) -> bool:
        if uid == 0:
            return True
        here, entry = cell.directory, cell.entry
        if self.root_only:
            return False
        if not self.is_namespace and not cell.above.bits(uid, gids) & SEARCH:
            return False
        if self.directory & ~here.bits(uid, gids):
            return False
        if self.sticky and here.mode & STICKY and uid not in (here.owner, entry.owner):
            return False
        if self.empties and not all(may_empty(one, uid, gids) for one in (entry, cell.below)):
            return False
        if self.reads and not entry.bits(uid, gids) & READ:
            return False
        owns = uid == entry.owner
        if self.owner_only:
            return owns
        return not self.entry & ~entry.bits(uid, gids) or (self.or_owner and owns)


def may_empty(directory: Permission, uid: int, gids: tuple[int, ...]) -> bool:
    is_kept = directory.mode & STICKY and uid != directory.owner
    return directory.bits(uid, gids) == READ | WRITE | SEARCH and not is_kept


WX, RX, RWX = WRITE | SEARCH, READ | SEARCH, READ | WRITE | SEARCH
RULES = (
    Rule(
        "put a new object", WX,
        note="also by a copy, or by completing an upload; to begin an upload, this or the right to overwrite",
    ),
    Rule("make a directory", WX, is_directory=True, note="also make an implicit one explicit"),
    Rule(
        "overwrite an object", SEARCH, WRITE, or_owner=True, sticky=True,
        note="put, copy, or complete an upload; the object keeps owner, group and mode",
    ),
    Rule(
        "put the key of a directory that is there", WX, WRITE, or_owner=True, is_directory=True,
        note="to set its metadata, also by a copy; r is enough if nothing changes",
    ),
    Rule(
        "put the key of a directory on a condition", WX, WRITE, or_owner=True, reads=True, is_directory=True,
        note="`If-Match`; also by a copy",
    ),
    Rule("go on with an upload of one's own", SEARCH, note="send or copy parts, list them, end it"),
    Rule("go on with an upload of another's", root_only=True, note="also the namespace's owner"),
    Rule("read an object", SEARCH, READ, note="GET, HEAD, attributes, tags; also as the source of a copy"),
    Rule("read the key of a directory", SEARCH, READ, is_directory=True, note="as for an object"),
    Rule("stat", SEARCH, note="without r on the entry: no etag, content type, metadata"),
    Rule("list", RX, note="as stat, for each entry"),
    Rule(
        "list everything below", RX, RX, is_directory=True,
        note="on the entry means on each directory below; the content of other directories is left out",
    ),
    Rule("totals of a directory", SEARCH, READ, is_directory=True),
    Rule("delete an object", WX, sticky=True),
    Rule("remove an empty directory", WX, sticky=True, is_directory=True),
    Rule(
        "make a directory implicit", WX, sticky=True, is_directory=True,
        note="by deleting its key while it holds others",
    ),
    Rule(
        "remove a directory with everything below", WX, RWX, sticky=True, empties=True, is_directory=True,
        note="rwx also on each directory below; the caller must own those that are sticky",
    ),
    Rule("rename an object away", WX, sticky=True),
    Rule("rename an object to a new name", WX, note="at the destination"),
    Rule(
        "rename an object onto another", WX, WRITE, or_owner=True, sticky=True,
        note="at the destination; the object that moves keeps its own owner, group and mode",
    ),
    Rule("rename a directory in its parent", WX, sticky=True, is_directory=True),
    Rule("move a directory to another parent", WX, WRITE, or_owner=True, sticky=True, is_directory=True),
    Rule("move a directory to a new name", WX, is_directory=True, note="at the destination"),
    Rule("move a directory onto an empty one", WX, sticky=True, is_directory=True, note="at the destination"),
    Rule("change the mode", SEARCH, owner_only=True),
    Rule("change the group", SEARCH, owner_only=True, note="to a group of the caller's"),
    Rule("change the group to another", root_only=True),
    Rule("change the owner", root_only=True),
    Rule("change user metadata", SEARCH, WRITE, or_owner=True),
    Rule("change tags", SEARCH, WRITE, or_owner=True, reads=True),
    Rule("find a bucket", entry=SEARCH, is_namespace=True, note="HEAD, location, versioning of a bucket"),
    Rule("stat the root of a namespace", entry=SEARCH, or_owner=True, is_namespace=True),
    Rule("list the root of a namespace", entry=RX, is_namespace=True, note="also the uploads of a bucket"),
    Rule("totals of a namespace", entry=SEARCH, or_owner=True, reads=True, is_namespace=True),
    Rule("read the tags of a bucket", entry=RX, is_namespace=True),
    Rule(
        "change metadata of the root of a namespace", entry=WX, or_owner=True, is_namespace=True,
        note="tags of a bucket are metadata of its root",
    ),
    Rule("change the mode of the root of a namespace", owner_only=True, is_namespace=True),
    Rule(
        "change the group of the root of a namespace", owner_only=True, is_namespace=True,
        note="to a group of the caller's",
    ),
    Rule("change the owner of the root of a namespace", root_only=True, is_namespace=True),
    Rule("change the umask of a namespace", owner_only=True, is_namespace=True),
    Rule("remove a namespace", owner_only=True, is_namespace=True, note="only an empty one"),
)  # fmt: skip
BY_NAME = {rule.operation: rule for rule in RULES}


def cells(rule: Rule) -> list[Cell]:
    """Every class with every bit, of each of the places, while the others are open; and every combination of owners
    that the sticky bit tells apart.
    """
    mine = replace(OPEN, owner=CALLER, group=GROUP)
    base = Cell(entry=mine if rule.owner_only else OPEN)
    varied = [of_class(name, bits) for name, bits in product(CLASSES, range(8))]
    if rule.is_namespace:
        return [replace(base, entry=one) for one in varied]
    places = ("above", "directory", "entry", "below") if rule.empties else ("above", "directory", "entry")
    found = [replace(base, **{place: one}) for place in places for one in varied]
    owners = (CALLER, NOBODY)
    for one, its in product(owners, owners):
        for entry_mode in (0o777, 0o000):
            directory = Permission(one, OTHER_GROUP, 0o777 | STICKY)
            found.append(Cell(OPEN, directory, Permission(its, OTHER_GROUP, entry_mode)))
    if rule.empties:
        sticky = [Permission(owner, OTHER_GROUP, 0o777 | STICKY) for owner in owners]
        found += [replace(base, **{place: one}) for place in ("entry", "below") for one in sticky]
    return found


def _letters(bits: int) -> str:
    return "".join(letter for bit, letter in LETTERS.items() if bits & bit) or "–"


def _entry(rule: Rule) -> str:
    if rule.root_only:
        return "only uid 0"
    if rule.owner_only:
        return "its owner"
    if rule.reads:
        return f"r, and {_letters(rule.entry)} or its owner"
    return _letters(rule.entry) + (", or its owner" if rule.or_owner else "")


def table() -> str:
    """The table of docs/permissions.md."""
    lines = [
        "| operation | on the way | in the directory | on the entry | sticky directory | |",
        "|---|---|---|---|---|---|",
    ]
    for rule in RULES:
        way = "–" if rule.is_namespace or rule.root_only else "x"
        sticky = "owner of directory or entry" if rule.sticky else "–"
        lines.append(
            f"| {rule.operation} | {way} | {_letters(rule.directory)} | {_entry(rule)} | {sticky} | {rule.note} |"
        )
    return "\n".join(lines) + "\n"
