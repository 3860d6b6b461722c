"""Nothing acknowledged is lost, whatever is killed or wiped: replicas, all of them, PostgreSQL, everything."""

import shutil
import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest

from mkdir_load import MkdirLoad
from moves import READY_BOUND_S, frozen, leader
from rest import Rest
from stack import secret
from stack.gateway import Gateway
from stack.layout import REPLICAS, Layout
from stack.poll import wait_until

pytestmark = pytest.mark.faults

PRIVATE_GATEWAY_OFFSET = 40


class OneReplicaGateway(Gateway):
    """A gateway that asks a single replica: what it answers is what that replica knows."""

    def __init__(self, stack, replica: int):
        layout = stack.layout
        super().__init__(Layout(layout.folder, layout.port_base), stack.account)
        port = layout.port_base + PRIVATE_GATEWAY_OFFSET + replica
        name = f"gateway-of-{replica}"
        self.port = port
        self.url = f"http://127.0.0.1:{port}"
        self.config = layout.config / f"{name}.toml"
        self.process.name = name
        self.process.pid_file = layout.pids / name
        self.process.log_file = layout.logs / f"{name}.log"
        self.process.command = [self.process.command[0], "--config", str(self.config)]
        ordinary = (layout.config / "gateway.toml").read_text(encoding="utf-8")
        every = ", ".join(f'"{address}"' for address in layout.index_addresses)
        text = ordinary.replace(f"127.0.0.1:{layout.gateway_port}", f"127.0.0.1:{port}", 1)
        text = text.replace(every, f'"127.0.0.1:{layout.grpc_port(replica)}"')
        assert text != ordinary
        self.config.write_text(text, encoding="utf-8")
        stack.account.own(self.config)


@contextmanager
def only_replica(stack, replica: int) -> Iterator[Rest]:
    """The native API, answered by one replica."""
    gateway = OneReplicaGateway(stack, replica)
    gateway.start()
    try:
        gateway.await_ready()
        yield Rest("127.0.0.1", gateway.port, secret.read(stack.layout, "token"))
    finally:
        gateway.process.stop()


def assert_everywhere(stack, ns: str, paths: list[str]) -> None:
    """Every replica, and PostgreSQL, know every path."""
    wanted = {path.removeprefix("load/") + "/" for path in paths}
    for replica in REPLICAS:
        with only_replica(stack, replica) as rest:
            missing = [path for path in paths if not rest.exists(ns, path + "/")]
            assert missing == [], f"replica {replica} lacks {len(missing)} of {len(paths)}"
            assert wanted <= set(rest.list(ns, "load/"))


def await_all_ready(stack) -> None:
    for node in stack.indexnodes.values():
        node.await_ready(READY_BOUND_S)
    stack.gateway.await_ready(READY_BOUND_S)


@pytest.fixture
def whole(stack) -> Iterator[Callable[[], None]]:
    """Whatever a test breaks runs again for the next one."""
    yield
    with stack.alone():
        stack.start()
    await_all_ready(stack)


@pytest.mark.usefixtures("whole")
def test_kill_9_of_every_replica_under_load(stack, bucket, rest):
    with MkdirLoad(rest, bucket) as load:
        load.await_progress(50)
        # The leader first, then the two others, whoever leads by then.
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
    # It came back under a new id, as a member that counts: the group survives the loss of another replica.
    other = next(number for number in REPLICAS if number != replica)
    stack.indexnodes[other].process.kill()
    rest.mkdir(bucket, "after")


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


def unread_bytes(port: int) -> int:
    """What has arrived on a port's connections, and nobody has read."""
    found = subprocess.run(["ss", "-Htn", f"sport = :{port}"], capture_output=True, text=True, check=True)
    return sum(int(line.split()[1]) for line in found.stdout.splitlines())


@pytest.mark.usefixtures("whole")
def test_a_change_that_was_held_back_for_longer_than_a_tombstone_is_kept(stack, bucket, rest, superuser):
    """The gateway has resolved the parent and sent the change; before it arrives, the parent is removed and forgotten."""
    rest.mkdir(bucket, "parent")
    ns, parent = superuser.execute(
        "SELECT m.ns, m.id FROM mantle.meta m JOIN mantle.namespaces n USING (ns) WHERE n.name = %s AND m.name = 'parent/'", (bucket,)
    ).fetchone()
    with ThreadPoolExecutor(1) as pool:
        with frozen(stack.pgbouncer.process.pid()):
            late = pool.submit(rest.twin().call, "PUT", f"/v1/ns/{bucket}/dirs/parent/late")
            wait_until(lambda: unread_bytes(stack.layout.pgbouncer_port) > 0, "the change on its way", READY_BOUND_S)
            lease = superuser.execute("SELECT mantle.lease(%s)", (ns,)).fetchone()[0]
            removed = superuser.execute(
                "SELECT code FROM mantle.rmdir('{0}', ARRAY[%s], ARRAY[%s], '{parent/}', ARRAY[%s], ARRAY[gen_random_uuid()], '{0}')",
                (ns, ns, parent),
            ).fetchone()
            assert removed == (None,)
            superuser.execute("DELETE FROM mantle.meta WHERE pid = %s AND removed", (parent,))
            over = "SELECT clock_timestamp() > to_timestamp(split_part(%s, '/', 1)::bigint / 1000000.0)"
            wait_until(lambda: superuser.execute(over, (lease,)).fetchone()[0], "the end of its lease", READY_BOUND_S)
        answer = late.result()
    # The oracle looks for an entry without its directory after each test.
    assert (answer.status, answer.code) == (404, "not_found")
