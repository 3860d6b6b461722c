"""The dashboard and the alert rules use only metrics and labels that running services show from their start. `mantle
status` shows each replica's role and positions.
"""

import re

import pytest

from stack import http
from stack.layout import REPLICAS
from stack.poll import wait_until
from tests.support import monitoring

from .inspection import command_line


def pages(stack) -> monitoring.Shown:
    return monitoring.shown(
        {
            "mantle-gateway": [f"{stack.gateway.probe}/metrics"],
            "mantle-index": [f"{stack.indexnodes[replica].probe}/metrics" for replica in REPLICAS],
        }
    )


def test_every_metric_and_label_exists_from_the_start(stack):
    """Also of a new gateway without a request: an alert on growth does not see a series that begins late."""
    stack.gateway.process.stop()
    stack.gateway.start()
    stack.gateway.await_ready()
    there = pages(stack)
    without = monitoring.OF_CERTIFICATES + monitoring.OF_VOLUMES
    named = [monitoring.missing(there, expression, without) for expression in monitoring.expressions()]
    problems = [problem for missing in named for problem in missing]
    assert problems == []
    assert sum(len(has) for has in there.values()) > 100
    # Where there is no volume, a 0 in `mantle_gateway_volume_mounted` would raise an alert for ever.
    of_gateway = there[f"mantle-gateway {stack.gateway.probe}/metrics"]
    assert [name for name in of_gateway if name.startswith(monitoring.OF_VOLUMES)] == []


LOOKUPS = 30
BOUND_S = 30


def of_replicas(stack, name: str, labels: str) -> list[float]:
    """A metric of each replica."""
    pages = [http.metrics(f"{stack.indexnodes[replica].probe}/metrics") for replica in REPLICAS]
    return [page.get(f"{name}{{{labels}}}", 0.0) for page in pages]


def test_lookups_are_counted_with_their_read_indexes(stack, bucket, rest):
    names = [f"mantle_index_read_index_{what}_total" for what in ("batches", "requests")]

    def counted() -> list[float]:
        return [sum(of_replicas(stack, name, 'group="1"')) for name in names]

    rest.mkdir(bucket, "a")
    before = counted()
    for _ in range(LOOKUPS):  # one by one, so that each is a batch
        assert rest.exists(bucket, "a/")
    (batches, requests), (batches_before, requests_before) = counted(), before
    assert requests - requests_before >= LOOKUPS
    assert LOOKUPS <= batches - batches_before <= requests - requests_before


def test_each_replica_has_one_role(stack):
    def told() -> list[str]:
        roles = {
            role: of_replicas(stack, "mantle_index_role", f'group="1",role="{role}"')
            for role in ("leader", "follower", "learner", "candidate")
        }
        assert all(sum(values) == 1 for values in zip(*roles.values(), strict=True)), roles
        return sorted(role for role, values in roles.items() for value in values if value)

    wait_until(lambda: told() == ["follower", "follower", "leader"], "one leader and two followers", BOUND_S)


def rows(text: str) -> list[dict[str, str]]:
    """A table of the command line."""
    lines = text.splitlines()
    headings = re.findall(r"\S+(?: \S+)*", lines[0])
    at = [lines[0].index(f"{heading}  " if heading != headings[-1] else heading) for heading in headings]
    spans = list(zip(headings, at, [*at[1:], None], strict=True))
    return [{heading: line[start:end].strip() for heading, start, end in spans} for line in lines[1:]]


def test_status_tells_what_each_replica_does(stack, bucket, rest):
    deep = "a/b/c/d/e/f"  # deeper than the cache
    rest.mkdir(bucket, deep, parents=True)
    for _ in range(LOOKUPS):
        assert rest.exists(bucket, f"{deep}/")
    done = command_line(stack, "status", "--group", "1", "--seconds", "0.1")
    assert done.returncode == 0, done.stderr
    state, load = (rows(table) for table in done.stdout.split("\n\n"))
    assert [row["replica"] for row in load] == [row["replica"] for row in state] == list(stack.layout.index_addresses)
    roles = {row["replica"]: row["role"] for row in state}
    for row in load:
        assert re.fullmatch(r"[\d,]+", row["lookups/s"]) and row["waiters"] == "0", row
        leads = roles[row["replica"]] == "leader"
        # Only a leader reads the nodes' streams. Without Citus there is one node, number 0.
        assert re.fullmatch(r"0: [\d.]+ \w+" if leads else "-", row["lag by node"]), row
    asked = [row for row in load if row["read indexes"] != "0"]
    assert asked and all(float(row["lookups each"]) >= 1 for row in asked)
    assert any(re.fullmatch(r"[\d.]+ %", row["cache hits"]) and row["cache hits"] != "0.0 %" for row in load)
    unmeasured = rows(command_line(stack, "status", "--seconds", "0").stdout.split("\n\n")[1])
    assert {row["lookups/s"] for row in unmeasured} == {"-"}


WORKER_BOUND_S = 60


@pytest.mark.allows("postgresql", "broken|background worker .* exited with exit code 1")
@pytest.mark.allows("gateway", "the background worker does not work")
def test_a_worker_that_keeps_failing_is_measured(stack, superuser):
    """The gateway asks every ten seconds."""
    (whole,) = superuser.execute("SELECT pg_get_functiondef('mantle.maintain_pruning()'::regprocedure)").fetchone()

    def problems() -> float:
        superuser.execute("SELECT pg_reload_conf()")  # then a worker that has ended is started at once
        return http.metrics(f"{stack.gateway.probe}/metrics")['mantle_gateway_worker_problems{source="0"}']

    assert problems() == 0
    try:
        superuser.execute(
            "CREATE OR REPLACE FUNCTION mantle.maintain_pruning() RETURNS bigint LANGUAGE plpgsql"
            " AS $$ BEGIN RAISE EXCEPTION 'broken' USING ERRCODE = '22012'; END $$"
        )
        wait_until(lambda: problems() == 1, "the gateway to tell of it", WORKER_BOUND_S)
    finally:
        superuser.execute(whole)
    wait_until(lambda: problems() == 0, "the worker to be well", WORKER_BOUND_S)
