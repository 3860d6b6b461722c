"""Decides whether a history is linearizable. It is independent of Mantle: it knows only the model of the namespace and
the calls.

The search is that of Wing and Gong with Lowe's cache of configurations (G. Lowe, "Testing for linearizability", 2017).
Of the unordered calls that began before the first answer among them, one is ordered next. A pair (set of ordered calls,
state) that was met before is not tried again. The number of steps is bounded; a window that needs more is undecided,
which is no pass.
"""

from dataclasses import dataclass
from itertools import count

from .model import Operation, Outcome, Tree

STEPS_MAX = 2_000_000


class Undecided(Exception):
    """The search was given up: the window is too large for a verdict."""


@dataclass(frozen=True)
class Call:
    """An operation with a final answer. It took effect once, at some moment between the two times (seconds)."""

    operation: Operation
    outcome: Outcome
    began: float
    ended: float
    client: int = 0

    def __str__(self) -> str:
        o = self.operation
        to = f" -> {'/'.join(o.to)}" if o.to else ""
        said = self.outcome.fact if self.outcome.value is None else f"{self.outcome.fact} {self.outcome.value}"
        return f"{self.began:.4f}–{self.ended:.4f} client {self.client}: {o.verb} {'/'.join(o.path)}{to} = {said}"


@dataclass(frozen=True)
class Verdict:
    """`finals`: the states that the tree may be in afterwards; none if no order explains the answers. `furthest`: the
    calls that the longest explained order leaves.
    """

    finals: frozenset[Tree]
    furthest: tuple[Call, ...] = ()

    @property
    def is_linearizable(self) -> bool:
        return bool(self.finals)


def check(calls: list[Call], starts: frozenset[Tree], steps_max: int = STEPS_MAX) -> Verdict:
    """Searches all orders of a window's calls, from each state in which it may have begun."""
    calls = sorted(calls, key=lambda call: (call.began, call.ended))
    everything = (1 << len(calls)) - 1
    steps = count()
    met: set[tuple[int, Tree]] = set()
    finals: set[Tree] = set()
    furthest = 0
    stack = [(0, start) for start in starts]
    while stack:
        ordered, tree = stack.pop()
        if (ordered, tree) in met:
            continue
        met.add((ordered, tree))
        if next(steps) >= steps_max:
            raise Undecided(f"{len(calls)} calls, {steps_max} steps")
        if ordered.bit_count() > furthest.bit_count():
            furthest = ordered
        if ordered == everything:
            finals.add(tree)
            continue
        left = [(at, call) for at, call in enumerate(calls) if not ordered >> at & 1]
        first_end = min(call.ended for _, call in left)
        for at, call in left:
            if call.began > first_end:
                break
            after = tree.after(call.operation, call.outcome)
            if after is not None:
                stack.append((ordered | 1 << at, after))
    return Verdict(frozenset(finals), tuple(call for at, call in enumerate(calls) if not furthest >> at & 1))
