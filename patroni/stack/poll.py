"""Waiting for conditions. The one place that pauses: every wait names its condition and its bound.

Units: seconds. Why: a fixed pause is either too short on a loaded machine or wasted on an idle one.
"""

import time
from collections.abc import Callable
from typing import TypeVar

from .failure import Failure

T = TypeVar("T")

PAUSE_FIRST_S = 0.005
PAUSE_MAX_S = 0.1


def wait_until(
    condition: Callable[[], T], what: str, bound_s: float, give_up: Callable[[], str | None] | None = None
) -> T:
    """The first true value of `condition`, asked until `bound_s` is over; then a failure that says `what` was awaited.

    `give_up` may end the wait early by returning why waiting is pointless (the process died).
    """
    deadline = time.monotonic() + bound_s
    pause = PAUSE_FIRST_S
    while True:
        value = condition()
        if value:
            return value
        reason = give_up() if give_up else None
        if reason:
            raise Failure(f"waited for {what}: {reason}")
        if time.monotonic() >= deadline:
            raise Failure(f"waited {bound_s:g} s for {what}, in vain")
        time.sleep(pause)
        pause = min(pause * 2, PAUSE_MAX_S)
