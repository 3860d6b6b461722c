"""The expected outcome when B comes while A is held. It follows from rules over what each operation latches and writes,
not from observation.

The rules, from docs and P7, P10, P11, P12, P21, P29, P56: 1. A create, delete, change or rename latches the directories
it writes into shared, and the names it touches exclusively (an object and a directory of one name are one). A removal
of a directory latches that directory exclusively, unless it saw content before: then it is refused without that latch.
So does a change of a directory's owner, group or mode. Renames and removals of trees latch the epoch shared. Raising
the epoch latches it exclusively. Compaction latches its directory shared. 2. Latches are held from `after_latches`
until the end of the transaction, that of the epoch from `before_latches` on. B waits if it needs a conflicting latch.
3. Counts never make a mutation wait. Compaction waits for a primary record that A has updated in place. If there is
none, A has appended a delta record, and compaction folds those that it can see. 4. The operation that does not wait
commits first. The result is that of running both one after the other in the order of their commits, except for what
rmdir and an overwriting rename saw before they latched.
"""

from dataclasses import dataclass

from .failpoints import AFTER_LATCHES, ALL, BEFORE_CLAIM, BEFORE_COMMIT, BEFORE_COUNTS, BEFORE_EMIT, BEFORE_LATCHES
from .tree import Op, Outcome, Tree, stem
from .verbs import WITHOUT_REQUEST

SHARED, EXCLUSIVE = "shared", "exclusive"
EPOCH = ("epoch",)

_CHECKED = (BEFORE_LATCHES, AFTER_LATCHES, BEFORE_CLAIM)
_COUNTED = (*_CHECKED, BEFORE_COUNTS)
PASSES = {
    "put_object": (*_COUNTED, BEFORE_COMMIT),
    "delete_object": (*_COUNTED, BEFORE_COMMIT),
    "rename_object": (*_COUNTED, BEFORE_COMMIT),
    "mkdir": (*_COUNTED, BEFORE_COMMIT),
    "rmdir": (*_COUNTED, BEFORE_COMMIT),
    "rename_directory": ALL,
    "remove_tree": ALL,
    "set_attributes": (*_CHECKED, BEFORE_COMMIT),
    "compact": (BEFORE_LATCHES, AFTER_LATCHES, BEFORE_COMMIT),
    "raise_epoch": (BEFORE_COMMIT,),
    "prune": (BEFORE_COUNTS, BEFORE_EMIT, BEFORE_COMMIT),
}


def points(op: Op) -> tuple[str, ...]:
    """The failpoints of a successful operation. Objects emit no message; a fast path emits it itself."""
    if op.verb == "set_attributes" and op.is_directory:
        return (*_CHECKED, BEFORE_EMIT, BEFORE_COMMIT)
    if op.verb == "rename_directory" and not op.victim:
        return (*_COUNTED, BEFORE_COMMIT)
    return PASSES[op.verb]


def latches(op: Op, busy: bool) -> dict[tuple, str]:
    """Rule 1."""
    if op.verb == "raise_epoch":
        return {EPOCH: EXCLUSIVE}
    found: dict[tuple, str] = {("pid", op.pid): SHARED}
    if op.verb == "compact":
        return found
    if op.verb in ("rename_directory", "remove_tree"):
        found[EPOCH] = SHARED
    found["name", op.pid, stem(op.name)] = EXCLUSIVE
    if op.verb in ("rename_object", "rename_directory"):
        found["pid", op.dst_pid] = SHARED
        found["name", op.dst_pid, stem(op.dst_name)] = EXCLUSIVE
    if op.verb == "rmdir" and not busy:
        found["pid", op.id] = EXCLUSIVE
    if op.verb == "set_attributes" and op.is_directory:
        found["pid", op.id] = EXCLUSIVE
    if op.verb == "rename_directory" and op.victim and not busy:
        found["pid", op.victim] = EXCLUSIVE
    return found


def counted(op: Op) -> set[int]:
    """The directories whose counts an operation changes."""
    if op.verb in ("compact", "set_attributes", "raise_epoch"):
        return set()
    return {op.pid, op.dst_pid} - {0}


@dataclass(frozen=True)
class Expected:
    """The outcome of a case."""

    waits: bool
    a: Outcome
    b: Outcome
    b_replays: bool
    a_replays: bool
    tree: Tree


def waits(a: Op, a_busy: bool, point: str, b: Op, b_busy: bool, has_primary: bool) -> bool:
    """Rules 2 and 3."""
    held, wanted = latches(a, a_busy), latches(b, b_busy)
    if point == BEFORE_LATCHES:
        held = {key: mode for key, mode in held.items() if key == EPOCH}
    if any(EXCLUSIVE in (held[key], wanted[key]) for key in held.keys() & wanted.keys()):
        return True
    has_counted = ALL.index(point) > ALL.index(BEFORE_COUNTS)
    return b.verb == "compact" and has_primary and has_counted and b.pid in counted(a)


def expect(tree: Tree, has_primary: bool, a: Op, point: str, b: Op, same_request: bool = False) -> Expected:
    """Rule 4. `same_request`: B is A's retry, which gets A's answer, or the other way round."""
    tree = tree.copy()
    a_busy, b_busy = tree.looks_busy(a), tree.looks_busy(b)
    b_waits = waits(a, a_busy, point, b, b_busy, has_primary)
    repeats = same_request and a.verb not in WITHOUT_REQUEST
    if b_waits:
        a_outcome = tree.apply(a, a_busy)
        b_outcome = a_outcome if repeats else tree.apply(b, b_busy)
    else:
        b_outcome = tree.apply(b, b_busy)
        a_outcome = b_outcome if repeats else tree.apply(a, a_busy)
    return Expected(b_waits, a_outcome, b_outcome, repeats and b_waits, repeats and not b_waits, tree)
