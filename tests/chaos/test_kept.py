"""The judge of kept objects notices what is lost, old, foreign, cut and not removed."""

import random

import pytest

from stack.poll import wait_until
from tests.support.rest import Answer

from .kept import Kept, content_of


class Memory:
    """A store that forgets nothing, and refuses every 20th call once."""

    def __init__(self):
        self.bodies: dict[str, str] = {}
        self.calls = 0

    def __call__(self, verb: str, _bucket: str, key: str, _to: str, content: str, _request: str) -> Answer:
        self.calls += 1
        if self.calls % 20 == 0:
            return Answer(503, {"code": "ServiceUnavailable"})
        if verb == "put":
            self.bodies[key] = content
        elif verb == "delete":
            self.bodies.pop(key, None)
        elif key in self.bodies:
            return Answer(200, {"content": self.bodies[key]})
        else:
            return Answer(404, {"code": "NoSuchKey"})
        return Answer(200)


def played() -> tuple[Kept, Memory]:
    memory, choose = Memory(), random.Random(1)
    kept = Kept("ns", [memory], 1)
    for version in range(60):
        kept.change(0, f"kept/0-{version % 20}", version, choose)
    return kept, memory


def test_what_is_kept_is_right():
    kept, memory = played()
    assert None in kept.known.values() and len(memory.bodies) > 10
    assert kept.wrong() == []


def test_threads_end():
    memory = Memory()
    with Kept("ns", [memory, memory], 1) as kept:
        wait_until(lambda: len({key.partition("-")[0] for key in kept.known}) == 2, "both clients", 10)
    assert kept.wrong() == [] and not any(thread.is_alive() for thread in kept.threads)


@pytest.mark.parametrize("kind", ["lost", "old", "foreign", "cut", "not removed"])
def test_what_is_wrong_is_told(kind):
    kept, memory = played()
    key = next(key for key, known in sorted(kept.known.items()) if known and known[1] > 100)
    version, size = kept.known[key]
    match kind:
        case "lost":
            del memory.bodies[key]
        case "old":
            memory.bodies[key] = content_of(key, version - 1, size)
        case "foreign":
            memory.bodies[key] = content_of("kept/0-x", version, size)
        case "cut":
            memory.bodies[key] = memory.bodies[key][:-1]
        case _:
            key = next(key for key, known in kept.known.items() if known is None)
            memory.bodies[key] = "back"
    (told,) = kept.wrong()
    assert told.startswith(key)
