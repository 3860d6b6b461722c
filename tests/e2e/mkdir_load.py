"""A steady load of directory creations, and its acknowledged paths."""

import uuid
from functools import partial

from tests.support.rest import Rest

from .background import Repeated

PROGRESS_BOUND_S = 120.0


class MkdirLoad(Repeated):
    """Threads that make directories below `load/` of a namespace and retry as a careful client does.

    `acknowledged` holds exactly the paths answered with 201. A path is requested with the same key until it is
    answered. So a refusal such as `already_exists` would mean that a request with a lost answer was done twice: it ends
    the load.
    """

    def __init__(self, rest: Rest, ns: str, threads: int = 4):
        super().__init__([partial(self._make, rest.twin(), number) for number in range(threads)])
        self.ns = ns
        self.acknowledged: list[str] = []
        rest.mkdir(ns, "load")

    def _make(self, rest: Rest, number: int, count: int) -> None:
        path = f"load/{number}-{count}"
        rest.mkdir(self.ns, path, key=str(uuid.uuid4()))
        self.acknowledged.append(path)

    def await_progress(self, more: int) -> None:
        """Waits until `more` further directories were acknowledged."""
        self.await_more(lambda: len(self.acknowledged), more, "acknowledged directories", PROGRESS_BOUND_S)
