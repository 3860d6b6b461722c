"""The small trees of the isolation matrix, and the operations that it pairs.

A scenario names operations. In a pair, an operation runs as A, held at a failpoint, or as B, which comes meanwhile.
Every operation succeeds on the unchanged tree, so A passes all failpoints of its verb.
"""

from collections.abc import Callable
from dataclasses import dataclass

from .tree import Entry, Op, Tree

# Ids, relative to the first of the scenario's block. New entries have one for A and one for B.
D, E, F, O, P, S, T, X, EO, ES, NEW_A, NEW_B = range(12)  # noqa: E741
IDS = 16


@dataclass(frozen=True)
class Scenario:
    """`build(root, first)` gives the tree, `operations(root, first, new)` the operations by name. `groups`: the
    operations that are paired. `has_primary`: there are primary attribute records; else delta records only, as after a
    directory's first changes.
    """

    name: str
    build: Callable[[int, int], Tree]
    operations: Callable[[int, int, int], dict[str, Op]]
    groups: tuple[tuple[tuple[str, ...], tuple[str, ...]], ...]
    has_primary: bool = True

    def pairs(self) -> list[tuple[str, str]]:
        return [(a, b) for first, second in self.groups for a in first for b in second]


def _directory(id: int) -> Entry:
    return Entry(id, 3, 493, explicit=True)


def _object(id: int, size: int) -> Entry:
    return Entry(id, 2, 420, size, "old")


def _siblings(root: int, first: int) -> Tree:
    """d/ holds objects o and p and the empty directories s/ and t/; n and m are free."""
    tree = Tree()
    d = first + D
    tree.place(root, "d/", _directory(d))
    tree.place(d, "o", _object(first + O, 100))
    tree.place(d, "p", _object(first + P, 50))
    tree.place(d, "s/", _directory(first + S))
    tree.place(d, "t/", _directory(first + T))
    return tree


def _sibling_operations(root: int, first: int, new: int) -> dict[str, Op]:
    """Nine verbs, each on one name and on another in the same directory."""
    d = first + D
    found = {"compact": Op("compact", d)}
    for object_id, directory_id, o, s, free in ((O, S, "o", "s/", "n"), (P, T, "p", "t/", "m")):
        found |= {
            f"create {free}": Op("put_object", d, free, first + new, size=7, mode=420),
            f"overwrite {o}": Op("put_object", d, o, first + new, size=8, mode=420, etag="new"),
            f"delete {o}": Op("delete_object", d, o),
            f"mkdir {free}/": Op("mkdir", d, f"{free}/", first + new),
            f"rmdir {s}": Op("rmdir", d, s, first + directory_id),
            f"rename {o} to {free}": Op("rename_object", d, o, dst_pid=d, dst_name=free),
            f"rename {s} to {free}/": Op(
                "rename_directory", d, s, first + directory_id, dst_pid=d, dst_name=f"{free}/"
            ),
            f"chmod {o}": Op("set_attributes", d, o, first + object_id, mode=384),
            f"chmod {s}": Op("set_attributes", d, s, first + directory_id, mode=448),
        }
    return found


_FIRST = (
    "create n", "overwrite o", "delete o", "mkdir n/", "rmdir s/", "rename o to n", "rename s/ to n/",
    "chmod o", "chmod s/", "compact",
)  # fmt: skip
_SECOND = (
    "create m", "overwrite p", "delete p", "mkdir m/", "rmdir t/", "rename p to m", "rename t/ to m/",
    "chmod p", "chmod t/",
)  # fmt: skip

SIBLINGS = Scenario("one directory", _siblings, _sibling_operations, ((_FIRST, _FIRST + _SECOND),))


YOUNG = Scenario(
    "one young directory",
    _siblings,
    _sibling_operations,
    (
        (
            (
                "create n",
                "overwrite o",
                "delete o",
                "mkdir n/",
                "rmdir s/",
                "rename o to n",
                "rename s/ to n/",
                "compact",
            ),
            ("create m", "delete p", "mkdir m/", "rmdir t/", "compact"),
        ),
    ),
    has_primary=False,
)


