"""`mantle fsck` prints nothing for a sound index, even while it changes, and names every difference."""

import pytest

from stack.layout import REPLICAS

from .inspection import command_line
from .mkdir_load import MkdirLoad


def fsck(stack, *arguments: str) -> tuple[int, list[str]]:
    """Exit code and lines, as the role of the documented URL."""
    done = command_line(stack, "fsck", *arguments, DATABASE_URL=stack.postgresql.url("operator"))
    assert done.stderr == ""
    return done.returncode, done.stdout.splitlines()


def test_a_sound_index_is_found_sound_while_it_changes(stack, bucket, rest):
    with MkdirLoad(rest, bucket) as load:
        load.await_progress(20)
        code, lines = fsck(stack)
    assert code == 0, lines
    assert lines[0] == "TafDB: sound"
    assert len(lines) == 1 + len(stack.groups) * len(REPLICAS)
    assert all(line.endswith("no difference") for line in lines[1:])
    # The namespace may be in either group.
    assert sum(not line.endswith(": 0 comparisons, no difference") for line in lines[1:]) >= len(REPLICAS)


def test_what_differs_is_named_on_every_replica(stack, bucket, rest, superuser):
    id = rest.mkdir(bucket, "told").body["id"]
    # As if its message had been lost.
    superuser.execute("UPDATE mantle.meta SET mode = mode # 1 WHERE id = %s AND explicit IS NOT NULL", (id,))
    try:
        code, lines = fsck(stack, "--index-only")
    finally:
        superuser.execute("UPDATE mantle.meta SET mode = mode # 1 WHERE id = %s AND explicit IS NOT NULL", (id,))
    assert code == 1
    assert [line for line in lines if f"{id}: PostgreSQL" in line and '"told"' in line and "version 1" in line] != [], (
        lines
    )
    assert sum(line.endswith("1 directories differ") for line in lines) == len(REPLICAS)
    assert fsck(stack, "--index-only")[0] == 0


@pytest.mark.faults
def test_a_replica_that_does_not_answer_is_no_pass(stack, bucket, rest):
    rest.mkdir(bucket, "any")
    replica = stack.indexnodes[REPLICAS[-1]]
    replica.process.stop()
    try:
        code, lines = fsck(stack, "--index-only")
    finally:
        replica.process.start()
        replica.await_ready()
    assert code == 4
    silent = [line.split()[2].rstrip(":") for line in lines if "comparisons" not in line]
    assert silent == [stack.layout.index_addresses[-1]] * len(stack.groups)
