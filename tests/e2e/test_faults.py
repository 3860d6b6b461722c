"""Nothing acknowledged is lost when services are killed or wiped: one replica, all of them, PostgreSQL, everything."""

import shutil
import socket
import subprocess
import uuid
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest

from stack.layout import REPLICAS
from stack.poll import wait_until
from tests.support.rest import Rest
from tests.support.slots import drop_slot

from .background import Repeated
from .clients import await_all_ready, connect_as
from .inspection import READY_BOUND_S, frozen, leader
from .mkdir_load import MkdirLoad
from .one_replica import only_replica

pytestmark = pytest.mark.faults
GONE = 6


def assert_everywhere(stack, ns: str, paths: list[str]) -> None:
    """Every replica, and PostgreSQL, know every path."""
    wanted = {path.removeprefix("load/") + "/" for path in paths}
    for replica in REPLICAS:
        with only_replica(stack, replica) as rest:
            missing = [path for path in paths if not rest.exists(ns, path + "/")]
            assert missing == [], f"replica {replica} lacks {len(missing)} of {len(paths)}"
            assert wanted <= set(rest.list(ns, "load/"))


@pytest.mark.usefixtures("whole")
def test_kill_9_of_every_replica_under_load(stack, bucket, rest):
    with MkdirLoad(rest, bucket) as load:
        load.await_progress(50)
        # The leader first, then the two others.
        first = leader(stack)
        for replica in [first, *(number for number in REPLICAS if number != first)]:
            stack.indexnodes[replica].process.kill()
            load.await_progress(50)  # two of three go on
            stack.indexnodes[replica].start()
            stack.indexnodes[replica].await_ready(READY_BOUND_S)
            load.await_progress(20)
    assert_everywhere(stack, bucket, load.acknowledged)


@pytest.mark.usefixtures("whole")
def test_the_leader_again_and_again(stack, bucket, rest):
    with MkdirLoad(rest, bucket) as load:
        for _ in range(4):
            load.await_progress(20)
            killed = stack.indexnodes[leader(stack)]
            killed.process.kill()
            load.await_progress(20)
            killed.start()
            killed.await_ready(READY_BOUND_S)
    assert_everywhere(stack, bucket, load.acknowledged)


@pytest.mark.usefixtures("whole")
@pytest.mark.parametrize("which", ["leader", "follower"])
def test_a_wiped_replica(stack, bucket, rest, which):
    with MkdirLoad(rest, bucket) as load:
        load.await_progress(50)
        first = leader(stack)
        replica = first if which == "leader" else next(number for number in REPLICAS if number != first)
        node = stack.indexnodes[replica]
        node.process.kill()
        shutil.rmtree(node.data)
        load.await_progress(20)
        node.prepare()
        node.start()
        node.await_ready(READY_BOUND_S)
        load.await_progress(20)
    assert_everywhere(stack, bucket, load.acknowledged)
    # It came back under a new id, as a full member: the group survives the loss of another replica.
    other = next(number for number in REPLICAS if number != replica)
    stack.indexnodes[other].process.kill()
    rest.mkdir(bucket, "after")


@pytest.mark.usefixtures("whole")
@pytest.mark.allows("indexnode", r"folder went back")
def test_a_folder_that_goes_back(stack, bucket, rest):
    """An operator puts back a copy of a follower's folder. The replica notices, and joins under a new id (P48)."""
    with MkdirLoad(rest, bucket) as load:
        load.await_progress(50)
        first = leader(stack)
        replica = next(number for number in REPLICAS if number != first)
        node = stack.indexnodes[replica]
        copy = node.data.with_name(f"{node.data.name}.copy")
        subprocess.run(["cp", "-a", str(node.data), str(copy)], capture_output=True, check=False)  # while it changes
        load.await_progress(100)
        node.process.kill()
        shutil.rmtree(node.data)
        copy.rename(node.data)
        node.start()
        wait_until(lambda: node.metric("mantle_index_joins_anew_total"), "it to join anew", READY_BOUND_S)
        node.await_ready(READY_BOUND_S)
        load.await_progress(20)
    # Until it is a voter again.
    wait_until(lambda: node.metric("mantle_index_log_lost") == 0, "its fault to be over", READY_BOUND_S)
    assert_everywhere(stack, bucket, load.acknowledged)


