"""A steady load of directory creations, and what was acknowledged of it."""

import threading
import uuid

from rest import Rest
from stack.poll import wait_until

PROGRESS_BOUND_S = 120.0


class MkdirLoad:
    """Threads that make directories below `load/` of a namespace and retry as a careful client does.

    `acknowledged` holds the paths answered with 201, and only those. A path is asked for again with the same key until it
    is answered, so a refusal such as `already_exists` would mean that a lost answer was done twice: it ends the load.
    """

    def __init__(self, rest: Rest, ns: str, threads: int = 4):
        self.ns = ns
        self.acknowledged: list[str] = []
        self.faults: list[BaseException] = []
        self._end = threading.Event()
        rest.mkdir(ns, "load")
        self._threads = [threading.Thread(target=self._work, args=(rest.twin(), number), daemon=True) for number in range(threads)]

    def __enter__(self) -> "MkdirLoad":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_ignored) -> None:
        self._end.set()
        for thread in self._threads:
            thread.join()
        if self.faults:
            raise self.faults[0]

    def _work(self, rest: Rest, number: int) -> None:
        count = 0
        try:
            while not self._end.is_set():
                path = f"load/{number}-{count}"
                rest.mkdir(self.ns, path, key=str(uuid.uuid4()))
                self.acknowledged.append(path)
                count += 1
        except BaseException as fault:
            self.faults.append(fault)

    def await_progress(self, more: int) -> None:
        """Until `more` further directories were acknowledged."""
        wanted = len(self.acknowledged) + more
        wait_until(
            lambda: len(self.acknowledged) >= wanted,
            f"{more} more acknowledged directories",
            PROGRESS_BOUND_S,
            lambda: str(self.faults[0]) if self.faults else None,
        )
