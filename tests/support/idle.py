"""Whether a server writes while nothing happens: its next transaction id, and the records of its WAL.

Earlier changes leave work that is done later and has nothing to do with an idle server. Autovacuum may come at any
time. A reader that meets a dead row prunes its page, and one that meets an index entry of a dead row marks it; with
checksums each is a WAL record after a checkpoint. `settle` does all of that first, and proves that nothing is left:
after it, no table of any database has a dead row, a row without its hint bits, or an index entry of a removed row.
"""

import re
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import psycopg

from stack.poll import wait_until

BOUND_S = 120.0
# Of PostgreSQL itself: a checkpoint, and the list of running transactions that standbys and slots need.
OWN = re.compile(r"desc: (CHECKPOINT_ONLINE|CHECKPOINT_REDO|RUNNING_XACTS)\b")

_ENDED = "SELECT NOT EXISTS (SELECT FROM pg_stat_activity WHERE backend_type = 'autovacuum worker')"
# A transaction id, in all of which nothing older than it is kept from VACUUM: sessions, slots, prepared transactions.
_IS_PAST = """
    SELECT coalesce(max(o.age) < age(%s::xid), true)
      FROM (SELECT greatest(age(backend_xmin), age(backend_xid)) FROM pg_stat_activity WHERE pid <> pg_backend_pid()
            UNION ALL SELECT greatest(age(xmin), age(catalog_xmin)) FROM pg_replication_slots
            UNION ALL SELECT age(transaction) FROM pg_prepared_xacts) AS o(age)
"""
_DATABASES = "SELECT datname FROM pg_database WHERE datallowconn ORDER BY datname"
# What VACUUM says of a table in which nothing was left to do.
_CLEAN = re.compile(
    r"finished (aggressive )?vacuuming (?=.*tuples: 0 removed, \d+ remain, 0 are dead but not yet removable)"
    r"(?!.*tuples missed: )(?=.*had 0 dead item identifiers)(?!.*had [1-9]\d* tuples frozen)",
    re.DOTALL,
)


@dataclass(frozen=True)
class Server:
    """One PostgreSQL. `connect` opens a superuser's session in a database."""

    name: str
    programs: Path
    data: Path
    connect: Callable[[str], psycopg.Connection]


@dataclass(frozen=True)
class Written:
    """What a server wrote: transaction ids, and records of the WAL that are not PostgreSQL's own."""

    transactions: int
    records: list[str]


def is_clean(message: str) -> bool:
    """Whether VACUUM found nothing to do in a table."""
    return _CLEAN.search(message) is not None


def _vacuum(server: Server, database: str) -> list[str]:
    """What VACUUM says of the tables of a database where it found something to do."""
    said: list[str] = []
    with server.connect(database) as session:
        session.add_notice_handler(lambda notice: said.append(notice.message_primary or ""))
        session.execute("SET lc_messages = 'C'")
        # FREEZE waits for pages that a reader holds. INDEX_CLEANUP: a few dead entries are left out by default.
        session.execute("VACUUM (FREEZE, INDEX_CLEANUP ON, VERBOSE)")
    finished = [message for message in said if message.startswith("finished ")]
    assert finished, f"VACUUM of {database} says nothing of its tables: {said}"
    return [message for message in finished if not is_clean(message)]


def _is_settled(server: Server) -> bool:
    with server.connect("postgres") as session:
        own = str(session.execute("SELECT pg_current_xact_id()::xid").fetchone()[0])

        def is_past() -> bool:
            session.execute("CHECKPOINT")  # its list of running transactions lets slots go on
            return session.execute(_IS_PAST, (own,)).fetchone()[0]

        wait_until(is_past, f"{server.name} to need nothing from before transaction {own}", BOUND_S)
        databases = [name for (name,) in session.execute(_DATABASES).fetchall()]
    left = [_vacuum(server, database) for database in databases]
    return not any(left)


@contextmanager
def settled(servers: Sequence[Server]) -> Iterator[None]:
    """Nothing is left of earlier changes, and autovacuum is off while the block runs."""
    with ExitStack() as mended:
        for server in servers:
            session = mended.enter_context(server.connect("postgres"))
            mended.callback(_set_autovacuum, session, "RESET autovacuum")
            _set_autovacuum(session, "SET autovacuum = off")
            wait_until(lambda session=session: session.execute(_ENDED).fetchone()[0], "autovacuum's end", BOUND_S)
        for server in servers:
            wait_until(lambda server=server: _is_settled(server), f"{server.name} to have no dead row", BOUND_S)
        yield


def _set_autovacuum(session: psycopg.Connection, change: str) -> None:
    session.execute(f"ALTER SYSTEM {change}")
    session.execute("SELECT pg_reload_conf()")


def written_in(servers: Sequence[Server], seconds: float) -> dict[str, Written]:
    """What each server writes in this time."""
    with ExitStack() as sessions:
        open_ = [(server, sessions.enter_context(server.connect("postgres"))) for server in servers]
        begun = [_begin(session) for _, session in open_]
        time.sleep(seconds)  # no wait for a condition: that nothing happens in this time is what is tested
        return {
            server.name: _end(server, session, *begin) for (server, session), begin in zip(open_, begun, strict=True)
        }


def _begin(session: psycopg.Connection) -> tuple[str, int]:
    # Not all that was written is in the WAL's files, and a checkpoint shows that the window is read.
    (position,) = session.execute("SELECT pg_current_wal_insert_lsn()::text").fetchone()
    session.execute("CHECKPOINT")
    return position, _next_transaction(session)


def _end(server: Server, session: psycopg.Connection, start: str, first: int) -> Written:
    after = _next_transaction(session)
    (end,) = session.execute("SELECT pg_current_wal_insert_lsn()::text").fetchone()
    session.execute("CHECKPOINT")  # everything before is in the files then
    (timeline,) = session.execute("SELECT timeline_id FROM pg_control_checkpoint()").fetchone()
    records = list(_records(server, start, end, timeline))
    assert any("CHECKPOINT_ONLINE" in record for record in records), records
    return Written(after - first, foreign(records))


def foreign(records: Iterable[str]) -> list[str]:
    """The records that a server without clients would not write."""
    return [record for record in records if not OWN.search(record)]


def _next_transaction(session: psycopg.Connection) -> int:
    """The next transaction id; those of running transactions count as used."""
    query = (
        "SELECT greatest(pg_snapshot_xmax(pg_current_snapshot())::text::bigint,"
        " (SELECT max(backend_xid::text::bigint) + 1 FROM pg_stat_activity))"
    )
    return session.execute(query).fetchone()[0]


def _records(server: Server, start: str, end: str, timeline: int) -> Iterator[str]:
    command = [server.programs / "pg_waldump", "--path", server.data / "pg_wal", "--timeline", str(timeline)]
    dumped = subprocess.run([*command, "--start", start, "--end", end], capture_output=True, text=True, check=False)
    assert dumped.returncode == 0, dumped.stderr
    yield from dumped.stdout.splitlines()
