"""Steps that threads repeat while a block runs."""

import threading
from collections.abc import Callable

from stack.poll import wait_until


class Repeated:
    """Each step has a thread, which calls it with 0, 1, 2, … until the block ends. A failing step ends its thread. The
    first error is raised at the end of the block, or by `await_more`.
    """

    def __init__(self, steps: list[Callable[[int], None]]):
        self.faults: list[BaseException] = []
        self._end = threading.Event()
        self._threads = [threading.Thread(target=self._repeat, args=(step,), daemon=True) for step in steps]

    def __enter__(self):
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_ignored) -> None:
        self._end.set()
        for thread in self._threads:
            thread.join()
        if self.faults:
            raise self.faults[0]

    def _repeat(self, step: Callable[[int], None]) -> None:
        count = 0
        try:
            while not self._end.is_set():
                step(count)
                count += 1
        except BaseException as fault:
            self.faults.append(fault)

    def await_more(self, done: Callable[[], int], more: int, what: str, bound_s: float) -> None:
        """Waits until a count has grown by this many."""
        wanted = done() + more
        wait_until(
            lambda: done() >= wanted,
            f"{more} more {what}",
            bound_s,
            lambda: str(self.faults[0]) if self.faults else None,
        )
