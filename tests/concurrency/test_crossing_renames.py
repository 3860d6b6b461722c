"""mantle.delta_records = never: a rename waits for the counts of both its directories, while another rename goes the
other way.
"""

import threading
import uuid

import psycopg
import pytest

from stack.poll import wait_until

from . import verbs
from .tree import Op
from .verbs import Answer, Key

WAIT_BOUND_S = 20.0
HOLD = "SELECT FROM mantle.meta WHERE pid = %s AND name = '/_ATTR' AND ts = 0 FOR UPDATE"
WAITING = "SELECT count(*) FROM pg_stat_activity WHERE pid = ANY(%s) AND wait_event_type = 'Lock'"
EPOCH = "SELECT epoch FROM mantle.index_group(1)"


def fill(connection: psycopg.Connection, verb: str) -> tuple[int, int, int, list[Op]]:
    """Two directories with an entry each, and the renames of each entry into the other directory."""
    ns = verbs.create_namespace(connection, f"fro-{uuid.uuid4().hex[:12]}")
    lower = verbs.allocate_ids(connection, 4)
    upper, ids = lower + 1, (lower + 2, lower + 3)
    makes = "mkdir" if verb == "rename_directory" else "put_object"
    end = "/" if makes == "mkdir" else ""
    made = [Op("mkdir", ns, "lower/", lower), Op("mkdir", ns, "upper/", upper)]
    made += [Op(makes, pid, name + end, id) for pid, name, id in ((lower, "fro", ids[0]), (upper, "to", ids[1]))]
    assert [verbs.call_one(connection, ns, op, Key(uuid.uuid4())).code for op in made] == [None] * 4
    epoch = connection.execute(EPOCH).fetchone()[0]
    places = ((lower, "fro", ids[0], upper), (upper, "to", ids[1], lower))
    return ns, lower, upper, [
        Op(verb, pid, name + end, id, dst_pid=dst_pid, dst_name=name + end, epoch=epoch)
        for pid, name, id, dst_pid in places
    ]  # fmt: skip


@pytest.mark.parametrize("verb", ["rename_object", "rename_directory"])
def test_two_renames_do_not_wait_for_each_other(make_target, verb):
    target = make_target(f"fro_{verb}")
    with target.connect() as watcher, target.connect() as holder, target.connect() as fro, target.connect() as to:
        for session in (watcher, fro, to):
            session.execute("SET mantle.delta_records = 'never'")
        ns, lower, upper, renames = fill(watcher, verb)
        answers: list[Answer] = []

        def rename(session: psycopg.Connection, op: Op) -> None:
            answers.append(verbs.call_one(session, ns, op, Key(uuid.uuid4())))

        threads = []
        holder.execute("BEGIN")
        assert len(holder.execute(HOLD, (lower,)).fetchall()) == 1
        # Both reach that directory's counts. If one held the other directory's counts meanwhile, the two would
        # deadlock.
        for session, op in zip((fro, to), renames, strict=True):
            threads.append(threading.Thread(target=rename, args=(session, op)))
            threads[-1].start()
            pids = [fro.info.backend_pid, to.info.backend_pid]
            wait_until(
                lambda: watcher.execute(WAITING, (pids,)).fetchone() == (len(threads),),
                "a rename to wait",
                WAIT_BOUND_S,
            )
        holder.execute("COMMIT")
        for thread in threads:
            thread.join()
        assert [answer.code for answer in answers] == [None, None]
        assert watcher.execute("SELECT entries FROM mantle.dirstat(%s, %s)", (ns, [lower, upper])).fetchall() == [
            (1,),
            (1,),
        ]
        assert watcher.execute("SELECT * FROM mantle.check()").fetchall() == []
