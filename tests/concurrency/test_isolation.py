"""All pairs of verbs, one of them held at each failpoint, against stated outcomes (matrix.py).

The second part shows that the matrix would notice faults: it runs the cases in databases where a step is broken.
"""

import pytest

from tests.support import broken_steps
from tests.support.sql_wrappers import StepIsGone, wrap

from . import failpoints
from .pairs import PAIRS, VERBS, Pairs, run_pair
from .scenarios import LEVELS, SIBLINGS
from .target import PlainTarget


@pytest.fixture(scope="module")
def pairs(make_target):
    """Sessions in a sound database with failpoints."""
    target = make_target("matrix")
    target.on_all_nodes(failpoints.install)
    pairs = Pairs(target)
    yield pairs
    pairs.close()


@pytest.mark.parametrize(("scenario", "a", "b"), PAIRS, ids=[f"{scenario.name}: {a} | {b}" for scenario, a, b in PAIRS])
def test_a_pair(pairs, scenario, a, b):
    assert run_pair(pairs, scenario, a, b) == []


@pytest.mark.parametrize(("scenario", "a"), VERBS, ids=[f"{scenario.name}: {a}" for scenario, a in VERBS])
def test_a_request_and_its_retry_at_once(pairs, scenario, a):
    assert run_pair(pairs, scenario, a, a, same_request=True) == []


# What must notice each broken step: `wait` says that B did not wait, the others that the result is wrong.
NOTICED = [
    (broken_steps.NO_BATCH_LATCH, SIBLINGS, "create n", "mkdir n/", {"wait", "check"}),
    (broken_steps.NO_BATCH_LATCH, LEVELS, "create d/n", "rmdir d/", {"wait", "check"}),
    (broken_steps.NO_BATCH_LATCH, LEVELS, "mkdir d/n/", "rename e/s/ over d/", {"wait", "check"}),
    (broken_steps.NO_ENTRY_LATCH, LEVELS, "rmdir d/", "create d/n", {"wait", "check"}),
    (broken_steps.NO_ENTRY_LATCH, LEVELS, "rename e/o to d/n", "rmdir d/", {"wait", "check"}),
    (broken_steps.NO_ENTRY_LATCH, LEVELS, "rename e/s/ over d/", "create d/n", {"wait", "check"}),
    (broken_steps.NO_COMPACTION_LATCH, LEVELS, "compact d/", "rmdir d/", {"wait"}),
    (broken_steps.NO_EPOCH_LATCH, LEVELS, "rename e/s/ to d/n/", "raise the epoch", {"wait"}),
    (broken_steps.NO_EPOCH_LATCH, LEVELS, "raise the epoch", "remove tree d/", {"wait", "code", "tree"}),
    (broken_steps.NO_TOMBSTONE, LEVELS, "rmdir d/", "create d/n", {"code", "tree", "check"}),
    (broken_steps.NO_TOMBSTONE, LEVELS, "rename e/s/ over d/", "mkdir d/n/", {"code", "tree", "check"}),
    (broken_steps.NO_LOOK_INSIDE, LEVELS, "create d/n", "rmdir d/", {"code", "check"}),
]


@pytest.mark.parametrize(
    ("fault", "scenario", "a", "b", "kinds"), NOTICED, ids=[f"{fault.name}: {a} | {b}" for fault, _, a, b, _ in NOTICED]
)
def test_a_missing_step_is_noticed(broken, fault, scenario, a, b, kinds):
    pairs = broken(fault)
    found = run_pair(pairs, scenario, a, b)
    seen = {text.split(": ")[1] for text in found}
    assert seen >= kinds, found


@pytest.mark.parametrize(
    "scene_and_verb", [(SIBLINGS, "overwrite o"), (LEVELS, "rename e/o to d/n"), (SIBLINGS, "chmod s/")]
)
def test_an_unchecked_claim_is_noticed(broken, scene_and_verb):
    """Without the name's latch the claim alone decides between a request and its retry."""
    pairs = broken(broken_steps.ANY_CLAIM, broken_steps.NO_LATCH)
    assert any(
        "code" in text or "tree" in text
        for text in run_pair(pairs, *scene_and_verb, scene_and_verb[1], same_request=True)
    )


@pytest.fixture(scope="module")
def broken(make_target):
    """Sessions in a database with a broken step, made on first use."""
    made: dict[tuple, Pairs] = {}

    def get(*wanted: broken_steps.BrokenStep) -> Pairs:
        if wanted not in made:
            target: PlainTarget = make_target("_".join(fault.name for fault in wanted))
            for fault in wanted:
                target.on_all_nodes(lambda connection, fault=fault: broken_steps.break_steps(connection, fault))
            target.on_all_nodes(failpoints.install)
            made[wanted] = Pairs(target)
        return made[wanted]

    yield get
    for pairs in made.values():
        pairs.close()


def test_a_step_that_is_gone_is_named(make_target):
    target = make_target("gone")
    with (
        target.connect() as connection,
        pytest.raises(StepIsGone, match=r"mantle\.no_such_step, named by failpoints\.POINTS"),
    ):
        wrap(connection, "no_such_step", "failpoints.POINTS")


def test_a_release_has_no_failpoints(make_target):
    with make_target("release").connect() as connection:
        found = connection.execute(
            "SELECT n.nspname, p.proname FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace"
            " WHERE n.nspname = 'failpoint' OR p.prosrc LIKE '%failpoint%' OR p.proname LIKE '%wrapped%'"
        ).fetchall()
    assert found == []
