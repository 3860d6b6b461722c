"""Random concurrent histories, each written by load.py and judged by history.py."""

import os
import time

from .distributed import CitusTarget
from .history import judge
from .load import Load
from .target import PlainTarget

SEED = int(os.environ.get("MANTLE_PROPERTY_SEED", time.time_ns() % 1_000_000))
SESSIONS = 6
ELEMENTS = 1500
SECONDS_ON_CITUS = 20.0
ELEMENTS_ON_CITUS = 600


def one_history(target: PlainTarget, seed: int, elements: int = ELEMENTS, chaos=None) -> tuple[Load, list[str]]:
    load = Load(target, seed, SESSIONS)
    load.run(elements, chaos)
    target.settle()
    with target.connect() as connection:
        return load, judge(connection, load.ns, load.submissions, load.surprises, target.tells_pruning_apart)


def assert_sound(target: CitusTarget, chaos=None) -> None:
    """Histories for SECONDS_ON_CITUS on a Citus cluster."""
    deadline, seed = time.monotonic() + SECONDS_ON_CITUS, SEED
    while time.monotonic() < deadline:
        load, problems = one_history(target, seed, ELEMENTS_ON_CITUS, chaos)
        assert problems == [], f"MANTLE_PROPERTY_SEED={seed}:\n" + "\n".join(problems)
        assert sum(s.answer is not None and s.answer.code is None for s in load.submissions) > ELEMENTS_ON_CITUS / 5
        seed += 1
