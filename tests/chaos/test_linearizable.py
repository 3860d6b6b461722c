"""The judge: it accepts histories that have an order, and rejects those that have none."""

import random

import pytest

from .linearizable import Call, Undecided, check
from .model import DEPTH_MAX, Operation, Outcome, Tree

EMPTY = frozenset({Tree()})


def call(began, ended, verb, path, fact="ok", value=None, to="", content=""):
    split = lambda text: tuple(text.split("/")) if text else ()
    return Call(Operation(verb, split(path), split(to), content), Outcome(fact, value), began, ended)


def test_overlapping_calls_may_stand_in_either_order():
    made, seen = call(0, 3, "mkdir", "a", value=1), call(1, 2, "stat", "a", value=1)
    assert check([made, seen], EMPTY).is_linearizable
    assert check([made, call(1, 2, "stat", "a", "missing")], EMPTY).is_linearizable


@pytest.mark.parametrize(
    "history",
    [
        [call(0, 1, "mkdir", "a", value=1), call(2, 3, "stat", "a", "missing")],
        [call(0, 1, "mkdir", "a", value=1), call(2, 3, "mkdir", "a", value=2)],
        [call(0, 1, "mkdir", "a", value=1), call(2, 3, "rename", "a", to="b"), call(4, 5, "stat", "a", value=1)],
        # Seen moved, then seen at its old path.
        [
            call(0, 1, "mkdir", "a", value=1),
            call(2, 9, "rename", "a", to="b"),
            call(3, 4, "stat", "b", value=1),
            call(5, 6, "stat", "a", value=1),
        ],
        # Each below the other.
        [
            call(0, 1, "mkdir", "a", value=1),
            call(0, 1, "mkdir", "b", value=2),
            call(2, 3, "rename", "a", to="b/a"),
            call(2, 3, "rename", "b", to="a/b"),
        ],
        [call(0, 1, "mkdir", "a", value=1), call(2, 3, "rmdir", "a"), call(2, 3, "mkdir", "a/c", value=2)],
        [call(0, 1, "put", "o", content="x"), call(2, 3, "put", "o", content="y"), call(4, 5, "get", "o", value="x")],
        [call(0, 1, "put", "o", content="x"), call(2, 3, "copy", "o", to="p"), call(4, 5, "get", "p", value="y")],
        # The copy was taken before the source changed, and appeared afterwards.
        [
            call(0, 1, "put", "o", content="x"),
            call(2, 9, "copy", "o", to="p"),
            call(3, 4, "upload", "o", content="y"),
            call(5, 6, "get", "p", "missing"),
            call(10, 11, "get", "p", value="x"),
        ],
        [
            call(0, 1, "put", "o", content="x"),
            call(2, 3, "rename_object", "o", to="p"),
            call(4, 5, "get", "o", value="x"),
        ],
        [
            call(0, 1, "put", "o", content="x"),
            call(2, 3, "delete_if_match", "o", content="y"),
            call(4, 5, "get", "o", "missing"),
        ],
        [call(0, 1, "put", "o", content="x"), call(2, 3, "delete_if_match", "o", "differs", content="x")],
        [call(0, 1, "put", "o", content="x"), call(2, 3, "list_objects", "", value=frozenset())],
        [call(0, 1, "mkdir", "a", value=1), call(2, 3, "list", "", value=frozenset())],
        [call(0, 1, "mkdir", "a", value=1), call(2, 3, "rmdir", "a"), call(4, 5, "stat", "a", value=1)],
        [call(0, 1, "rmdir", "a", "not_empty")],
    ],
    ids=lambda history: f"{history[-1].operation.verb} {history[-1].outcome.fact}",
)
def test_what_no_order_explains_is_found(history):
    verdict = check(history, EMPTY)
    assert not verdict.is_linearizable
    assert verdict.furthest


def test_all_states_that_a_window_may_end_in_begin_the_next():
    both = [call(0, 3, "put", "o", content="x"), call(1, 2, "put", "o", content="y")]
    finals = check(both, EMPTY).finals
    assert {tree.get(("o",)) for tree in finals} == {"x", "y"}
    assert check([call(4, 5, "get", "o", value="x")], finals).is_linearizable
    assert not check([call(4, 5, "get", "o", value="x"), call(6, 7, "get", "o", value="y")], finals).is_linearizable


@pytest.mark.parametrize(("levels", "fact"), [(DEPTH_MAX - 1, "ok"), (DEPTH_MAX, "too_deep")])
def test_a_rename_makes_no_path_too_deep(levels, fact):
    """The deepest path gets one component more."""
    tree = Tree(frozenset({(("a",) * depth, depth) for depth in range(1, levels + 1)} | {(("b",), 1000)}))
    rename = Operation("rename", ("a",), ("b", "a"))
    facts = [fact for fact in ("ok", "too_deep") if tree.after(rename, Outcome(fact)) is not None]
    assert facts == [fact]


def test_a_window_that_is_too_large_is_no_pass():
    many = [call(0, 99, "mkdir", f"d{n}", value=n) for n in range(24)]
    with pytest.raises(Undecided):
        check([*many, call(0, 99, "stat", "x", value=1)], EMPTY, steps_max=5_000)


def random_history(choose: random.Random, length: int) -> list[Call]:
    """A true history: each call takes effect at one moment within its times."""
    tree, calls = Tree(), []
    names = ["a", "b", "c"]
    ids = iter(range(1, 1000))
    for moment in range(length):
        path = tuple(choose.choice(names) for _ in range(choose.randint(1, 2)))
        operation = Operation(
            choose.choice(["mkdir", "rmdir", "rename", "stat", "list"]), path, (choose.choice(names),)
        )
        facts = ["missing", "exists", "not_empty", "loop"]
        value = {"mkdir": next(ids), "stat": tree.get(path), "list": tree.names(path)}.get(operation.verb)
        outcome = next(o for o in [Outcome("ok", value), *map(Outcome, facts)] if tree.after(operation, o) is not None)
        tree = tree.after(operation, outcome)
        calls.append(Call(operation, outcome, moment - choose.random() * 4, moment + choose.random() * 4))
    return calls


def test_true_histories_pass_and_false_ones_do_not():
    choose = random.Random(7)
    for _ in range(200):
        calls = random_history(choose, 14)
        assert check(calls, EMPTY).is_linearizable
        # A lookup of a directory that was never made.
        at = choose.randrange(len(calls))
        lie = Call(Operation("stat", ("a",)), Outcome("ok", 5000), calls[at].began, calls[at].ended)
        assert not check([*calls, lie], EMPTY).is_linearizable
