"""A judged workload: one directory, a few clients that call all verbs on it at random, and a judge of their answers.

Clients are careful: they repeat a temporary refusal (503, a broken connection) with the same idempotency key until a
final answer. So a call has one outcome, and took effect once between its first attempt and that answer. Clients meet
after every few calls: a *window* ends when no call is in progress. The states that the tree may be in then begin the
next window.
"""

import random
import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass

from tests.support.rest import Answer, Rest, quote

from . import objects
from .linearizable import Call, Undecided, check
from .model import Operation, Outcome, Tree

CALLS_PER_WINDOW = 6  # of each client
OBJECTS = ("o", "p")
MODES = ("0700", "0755")
PAUSE_S = 0.02
RETRY_PAUSE_S = 0.1
# Longer than any failover: a call without an answer by then is a fault.
ANSWER_BOUND_S = 240.0


@dataclass(frozen=True)
class Mix:
    """The verbs of the clients by weight, on paths of these names; shorter paths are more likely."""

    weights: dict[str, int]
    directories: tuple[str, ...]
    depths: tuple[int, ...]  # how likely a path of 1, 2, … names is
    renames: tuple[tuple[tuple[str, ...], tuple[str, ...]], ...] = ()  # from, to; none: any path to any other
    moved: str = ""  # a directory that exists from the beginning, and moves from one of the others to the next


EVERYTHING = Mix(
    {"mkdir": 5, "rmdir": 3, "rename": 4, "stat": 6, "list": 3, "put": 3, "get": 4, "delete": 1, "chmod": 1},
    ("a", "b", "c"),
    (5, 3, 1),
)
# S3 alone, on a few keys of one directory.
S3 = Mix(
    {
        "put": 4,
        "get": 5,
        "delete": 1,
        "delete_if_match": 3,
        "copy": 4,
        "rename_object": 3,
        "upload": 3,
        "list_objects": 3,
    },
    (),
    (),
)
# New entries are used at once.
GROWING = Mix({"mkdir": 8, "rmdir": 1, "stat": 1}, ("a", "b"), (2, 2, 1))
# Directories come and go, and entries are made in them. A directory that does not exist any more, or never did, may
# have children for a moment.
BUDDING = Mix({"mkdir": 6, "rmdir": 4, "stat": 1}, ("a", "b"), (2, 3))
# Two directories, each moved into the other.
CROSSING = Mix(
    {"mkdir": 3, "rename": 10, "stat": 2, "chmod": 2}, ("a", "b"), (1,),
    ((("a",), ("b", "a")), (("b",), ("a", "b")), (("b", "a"), ("a",)), (("a", "b"), ("b",))),
)  # fmt: skip
# One directory moves back and forth between directories on different nodes, and changes meanwhile. The nodes' messages
# may arrive in any order.
HOPPING = Mix({"rename": 6, "chmod": 6, "list": 6, "stat": 1}, ("a", "b", "c"), (1,), moved="x")
# What one client has seen in a listing, another looks for: the index may not have it yet.
SEEKING = Mix({"mkdir": 5, "rmdir": 4, "list": 6, "stat": 8}, ("a", "b"), (1,))
OUTCOMES = {
    "not_found": "missing", "already_exists": "exists", "not_empty": "not_empty", "rename_loop": "loop",
    "NoSuchKey": "missing", "PreconditionFailed": "differs", "path_too_deep": "too_deep",
}  # fmt: skip


