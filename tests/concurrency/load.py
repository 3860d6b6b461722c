"""Writes a random history: several sessions, batches of one to eight elements, and a tree so small that they collide
all the time.

The seed repeats the choices, not the interleaving of the sessions. The load includes retries of requests that ended or
are in progress, request ids reused for other calls, and sessions that the administrator terminates at any time.
"""

import itertools
import queue
import random
import threading
import time
import uuid
import zlib
from collections import deque
from dataclasses import dataclass

import psycopg

from . import state, verbs
from .prepares import Prepares
from .target import PlainTarget
from .tree import Op, Tree
from .verbs import Answer, Key

# Object and directory of one name share a stem (P29).
OBJECTS = "abc"
DIRECTORIES = "cde"
DEPTH_MAX = 3
BATCH_MAX = 8
IDS_MAX = 200_000
VERBS = {
    "put_object": 25, "delete_object": 14, "mkdir": 17, "rmdir": 12, "rename_object": 10, "rename_directory": 16,
    "set_attributes": 6, "compact": 5, "remove_tree": 1, "prune": 4,
}  # fmt: skip
RENAMES = ("rename_directory", "remove_tree")
RETRY_SHARE = 0.12
MISUSE_SHARE = 0.04
KILL_SHARE = 0.004  # of the calls
# The call had no effect and says so. It waited too long for a latch, was chosen to break a deadlock (two calls that use
# each other's request ids), or met the move of a shard.
GAVE_UP = ("55P03", "40P01", "MT043")


@dataclass
class Submission:
    """One element that was sent. `answer` None: unknown, the connection broke. Times are seconds since 1970."""

    op: Op
    key: Key
    began: float
    ended: float = float("inf")
    answer: Answer | None = None
    decided: str | None = None  # for a rename: the answer of its abort


def digest(op: Op) -> int:
    """The hash of a request. Other parameters give another hash."""
    return zlib.crc32(repr(op).encode())


class Load:
    """One history, in its own namespace."""

    def __init__(self, target: PlainTarget, seed: int, sessions: int):
        self.target, self.seed = target, seed
        with target.connect() as connection:
            self.ns = verbs.create_namespace(connection, f"load-{uuid.uuid4().hex[:12]}")
            self.ids = itertools.count(verbs.allocate_ids(connection, IDS_MAX))
        self.prepares = Prepares()
        self.submissions: list[Submission] = []
        self.surprises: list[str] = []
        self.recent: deque[Submission] = deque(maxlen=40)
        # Port and backend.
        self.victims: queue.SimpleQueue[tuple[int, int] | None] = queue.SimpleQueue()
        self.stop = threading.Event()
        self.sessions = [Session(self, number) for number in range(sessions)]

    def run(self, elements: int, chaos=None) -> None:
        """Runs until the wanted number of elements was sent. `chaos(load)` may interfere (and stop the load)."""
        threads = [threading.Thread(target=session.run, args=(elements,)) for session in self.sessions]
        killer = threading.Thread(target=self._kill)
        for thread in (*threads, killer):
            thread.start()
        try:
            if chaos is not None:
                chaos(self)
            for thread in threads:
                thread.join()
        finally:
            self.stop.set()
            self.victims.put(None)
            for thread in (*threads, killer):
                thread.join()

    def send(self, connection: psycopg.Connection, batch: list[Submission]) -> None:
        """One call and its answer; both belong to the history."""
        began = time.time()
        for submission in batch:
            submission.began = began
        self.submissions += batch
        self.recent += batch
        try:
            answers = verbs.call(connection, self.ns, [s.op for s in batch], [s.key for s in batch])
        except psycopg.Error as error:
            if error.sqlstate in GAVE_UP:
                answers = [Answer(error.sqlstate)] * len(batch)
            elif error.sqlstate in self.target.moved_codes:
                answers = [Answer("MT043")] * len(batch)
            elif isinstance(error, psycopg.OperationalError) and (error.sqlstate or "57P01").startswith(("57P", "08")):
                answers = [None] * len(batch)
            else:
                answers = [Answer(error.sqlstate)] * len(batch)
                self.surprises.append(f"{batch[0].op.verb} failed with {error.sqlstate}: {error}")
        ended = time.time()
        for submission, answer in zip(batch, answers, strict=True):
            submission.answer, submission.ended = answer, ended

    def _kill(self) -> None:
        """Ends the given sessions, a random number of round trips later."""
        choose = random.Random(f"{self.seed}-killer")
        connections: dict[int, psycopg.Connection] = {}
        while victim := self.victims.get():
            port, backend = victim
            try:
                if port not in connections:
                    connections[port] = psycopg.connect(
                        **{**self.target.parameters, "port": str(port)}, autocommit=True
                    )
                for _ in range(choose.randrange(12)):
                    connections[port].execute("SELECT 1")
                connections[port].execute("SELECT pg_terminate_backend(%s::int)", (backend,))
            except psycopg.OperationalError:
                return
        for connection in connections.values():
            connection.close()


