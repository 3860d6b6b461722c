"""`mantle members` under load: leadership is transferred, and a replica loses its vote and regains it."""

import pytest

from stack.layout import REPLICAS

from .inspection import command_line, leader
from .mkdir_load import MkdirLoad

pytestmark = pytest.mark.faults


def members(stack, *arguments: str) -> tuple[int, dict[str, str], str]:
    """Exit code, each member's role by its address, and the error output."""
    done = command_line(stack, "members", *arguments)
    rows = [line.split() for line in done.stdout.splitlines()[1:]]
    return done.returncode, {row[0]: row[2] for row in rows}, done.stderr


def test_members_by_the_command_line(stack, bucket, rest):
    addresses = dict(zip(REPLICAS, stack.layout.index_addresses, strict=True))
    with MkdirLoad(rest, bucket) as load:
        load.await_progress(20)
        first = leader(stack)
        second = next(number for number in REPLICAS if number != first)
        code, roles, error = members(stack, "lead", addresses[second])
        assert (code, error) == (0, "")
        assert roles == {address: "leader" if number == second else "voter" for number, address in addresses.items()}
        load.await_progress(20)
        code, roles, _ = members(stack, "demote", addresses[first])
        assert (code, roles[addresses[first]]) == (0, "learner")
        load.await_progress(20)
        assert members(stack)[1] == roles
        code, roles, _ = members(stack, "promote", addresses[first])
        assert (code, roles[addresses[first]]) == (0, "voter")
        code, _, error = members(stack, "remove", addresses[second])
        assert code == 2 and "let another replica lead first" in error
        code, _, error = members(stack, "promote", "127.0.0.1:1")
        assert code == 2 and "no member" in error
    assert all(rest.exists(bucket, path + "/") for path in load.acknowledged)