@pytest.mark.usefixtures("whole")
@pytest.mark.allows("indexnode", r"terminating connection due to administrator command|rebuilding the index")
@pytest.mark.allows("postgresql", r"replication slot .* is active|PID \d+ is not a PostgreSQL backend")
def test_a_rebuild_answers_those_who_wait(stack, bucket, rest):
    """A rebuilt index may have a change in its copy, whose message then never comes: nobody waits for that in vain."""
    codes: list[str | None] = []

    def mkdir(client: Rest, number: int, count: int) -> None:
        codes.append(client.call("PUT", f"/v1/ns/{bucket}/dirs/{number}-{count}", key=str(uuid.uuid4())).code)

    def rebuilds() -> float:
        return sum(node.metric("mantle_index_rebuilds_completed_total") or 0 for node in stack.indexnodes.values())

    with Repeated([partial(mkdir, rest.twin(), number) for number in range(4)]) as load:
        load.await_more(codes.__len__, 50, "answers", READY_BOUND_S)
        before = rebuilds()
        with connect_as(stack, "postgres", "superuser") as session:
            wait_until(lambda: drop_slot(session), "the slot to be dropped", READY_BOUND_S)
        wait_until(lambda: rebuilds() > before, "the index to be rebuilt", READY_BOUND_S)
        load.await_more(lambda: codes.count(None), 50, "directories", READY_BOUND_S)
    assert "await_timeout" not in codes


@pytest.mark.usefixtures("whole")
def test_all_replicas_wiped(stack, bucket, rest):
    with MkdirLoad(rest, bucket) as load:
        load.await_progress(50)
        rest.twin().rename(bucket, "load/0-0/", "moved/")
        for node in stack.indexnodes.values():
            node.process.kill()
            shutil.rmtree(node.data)
        for node in stack.indexnodes.values():
            node.prepare()
            node.start()
        await_all_ready(stack)
        load.await_progress(20)
    assert_everywhere(stack, bucket, [path for path in load.acknowledged if path != "load/0-0"])
    assert rest.exists(bucket, "moved/") and not rest.exists(bucket, "load/0-0/")


@pytest.mark.usefixtures("whole")
def test_everything_restarted(stack, bucket, rest, s3):
    s3.put_object(Bucket=bucket, Key="deep/down/object", Body=b"kept")
    with MkdirLoad(rest, bucket) as load:
        load.await_progress(50)
    stack.stop()
    with stack.alone():
        stack.start()
    await_all_ready(stack)
    assert_everywhere(stack, bucket, load.acknowledged)
    assert s3.get_object(Bucket=bucket, Key="deep/down/object")["Body"].read() == b"kept"


@pytest.mark.usefixtures("whole")
def test_everything_killed(stack, bucket, rest):
    with MkdirLoad(rest, bucket) as load:
        load.await_progress(50)
        for process in reversed(stack.processes()):
            process.kill()
        with stack.alone():
            stack.start()
        load.await_progress(20)
    assert_everywhere(stack, bucket, load.acknowledged)


@pytest.mark.usefixtures("whole")
def test_kill_9_of_postgresql_under_load(stack, bucket, rest):
    with MkdirLoad(rest, bucket) as load:
        for _ in range(2):
            load.await_progress(50)
            stack.postgresql.process.kill()
            stack.postgresql.start()
            load.await_progress(20)
    assert_everywhere(stack, bucket, load.acknowledged)


@pytest.mark.usefixtures("whole")
def test_kill_9_of_the_gateway_and_of_pgbouncer_under_load(stack, bucket, rest):
    with MkdirLoad(rest, bucket) as load:
        for service in (stack.gateway, stack.pgbouncer):
            load.await_progress(50)
            service.process.kill()
            service.start()
            load.await_progress(20)
    assert_everywhere(stack, bucket, load.acknowledged)