class Session:
    """One client."""

    def __init__(self, load: Load, number: int):
        self.load = load
        self.choose = random.Random(f"{load.seed}-{number}")
        self.view = Tree()
        self.connection: psycopg.Connection | None = None

    def run(self, elements: int) -> None:
        """Runs until the wanted number of elements was sent. `chaos(load)` may interfere (and stop the load)."""
        load = self.load
        try:
            while len(load.submissions) < elements and not load.stop.is_set():
                if self.connection is None or self.connection.closed:
                    self.connection = load.target.connect(load.ns)
                try:
                    # Not before each call, so its view is sometimes outdated.
                    if self.choose.random() < 0.4:
                        self.view = state.read_tree(self.connection, load.ns)
                    self._one_call()
                except psycopg.OperationalError:
                    self.connection.close()
                except psycopg.errors.UndefinedTable:
                    pass  # this session reads a shard that has just moved: it reads again
        except psycopg.OperationalError:
            pass  # the server is gone: the end of a crash test's load
        except BaseException as error:
            load.surprises.append(f"a session failed: {error!r}")
            raise
        finally:
            if self.connection is not None:
                self.connection.close()

    def _one_call(self) -> None:
        verb = self.choose.choices(list(VERBS), list(VERBS.values()))[0]
        if verb == "prune" and not self.load.target.tells_pruning_apart:
            return
        count = 1 if verb not in verbs.BATCHED or self.choose.random() < 0.5 else self.choose.randint(2, BATCH_MAX)
        batch = [self._submission(verb) for _ in range(count)]
        node = self.load.target.node_of(batch[0].op.pid)
        batch = [submission for submission in batch if self.load.target.node_of(submission.op.pid) == node]
        if self.choose.random() < KILL_SHARE:
            self.load.victims.put((self.connection.info.port, self.connection.info.backend_pid))
        if verb not in RENAMES:
            self.load.send(self.connection, batch)
            return
        with self.load.prepares.prepared(self.connection, batch[0].op) as granted:
            if granted:
                self.load.send(self.connection, batch)
                if batch[0].answer is None:
                    self._decide(batch[0])

    def _decide(self, submission: Submission) -> None:
        """Aborts the attempt, as the index's leader does before it releases the lock."""
        try:
            self.connection.close()
            self.connection = self.load.target.connect(self.load.ns)
            submission.decided = verbs.abort_rename(self.connection, self.load.ns, submission.key)
        except psycopg.OperationalError:
            pass

    def _submission(self, verb: str) -> Submission:
        recent = list(self.load.recent)
        earlier = [s for s in recent if s.op.verb == verb] if self.choose.random() < RETRY_SHARE else []
        if earlier and verb not in verbs.WITHOUT_REQUEST:
            first = self.choose.choice(self._under_way(earlier))
            attempt = {} if self.choose.random() < 0.5 else {"attempt": first.key.attempt}
            return Submission(first.op, Key(first.key.request, first.key.hash, **attempt), 0.0)
        op = self._op(verb)
        request = uuid.UUID(int=self.choose.getrandbits(128), version=4)
        if self.choose.random() < MISUSE_SHARE and recent and self.load.target.knows_requests_everywhere:
            request = self.choose.choice(self._under_way(recent)).key.request
        return Submission(op, Key(request, digest(op)), 0.0)

    def _under_way(self, submissions: list[Submission]) -> list[Submission]:
        """Half of the time, requests without an answer: only then do two calls of one request id overlap."""
        open_ones = [s for s in submissions if s.ended == float("inf")]
        return open_ones if open_ones and self.choose.random() < 0.5 else submissions

    def _op(self, verb: str) -> Op:
        choose, view = self.choose, self.view
        pid = self._directory()
        stem = choose.choice(OBJECTS if verb in ("put_object", "delete_object", "rename_object") else DIRECTORIES)
        if verb == "compact":
            return Op(verb, pid)
        if verb == "put_object":
            condition = choose.choices([None, "*absent", "*present", "v1"], [6, 2, 1, 1])[0]
            return Op(
                verb,
                pid,
                stem,
                next(self.load.ids),
                choose.randrange(1000),
                choose.choice(("v1", "v2")),
                condition,
                mode=420,
            )
        if verb == "mkdir":
            return Op(verb, pid, f"{stem}/", next(self.load.ids), explicit=choose.random() < 0.6)
        objects = [place for place, entry in view.entries.items() if not entry.is_directory]
        directories = [place for place, entry in view.entries.items() if entry.is_directory and place[0] > 1]
        if verb == "prune":
            directories = [place for place in directories if not view.entries[place].explicit]
        wanted = objects if verb in ("delete_object", "rename_object") else directories
        if verb == "set_attributes" and choose.random() < 0.5:
            wanted = objects
        place = choose.choice(wanted) if wanted else (pid, stem if wanted is objects else f"{stem}/")
        id = view.entries[place].id if place in view.entries else next(self.load.ids)
        if verb == "rename_object":
            return Op(verb, *place, dst_pid=pid, dst_name=stem, overwrite=choose.random() < 0.5)
        if verb == "rename_directory":
            there = view.at(pid, f"{stem}/")
            victim = there.id if there is not None and choose.random() < 0.7 else 0
            return Op(verb, *place, id, dst_pid=pid, dst_name=f"{stem}/", victim=victim)
        return Op(verb, *place, id, mode=choose.randrange(512)) if verb == "set_attributes" else Op(verb, *place, id)

    def _directory(self) -> int:
        """Prefers directories near the root."""
        pid = self.load.ns
        for _ in range(self.choose.randrange(DEPTH_MAX)):
            below = [entry.id for (at, _), entry in self.view.entries.items() if at == pid and entry.is_directory]
            if not below:
                break
            pid = self.choose.choice(below)
        return pid
