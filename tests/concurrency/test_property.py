"""Random concurrent histories against the model: load.py writes them, history.py judges them.

The seed is printed with the counts, and with every problem. MANTLE_PROPERTY_SEED sets the first one.
"""

import collections
import os
import time

import pytest

from tests.support import broken_steps

from .load import Load
from .random_histories import SEED, one_history

SECONDS = float(os.environ.get("MANTLE_PROPERTY_SECONDS", "45"))
# The values of mantle.delta_records, in turn; the histories must cover each of them.
DELTA_RECORDS = ("auto", "never", "always")
# The number of histories that a broken step may survive.
ROUNDS_TO_NOTICE = 20


def tally(load: Load) -> collections.Counter:
    counts = collections.Counter()
    for s in load.submissions:
        counts["unknown" if s.answer is None else s.answer.code or ("replayed" if s.answer.replayed else "done")] += 1
    return counts


def keep_counts(target, delta_records: str) -> None:
    """Sets mantle.delta_records for sessions that begin later."""
    with target.connect() as connection:
        connection.execute(f"ALTER DATABASE {target.database} SET mantle.delta_records = {delta_records}")


@pytest.mark.timeout(SECONDS + 300)
def test_histories_are_sound(make_target, capsys):
    target = make_target("property")
    deadline, seed, total = time.monotonic() + SECONDS, SEED, collections.Counter()
    histories = collections.Counter()
    while time.monotonic() < deadline or not histories.keys() >= set(DELTA_RECORDS):
        delta_records = DELTA_RECORDS[histories.total() % len(DELTA_RECORDS)]
        keep_counts(target, delta_records)
        load, problems = one_history(target, seed)
        assert problems == [], f"MANTLE_PROPERTY_SEED={seed} mantle.delta_records={delta_records}:\n" + "\n".join(
            problems
        )
        total += tally(load)
        histories[delta_records] += 1
        seed += 1
    with capsys.disabled():
        print(
            f"\n{histories.total()} histories ({dict(histories)} by mantle.delta_records), seeds {SEED} to {seed - 1},"
            f" {total.total()} operations: {dict(total.most_common())}"
        )
    # A load without collisions would prove nothing.
    wanted = ("done", "replayed", "unknown", "MT012", "MT017", "MT018", "MT020", "MT026")
    assert all(total[outcome] > 0 for outcome in wanted), total


@pytest.mark.parametrize(
    "fault",
    [
        broken_steps.NO_BATCH_LATCH,
        broken_steps.NO_ENTRY_LATCH,
        broken_steps.NO_PRUNING_LATCH,
        broken_steps.NO_TOMBSTONE,
        broken_steps.NO_LOOK_INSIDE,
        broken_steps.ANY_CLAIM,
        broken_steps.LOST_COUNTS,
    ],
    ids=lambda fault: fault.name,
)
def test_a_broken_step_is_noticed(make_target, fault):
    target = make_target(f"property_{fault.name}")
    target.on_all_nodes(lambda connection: broken_steps.break_steps(connection, fault))
    for seed in range(SEED, SEED + ROUNDS_TO_NOTICE):
        _, problems = one_history(target, seed)
        if problems:
            return
    pytest.fail(f"{fault.name} was not noticed in {ROUNDS_TO_NOTICE} histories from seed {SEED}")