class Workload:
    """Runs until it is told to end. `wrong` has the wrong answers, and the windows without an order."""

    def __init__(self, ns: str, name: str, mix: Mix, clients: list[tuple[Rest, Callable]], seed: int):
        self.ns, self.name, self.mix = ns, name, mix
        self.clients = clients
        self.seed = seed
        self.starts = frozenset({Tree()})
        self.wrong: list[str] = []
        self._last_put: dict[str, str] = {}  # what was put last at each name, as far as the clients know
        self.windows = self.calls = self.refusals = 0
        self._ending = threading.Event()
        self._over = False
        self._window: list[Call] = []
        self.history: list[str] = []
        self._meeting = threading.Barrier(len(clients), action=self._judge)
        self._threads = [threading.Thread(target=self._play, args=(at,), daemon=True) for at in range(len(clients))]

    def __enter__(self) -> "Workload":
        rest, _ = self.clients[0]
        rest.mkdir(self.ns, self.name)
        if self.mix.moved:
            paths = [(name,) for name in self.mix.directories] + [(self.mix.directories[0], self.mix.moved)]
            made = {(path, rest.mkdir(self.ns, "/".join((self.name, *path))).body["id"]) for path in paths}
            self.starts = frozenset({Tree(frozenset(made))})
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_ignored) -> None:
        self._ending.set()
        for thread in self._threads:
            thread.join()

    def _play(self, client: int) -> None:
        choose = random.Random(f"{self.seed} {self.name} {client}")
        try:
            while not self._over:
                for _ in range(CALLS_PER_WINDOW):
                    self._window.append(self._call(client, choose))
                    time.sleep(choose.random() * 2 * PAUSE_S)
                self._meeting.wait()
        except threading.BrokenBarrierError:
            pass
        except Exception as error:  # whatever the error is, the other clients must not wait for this one for ever
            self.wrong.append(f"{self.name} client {client}: {error!r}")
            self._meeting.abort()

    def _judge(self) -> None:
        """Between two windows, by the last client that arrives."""
        calls, self._window = self._window, []
        self.history += [f"window {self.windows + 1}", *map(str, sorted(calls, key=lambda call: call.began))]
        self.windows, self.calls = self.windows + 1, self.calls + len(calls)
        try:
            verdict = check(calls, self.starts)
        except Undecided as undecided:
            self._fail(f"undecided: {undecided}", calls)
            return
        if not verdict.is_linearizable:
            self._fail(
                "no order explains these calls; the longest leaves " + "; ".join(map(str, verdict.furthest)), calls
            )
            return
        self.starts = verdict.finals
        self._over = self._ending.is_set()

    def _fail(self, why: str, calls: list[Call]) -> None:
        history = "\n    ".join(map(str, sorted(calls, key=lambda call: call.began)))
        began = " | ".join(str(sorted(("/".join(path), value) for path, value in tree.entries)) for tree in self.starts)
        self.wrong.append(f"{self.name}, window {self.windows}: {why}\n    it began as {began}\n    {history}")
        self._over = True

    def _operation(self, choose: random.Random) -> Operation:
        verb = choose.choices(list(self.mix.weights), list(self.mix.weights.values()))[0]
        if verb in objects.VERBS:
            return self._on_objects(verb, choose)
        path = self._path(choose)
        if verb == "list":
            return Operation(verb, path if self.mix.moved else path[:-1])
        if verb == "chmod":
            return Operation(verb, path, value=choose.choice(MODES))
        if verb == "rename" and self.mix.renames:
            return Operation(verb, *choose.choice(self.mix.renames))
        to = self._path(choose) if verb == "rename" else ()
        while verb == "rename" and to == path:
            to = self._path(choose)
        return Operation(verb, path, to)

    def _on_objects(self, verb: str, choose: random.Random) -> Operation:
        name, other = choose.sample(OBJECTS, 2)
        match verb:
            case "put" | "upload":
                return Operation(verb, (name,), value=uuid.UUID(int=choose.getrandbits(128)).hex)
            case "copy" | "rename_object":
                return Operation(verb, (name,), (other,))
            case "delete_if_match":
                return Operation(verb, (name,), value=self._last_put.get(name, ""))
            case "list_objects":
                return Operation(verb, ())
        return Operation(verb, (name,))

    def _path(self, choose: random.Random) -> tuple[str, ...]:
        if self.mix.moved:
            return choose.choice(self.mix.directories), self.mix.moved
        (depth,) = choose.choices(range(1, len(self.mix.depths) + 1), self.mix.depths)
        return tuple(choose.choice(self.mix.directories) for _ in range(depth))

    def _call(self, client: int, choose: random.Random) -> Call:
        operation, key = self._operation(choose), str(uuid.UUID(int=choose.getrandbits(128), version=4))
        rest, s3 = self.clients[client]
        began = time.monotonic()
        while True:
            is_object = operation.verb in objects.VERBS
            answer = self._s3(s3, operation, key) if is_object else self._rest(rest, operation, key)
            now = time.monotonic()
            if not answer.passing:
                if operation.verb == "put":
                    self._last_put[operation.path[0]] = operation.value
                return Call(operation, self._outcome(operation, answer), began, now, client)
            self.refusals += 1
            if now - began > ANSWER_BOUND_S:
                raise AssertionError(f"no final answer to {operation} in {ANSWER_BOUND_S:.0f} s, last {answer}")
            time.sleep(RETRY_PAUSE_S)

    def _rest(self, rest: Rest, operation: Operation, key: str) -> Answer:
        path = quote("/".join((self.name, *operation.path)))
        base = f"/v1/ns/{self.ns}"
        match operation.verb:
            case "mkdir":
                return rest.call("PUT", f"{base}/dirs/{path}", key=key)
            case "rmdir":
                return rest.call("DELETE", f"{base}/dirs/{path}", key=key)
            case "stat":
                return rest.call("GET", f"{base}/entries/{path}/")
            case "list":
                return rest.call("GET", f"{base}/list/{path}/")
            case "chmod":
                return rest.call("PATCH", f"{base}/entries/{path}/", {"mode": operation.value}, key=key)
        to = "/".join((self.name, *operation.to))
        return rest.call(
            "POST", f"{base}/rename", {"src": f"{'/'.join((self.name, *operation.path))}/", "dst": f"{to}/"}, key=key
        )

    def _s3(self, s3: Callable, operation: Operation, key: str) -> Answer:
        of = lambda path: f"{self.name}/{'/'.join(path)}"
        return s3(operation.verb, self.ns, of(operation.path), of(operation.to), operation.value, key)

    def _outcome(self, operation: Operation, answer: Answer) -> Outcome:
        if answer.status >= 400:
            if answer.code in OUTCOMES:
                return Outcome(OUTCOMES[answer.code])
            raise AssertionError(f"{operation}: {answer}")
        match operation.verb:
            case "mkdir" | "stat":
                return Outcome("ok", answer.body["id"])
            case "list" | "list_objects":
                return Outcome("ok", frozenset(entry["name"].rstrip("/") for entry in answer.body["entries"]))
            case "get":
                return Outcome("ok", answer.body["content"])
        return Outcome()
