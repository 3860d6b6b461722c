"""Moves a shard to the other Citus worker while a call waits at a failpoint."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import psycopg

from . import failpoints
from .distributed import CitusTarget, SpreadNamespace, move

MOVE_BOUND_S = 60.0
# Reached by verbs of several directories in the session that sends their parts: all is latched and read, nothing is
# written.
ALL_READ = "all_read"


@contextmanager
def shard_moves_during(
    target: CitusTarget, spread: SpreadNamespace, call: tuple, at: str, moving: int
) -> Iterator[list[str | None]]:
    """Holds a call (session, operation, key) at a failpoint while the shard of `moving` moves to the other worker and
    the block runs; then releases it. Yields its outcome, complete after the end: SQLSTATE, or None for done.
    """
    session, op, key = call
    node = next(node for node in target.all if int(node["port"]) == session.info.port)
    gate = failpoints.Gate(psycopg.connect(**node, autocommit=True))
    outcome: list[str | None] = []

    def held() -> None:
        failpoints.arm(session, at)
        try:
            outcome.append(spread.call(session, op, key).code)
        except psycopg.Error as error:
            outcome.append(error.sqlstate)

    thread = threading.Thread(target=held)
    with gate.closed():
        thread.start()
        gate.await_held(session.info.backend_pid, lambda: not thread.is_alive(), f"{op.verb} at {at}")
        ends = [(node["host"], int(node["port"])) for node in target.all[1:]]
        source = spread.worker_of(moving)
        move(spread.coordinator, spread.shard_of(moving), ends[source], ends[1 - source], "block_writes")
        assert spread.worker_of(moving) == 1 - source
        yield outcome
    thread.join()