@pytest.mark.usefixtures("whole")
def test_a_rename_survives_the_loss_of_its_leader(stack, bucket, rest):
    rest.mkdir(bucket, "a/b/c", parents=True)
    for turn in range(3):
        src, dst = ("a/", "z/") if turn % 2 == 0 else ("z/", "a/")
        stack.indexnodes[leader(stack)].process.kill()
        rest.rename(bucket, src, dst)
        assert rest.exists(bucket, f"{dst}b/c/") and not rest.exists(bucket, src)
        with stack.alone():
            stack.start()
        await_all_ready(stack)


def unread(port: int) -> list[int]:
    """Bytes that arrived on a port's connections and were not read, for each connection that has any."""
    found = subprocess.run(["ss", "-Htn", f"sport = :{port}"], capture_output=True, text=True, check=True)
    return [int(line.split()[1]) for line in found.stdout.splitlines() if int(line.split()[1]) > 0]


@pytest.mark.usefixtures("whole")
def test_a_request_whose_client_has_gone_changes_nothing_any_more(stack, bucket, rest):
    """The request waits before its change is sent. Meanwhile its client may have received another answer."""
    departed = lambda: stack.gateway.metrics().get("mantle_gateway_departed_total", 0)
    before = departed()
    clients = [socket.create_connection(("127.0.0.1", stack.layout.gateway_port)) for _ in range(GONE)]
    with frozen(stack.pgbouncer.process.pid()):
        for number, client in enumerate(clients):
            # With a key, the gateway first looks for a recorded answer, and that lookup waits.
            head = f"PUT /v1/ns/{bucket}/dirs/gone{number} HTTP/1.1\r\nHost: 127.0.0.1\r\n"
            head += f"Authorization: Bearer {rest.token}\r\n"
            client.sendall(f"{head}Idempotency-Key: {uuid.uuid4()}\r\nContent-Length: 0\r\n\r\n".encode())
        wait_until(
            lambda: len(unread(stack.layout.pgbouncer_port)) >= GONE, "the requests to stand still", READY_BOUND_S
        )
        for client in clients:
            client.close()
    # The gateway reads its epoch over one or two of those connections.
    wait_until(lambda: departed() >= before + GONE - 2, "the requests to go on", READY_BOUND_S)
    assert rest.list(bucket, "") == []


@pytest.mark.usefixtures("whole")
def test_a_change_that_was_held_back_for_longer_than_a_tombstone_is_kept(stack, bucket, rest, superuser):
    """The gateway has resolved the parent and sent the change. Before it arrives, the parent is removed and its
    tombstone is pruned.
    """
    rest.mkdir(bucket, "parent")
    ns, parent = superuser.execute(
        "SELECT m.ns, m.id FROM mantle.meta m JOIN mantle.namespaces n USING (ns)"
        " WHERE n.name = %s AND m.name = 'parent/'",
        (bucket,),
    ).fetchone()
    with ThreadPoolExecutor(1) as pool, frozen(stack.pgbouncer.process.pid()):
        late = pool.submit(rest.twin().call, "PUT", f"/v1/ns/{bucket}/dirs/parent/late")
        wait_until(lambda: unread(stack.layout.pgbouncer_port) != [], "the change on its way", READY_BOUND_S)
        lease = superuser.execute("SELECT mantle.lease(%s)", (ns,)).fetchone()[0]
        removed = superuser.execute(
            "SELECT code FROM mantle.rmdir"
            "('{0}', ARRAY[%s], ARRAY[%s], '{parent/}', ARRAY[%s], ARRAY[gen_random_uuid()], '{0}')",
            (ns, ns, parent),
        ).fetchone()
        assert removed == (None,)
        superuser.execute("DELETE FROM mantle.meta WHERE pid = %s AND removed", (parent,))
        over = "SELECT clock_timestamp() > to_timestamp(split_part(%s, '/', 1)::bigint / 1000000.0)"
        wait_until(lambda: superuser.execute(over, (lease,)).fetchone()[0], "the end of its lease", READY_BOUND_S)
        # By then the gateway does not wait for it any more.
        answer = late.result()
    assert (answer.status, answer.code) == (503, "unknown_outcome")
    # After each test `mantle.check()` looks for an entry without its directory.
    again = rest.call("PUT", f"/v1/ns/{bucket}/dirs/parent/late", key=answer.body["request_id"])
    assert (again.status, again.code) == (404, "not_found")
