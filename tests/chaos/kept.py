"""Objects that are put, replaced and removed while faults last. At the end of a round the bytes of each are read back.

Each client has keys of its own, and repeats a call with the same idempotency key until a final answer. So it knows the
bytes that each key must have. The bytes name their key and version all over: foreign and old ones are told apart.
"""

import random
import threading
import time
import uuid
from collections.abc import Callable

from tests.support.rest import Answer

from .workload import ANSWER_BOUND_S, RETRY_PAUSE_S

FOLDER = "kept"
KEYS = 40  # of each client
REMOVED = 0.15  # the share of calls that remove
BYTES_MAX = 300 << 10
PAUSE_S = 0.05
MISSING = "NoSuchKey"


def content_of(key: str, version: int, size: int) -> str:
    """`size` bytes that name the key and the version."""
    name = f"{key} {version}\n"
    return (name * (size // len(name) + 1))[:size]


class Kept:
    """Runs until it is told to end. `objects`: a caller for each client, as of `objects.Objects`."""

    def __init__(self, ns: str, objects: list[Callable[..., Answer]], seed: int):
        self.ns, self.objects, self.seed = ns, objects, seed
        self.known: dict[str, tuple[int, int] | None] = {}  # by key: version and size; None of one that was removed
        self._broken: list[str] = []
        self._ending = threading.Event()
        self.threads = [threading.Thread(target=self._play, args=(at,), daemon=True) for at in range(len(objects))]

    def __enter__(self) -> "Kept":
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *_ignored) -> None:
        self._ending.set()
        for thread in self.threads:
            thread.join()

    def _play(self, client: int) -> None:
        choose = random.Random(f"{self.seed} {FOLDER} {client}")
        version = 0
        try:
            while not self._ending.is_set():
                version += 1
                key = f"{FOLDER}/{client}-{choose.randrange(KEYS)}"
                self.change(client, key, version, choose)
                self._ending.wait(choose.random() * 2 * PAUSE_S)
        except Exception as error:  # the round reports it
            self._broken.append(f"client {client} of kept objects: {error!r}")

    def change(self, client: int, key: str, version: int, choose: random.Random) -> None:
        """Removes the object, or gives it other bytes."""
        request = str(uuid.UUID(int=choose.getrandbits(128), version=4))
        if choose.random() < REMOVED:
            answer, known = self._insist(client, "delete", key, "", request), None
        else:
            # As many small ones as large ones.
            size = int(BYTES_MAX ** choose.random())
            answer = self._insist(client, "put", key, content_of(key, version, size), request)
            known = version, size
        if answer.status >= 400:
            raise AssertionError(f"{key}: {answer}")
        self.known[key] = known

    def _insist(self, client: int, verb: str, key: str, content: str, request: str) -> Answer:
        began = time.monotonic()
        while True:
            answer = self.objects[client](verb, self.ns, key, "", content, request)
            if not answer.passing:
                return answer
            if time.monotonic() - began > ANSWER_BOUND_S:
                raise AssertionError(f"no final answer to {verb} of {key} in {ANSWER_BOUND_S:.0f} s, last {answer}")
            time.sleep(RETRY_PAUSE_S)

    def wrong(self) -> list[str]:
        """Reads every object back. Call it after the end."""
        return self._broken + [what for key in sorted(self.known) for what in self._compare(key)]

    def _compare(self, key: str) -> list[str]:
        expected = self.known[key]
        answer = self._insist(0, "get", key, "", str(uuid.uuid4()))
        if expected is None:
            return [] if answer.code == MISSING else [f"{key} was removed, and answers {answer.status}"]
        if answer.status != 200:
            return [f"{key}, version {expected[0]}: {answer.status} {answer.code}"]
        content, found = content_of(key, *expected), answer.body["content"]
        if found == content:
            return []
        return [f"{key}, version {expected[0]} of {len(content)} bytes: found {len(found)} bytes, {found[:60]!r}"]