def _levels(root: int, first: int) -> Tree:
    """d/ is empty; e/ holds the object o and the empty directory s/; f/ holds one object, x."""
    tree = Tree()
    for letter, id in (("d/", D), ("e/", E), ("f/", F)):
        tree.place(root, letter, _directory(first + id))
    tree.place(first + E, "o", _object(first + EO, 100))
    tree.place(first + E, "s/", _directory(first + ES))
    tree.place(first + F, "x", _object(first + X, 50))
    return tree


def _level_operations(root: int, first: int, new: int) -> dict[str, Op]:
    """A directory and its content."""
    d, e, f, s = first + D, first + E, first + F, first + ES
    return {
        "create d/n": Op("put_object", d, "n", first + new, size=7, mode=420),
        "mkdir d/n/": Op("mkdir", d, "n/", first + new),
        "rename e/o to d/n": Op("rename_object", e, "o", dst_pid=d, dst_name="n"),
        "rename e/s/ to d/n/": Op("rename_directory", e, "s/", s, dst_pid=d, dst_name="n/"),
        "rename e/s/ over d/": Op("rename_directory", e, "s/", s, dst_pid=root, dst_name="d/", victim=d),
        "rename d/ to m/": Op("rename_directory", root, "d/", d, dst_pid=root, dst_name="m/"),
        "rename d/ to f/d/": Op("rename_directory", root, "d/", d, dst_pid=f, dst_name="d/"),
        "remove tree d/": Op("remove_tree", root, "d/", d),
        "rmdir d/": Op("rmdir", root, "d/", d),
        "chmod d/": Op("set_attributes", root, "d/", d, mode=448),
        "compact d/": Op("compact", d),
        "delete f/x": Op("delete_object", f, "x"),
        "overwrite f/x": Op("put_object", f, "x", first + new, size=8, mode=420, etag="new"),
        "rename f/x to m": Op("rename_object", f, "x", dst_pid=root, dst_name="m"),
        "create f/y": Op("put_object", f, "y", first + new, size=7, mode=420),
        "chmod f/": Op("set_attributes", root, "f/", f, mode=448),
        "compact f/": Op("compact", f),
        "raise the epoch": Op("raise_epoch", 0),
        # Both are refused on the unchanged tree, so they run as B only.
        "rmdir f/": Op("rmdir", root, "f/", f),
        "rename e/s/ over f/": Op("rename_directory", e, "s/", s, dst_pid=root, dst_name="f/", victim=f),
    }


_D = (
    "create d/n", "mkdir d/n/", "rename e/o to d/n", "rename e/s/ to d/n/", "rename e/s/ over d/", "rename d/ to m/",
    "rename d/ to f/d/", "remove tree d/", "rmdir d/", "chmod d/", "compact d/",
)  # fmt: skip
_FENCED = ("rename e/s/ to d/n/", "rename e/s/ over d/", "remove tree d/")
_RAISE = ("raise the epoch",)
_F = ("delete f/x", "overwrite f/x", "rename f/x to m", "create f/y", "chmod f/", "compact f/")

LEVELS = Scenario(
    "a directory and its content",
    _levels,
    _level_operations,
    (
        (_D, _D),
        (_F, (*_F, "rmdir f/", "rename e/s/ over f/")),
        (("rename d/ to f/d/",), ("rmdir f/", "rename e/s/ over f/")),
        (_RAISE, (*_FENCED, *_RAISE, "create d/n", "rmdir d/", "rename e/o to d/n")),
        (_FENCED, _RAISE),
    ),
)


def _implied(root: int, first: int) -> Tree:
    """d/ holds the empty directory i/, which a key implied."""
    tree = Tree()
    tree.place(root, "d/", _directory(first + D))
    tree.place(first + D, "i/", Entry(first + S, 3, 493, explicit=False))
    return tree


# For the crash tests: the worker's pruning never waits, so it is not in the matrix.
IMPLICIT = Scenario(
    "an implicit directory",
    _implied,
    lambda _root, first, _new: {"prune i/": Op("prune", first + D, "i/", first + S)},
    (),
)

SCENARIOS = (SIBLINGS, YOUNG, LEVELS)
