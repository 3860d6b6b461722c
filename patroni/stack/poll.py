"""Waits for conditions. This is the only place that sleeps: every wait names its condition and its bound, in seconds.

Why: a fixed sleep is too short on a loaded machine, or wasted on an idle one.
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
    """The first true value of `condition`. After `bound_s`, raises a Failure that names `what`.

    `give_up` may end the wait early by returning the reason why waiting is pointless, such as a dead process.
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
