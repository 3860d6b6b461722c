"""The index says that a path is missing, without a statement. While it lags, lookups of missing paths go to
PostgreSQL: a storm of them shares few statements and leaves connections to other calls.

The storm's statements, which walk down its bucket's paths, are held in the database until other calls have succeeded.
"""

import concurrent.futures
import contextlib
import itertools

import pytest

from stack.poll import wait_until
from tests.support.sql_wrappers import wrapped

from .inspection import behind, frozen

CALLS = 96
MISSING = 48
SERVED = 40
BOUND_S = 30
# The gateway's bound, fewer than its connections (store/paths.rs).
IN_FLIGHT_MAX = 4
HELD = 4711
BLOCKED = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted AND objid = %s"


class Walks:
    """Waiting statements that walk down a bucket's paths."""

    def __init__(self, superuser):
        self.superuser = superuser
        superuser.execute("SELECT pg_advisory_lock(%s)", (HELD,))

    def blocked(self) -> int:
        return self.superuser.execute(BLOCKED, (HELD,)).fetchone()[0]

    def release(self) -> None:
        self.superuser.execute("SELECT pg_advisory_unlock_all()")


@pytest.fixture
def held_walks(bucket, superuser):
    """The statements wait until they are released; they must end before the block does."""

    @contextlib.contextmanager
    def hold():
        before = f"IF p_ns_name = '{bucket}' THEN PERFORM pg_advisory_xact_lock_shared({HELD}); END IF;"
        with wrapped(superuser, "walk_down", "test_misses", before=before):
            walks = Walks(superuser)
            try:
                yield walks
            finally:
                walks.release()

    return hold


def sample(stack, name: str) -> float:
    return stack.gateway.metrics().get(f'mantle_gateway_{name}{{statement="resolve_paths"}}', 0)


def statements(stack, *names: str) -> float:
    """How often the gateway has sent these statements."""
    metrics = stack.gateway.metrics()
    return sum(metrics.get(f'mantle_gateway_sql_seconds_count{{statement="{name}"}}', 0) for name in names)


def test_a_miss_is_answered_while_postgresql_is_away(stack, bucket, rest):
    rest.mkdir(bucket, "there")
    assert rest.call("GET", f"/v1/ns/{bucket}/entries/there/").status == 200
    with concurrent.futures.ThreadPoolExecutor(CALLS) as pool:
        with frozen(stack.pgbouncer.process.pid()):
            paths = [f"/v1/ns/{bucket}/entries/there/no{n}/" for n in range(CALLS)]
            calls = [pool.submit(rest.twin().call, "GET", path) for path in paths]
            # Not all of them: the index lags if the machine has much else to do.
            wait_until(lambda: sum(call.done() for call in calls) >= SERVED, "misses without PostgreSQL", BOUND_S)
        answers = [call.result(BOUND_S) for call in calls]
    assert {(answer.status, answer.code) for answer in answers} == {(404, "not_found")}


def test_a_miss_makes_no_statement(stack, bucket, rest):
    rest.mkdir(bucket, "there")
    names = ("resolve_paths", "stat_local", "stat")

    def no_statement() -> bool:
        before = statements(stack, *names)
        for number in range(MISSING):
            assert rest.call("GET", f"/v1/ns/{bucket}/entries/there/no{number}/").code == "not_found"
        return statements(stack, *names) == before

    wait_until(no_statement, "misses without a statement", BOUND_S)


def test_a_put_makes_its_parents_without_a_walk(stack, bucket, s3):
    keys = (f"a{number}/b/c/object" for number in itertools.count())

    def no_walk() -> bool:
        before = statements(stack, "resolve_paths")
        s3.put_object(Bucket=bucket, Key=next(keys), Body=b"1")
        return statements(stack, "resolve_paths") == before

    wait_until(no_walk, "a put without a walk", BOUND_S)


def test_a_storm_of_misses_leaves_the_others_served(stack, bucket, rest, s3, superuser, held_walks):
    rest.mkdir(bucket, "there")
    s3.put_object(Bucket=bucket, Key="there/object", Body=b"1")
    with behind(superuser):
        # From here on there is something that the index does not have.
        s3.put_object(Bucket=bucket, Key="there/other", Body=b"1")
        storm(stack, bucket, rest, s3, held_walks)


def storm(stack, bucket, rest, s3, held_walks):
    statements, shared = sample(stack, "batch_elements_count"), sample(stack, "questions_shared_total")
    with concurrent.futures.ThreadPoolExecutor(CALLS) as pool, held_walks() as walks:
        misses = [
            pool.submit(rest.twin().call, "GET", f"/v1/ns/{bucket}/entries/no{n % MISSING}/object")
            for n in range(CALLS)
        ]
        wait_until(lambda: sample(stack, "batch_waiting") == CALLS - IN_FLIGHT_MAX, "the storm to gather", BOUND_S)
        for number in range(SERVED):
            assert rest.call("GET", f"/v1/ns/{bucket}/entries/there/object").status == 200
            s3.put_object(Bucket=bucket, Key=f"there/object{number}", Body=b"1")
            assert walks.blocked() == IN_FLIGHT_MAX
        assert not any(call.done() for call in misses)
        walks.release()
        answers = [call.result(BOUND_S) for call in misses]
    assert {(answer.status, answer.code) for answer in answers} == {(404, "not_found")}
    # The statements in flight had one lookup each. Of the other lookups, those for the same directory shared one
    # answer.
    assert sample(stack, "questions_shared_total") - shared >= CALLS - MISSING - IN_FLIGHT_MAX
    assert sample(stack, "batch_elements_count") - statements <= IN_FLIGHT_MAX + 2
    assert sample(stack, "batch_waiting") == 0


def test_an_object_in_the_path_is_distinguished_from_nothing(bucket, rest, s3):
    s3.put_object(Bucket=bucket, Key="a/file", Body=b"1")
    for path, status, code in (
        ("a/file/below", 409, "parent_is_object"),
        ("a/file/below/that", 409, "parent_is_object"),
        ("a/none/below", 404, "not_found"),
        ("none/below", 404, "not_found"),
    ):
        answer = rest.call("GET", f"/v1/ns/{bucket}/entries/{path}")
        assert (answer.status, answer.code) == (status, code), path
    assert rest.call("GET", f"/v1/ns/{bucket}/list/a/file/").code == "not_found"
    many = rest.call(
        "POST",
        f"/v1/ns/{bucket}/stat",
        {"paths": ["a/file/x", "a/file", "a/no/x", *(f"none{n}/x" for n in range(200))]},
    )
    assert many.status == 200
    told = [entry.get("error", {}).get("code") for entry in many.body["entries"]]
    assert told == ["parent_is_object", None, *["not_found"] * 201]
