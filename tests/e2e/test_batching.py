"""Waiting calls of one verb go to PostgreSQL together, and each gets the answer that it would get alone.

The tests make calls wait: a session holds names of the bucket, and calls on those names take all of the gateway's
places for the verb. Later calls gather until the session releases the names.
"""

import concurrent.futures
import contextlib
import uuid

import botocore.config
import botocore.exceptions
import pytest

from stack.poll import wait_until
from tests.support.rest import Refused

from .clients import s3_client

MEMBERS = 64
# Every eighth call must be refused.
BAD = range(0, MEMBERS, 8)
# The gateway's postgres.batches_in_flight_max, and names for that many calls and one more.
IN_FLIGHT_MAX = 4
HELD_MAX = 16
BOUND_S = 30
CLIENTS = 32
CHANGES = 20


class Load:
    """The gateway's calls of one verb, and the threads that make them."""

    def __init__(self, stack, watcher, pool, verb: str):
        self.gateway = stack.gateway
        self.watcher = watcher
        self.pool = pool
        self.verb = verb
        self.batches, self.elements = self.sample("elements_count"), self.sample("elements_sum")

    def sample(self, name: str) -> float:
        return self.gateway.metrics().get(f'mantle_gateway_batch_{name}{{statement="{self.verb}"}}', 0)

    def is_waiting(self, calls: int) -> bool:
        """Checks twice: a call also counts for the moment before it is sent."""
        return all(self.sample("waiting") >= calls for _ in range(2))

    def blocked(self) -> int:
        query = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE %s"
        return self.watcher.execute(query, (f"%mantle.{self.verb}(%",)).fetchone()[0]

    def fill(self, call) -> list[concurrent.futures.Future]:
        """Makes calls on held names, one by one, until the gateway has no place left and one has to wait."""
        futures = []
        for number in range(IN_FLIGHT_MAX):
            futures.append(self.pool.submit(call, f"held{number}"))
            wait_until(lambda: self.blocked() > number, "a call to be held", BOUND_S)
        futures.append(self.pool.submit(call, f"held{IN_FLIGHT_MAX}"))
        wait_until(lambda: self.is_waiting(1), "a call to wait", BOUND_S)
        return futures

    def assert_went_together(self, calls: int, filling: int) -> None:
        """One batch took all gathered calls, with the last of the calls that filled the places."""
        assert self.sample("elements_sum") - self.elements == calls
        assert self.sample("elements_count") - self.batches == filling
        assert self.sample("waiting") == 0


@pytest.fixture
def held(bucket, rest, connect):
    """Holds names of the bucket, as directory and as object, while the block runs, and rolls back."""
    ns = rest.stat(bucket, "")["id"]

    @contextlib.contextmanager
    def hold():
        with connect("gateway") as holder:
            # Committed before names are held: the gateway, too, may need a block of ids meanwhile.
            first = holder.execute("SELECT first_id FROM mantle.allocate_ids('test', %s)", (HELD_MAX,)).fetchone()[0]
            with holder.transaction(force_rollback=True):
                for number in range(HELD_MAX):
                    holder.execute(
                        "SELECT * FROM mantle.mkdir"
                        "('{5}', ARRAY[%s], ARRAY[%s], ARRAY[%s], ARRAY[%s], '{0}', '{0}', '{511}',"
                        " '{t}', ARRAY[NULL]::jsonb[], ARRAY[gen_random_uuid()], '{0}')",
                        (ns, ns, f"held{number}/", first + number),
                    )
                yield

    return hold


@pytest.fixture
def load_of(stack, connect):
    """Makes a Load of a verb."""
    with connect("gateway") as watcher, concurrent.futures.ThreadPoolExecutor(MEMBERS + HELD_MAX) as pool:
        yield lambda verb: Load(stack, watcher, pool, verb)


def refusal(future: concurrent.futures.Future) -> str | None:
    """The code that a call was refused with."""
    try:
        future.result(BOUND_S)
    except Refused as refused:
        return refused.code
    except botocore.exceptions.ClientError as refused:
        return refused.response["Error"]["Code"]
    return None


def test_mkdirs_go_together(bucket, rest, held, load_of):
    for number in BAD:
        rest.mkdir(bucket, f"d{number}")
    load = load_of("mkdir")
    with held():
        filling = load.fill(lambda name: rest.twin().mkdir(bucket, name))
        gathered = [load.pool.submit(rest.twin().mkdir, bucket, f"d{number}") for number in range(MEMBERS)]
        wait_until(lambda: load.is_waiting(MEMBERS + 1), "all calls to gather", BOUND_S)
    refusals = [refusal(future) for future in gathered]
    assert refusals == ["already_exists" if number in BAD else None for number in range(MEMBERS)]
    assert [refusal(future) for future in filling] == [None] * len(filling)
    load.assert_went_together(MEMBERS + len(filling), len(filling))
    ids = {future.result().body["id"] for number, future in enumerate(gathered) if number not in BAD}
    assert len(ids) == MEMBERS - len(BAD)
    there = [f"d{number}/" for number in range(MEMBERS)] + [f"held{number}/" for number in range(len(filling))]
    assert sorted(rest.list(bucket, "")) == sorted(there)


def test_puts_go_together(stack, bucket, rest, held, load_of):
    pool_of_its_own = botocore.config.Config(
        retries={"total_max_attempts": 1},
        s3={"addressing_style": "path"},
        max_pool_connections=MEMBERS + HELD_MAX,
        read_timeout=60,
    )
    s3 = s3_client(stack, config=pool_of_its_own)
    for number in BAD:
        s3.put_object(Bucket=bucket, Key=f"o{number}", Body=b"first")
    load = load_of("put_object")

    def put(number):
        return s3.put_object(Bucket=bucket, Key=f"o{number}", Body=str(number).encode(), IfNoneMatch="*")

    with held():
        filling = load.fill(lambda name: s3.put_object(Bucket=bucket, Key=name, Body=b"held"))
        gathered = [load.pool.submit(put, number) for number in range(MEMBERS)]
        wait_until(lambda: load.is_waiting(MEMBERS + 1), "all calls to gather", BOUND_S)
    refusals = [refusal(future) for future in gathered]
    assert refusals == ["PreconditionFailed" if number in BAD else None for number in range(MEMBERS)]
    assert [refusal(future) for future in filling] == [None] * len(filling)
    load.assert_went_together(MEMBERS + len(filling), len(filling))
    for number in range(MEMBERS):
        body = s3.get_object(Bucket=bucket, Key=f"o{number}")["Body"].read()
        assert body == (b"first" if number in BAD else str(number).encode())


def test_a_retry_that_overtakes_its_first_attempt_gets_the_same_answer(bucket, rest, held, load_of):
    """Both wait in one batch, where the second could meet the first's directory."""
    load = load_of("mkdir")
    key = str(uuid.uuid4())
    with held():
        filling = load.fill(lambda name: rest.twin().mkdir(bucket, name))
        attempts = [load.pool.submit(rest.twin().mkdir, bucket, "d", key=key) for _ in range(3)]
        wait_until(lambda: load.is_waiting(len(attempts) + 1), "all calls to gather", BOUND_S)
    assert [refusal(future) for future in filling + attempts] == [None] * len(filling + attempts)
    assert len({future.result().body["id"] for future in attempts}) == 1


def test_removals_at_once_with_nothing_held(bucket, rest, load_of):
    """Each gets its own answer, in any grouping."""
    for number in range(MEMBERS):
        if number not in BAD:
            rest.mkdir(bucket, f"d{number}")
    load = load_of("rmdir")
    removed = [load.pool.submit(rest.twin().rmdir, bucket, f"d{number}") for number in range(MEMBERS)]
    assert [refusal(future) for future in removed] == [
        "not_found" if number in BAD else None for number in range(MEMBERS)
    ]
    assert load.sample("elements_sum") - load.elements >= MEMBERS - len(BAD)
    assert rest.list(bucket, "") == []


def test_renames_go_together(bucket, rest, s3, load_of):
    """Each gets its own answer; the index does not know of the objects that are in the way of some."""
    for number in range(MEMBERS):
        rest.mkdir(bucket, f"d{number}")
    for number in BAD:
        s3.put_object(Bucket=bucket, Key=f"r{number}", Body=b"")
    load = load_of("rename_directories")
    renamed = [load.pool.submit(rest.twin().rename, bucket, f"d{number}/", f"r{number}/") for number in range(MEMBERS)]
    assert [refusal(future) for future in renamed] == [
        "is_object" if number in BAD else None for number in range(MEMBERS)
    ]
    assert load.sample("elements_sum") - load.elements >= MEMBERS
    assert load.sample("elements_count") - load.batches < MEMBERS, "none shared a statement"
    there = [f"{'d' if number in BAD else 'r'}{number}/" for number in range(MEMBERS)]
    assert sorted(rest.list(bucket, "")) == sorted(there + [f"r{number}" for number in BAD])
    # What was refused is not locked any more.
    for number in BAD:
        rest.rename(bucket, f"d{number}/", f"s{number}/")


def test_stats_go_together(bucket, rest, superuser, load_of):
    """Waiting stats share a statement, and each gets its own answer. The lock holds those that are sent."""
    ids = {f"d{number}": rest.mkdir(bucket, f"d{number}").body["id"] for number in range(MEMBERS) if number not in BAD}
    load = load_of("stat_local")
    with superuser.transaction():
        superuser.execute("LOCK TABLE mantle.meta IN ACCESS EXCLUSIVE MODE")
        filling = load.fill(lambda name: rest.twin().stat(bucket, name))
        gathered = [load.pool.submit(rest.twin().stat, bucket, f"d{number}") for number in range(MEMBERS)]
        wait_until(lambda: load.is_waiting(MEMBERS + 1), "all stats to gather", BOUND_S)
    assert [refusal(future) for future in gathered] == [
        "not_found" if number in BAD else None for number in range(MEMBERS)
    ]
    assert [refusal(future) for future in filling] == ["not_found"] * len(filling)
    load.assert_went_together(MEMBERS + len(filling), len(filling))
    found = {
        future.result()["name"]: future.result()["id"] for number, future in enumerate(gathered) if number not in BAD
    }
    assert {name.rstrip("/"): id for name, id in found.items()} == ids


def test_pages_go_together(bucket, rest, superuser, load_of):
    """As stats do, and each directory's client gets its entries."""
    for number in range(MEMBERS):
        rest.mkdir(bucket, f"d{number}")
        rest.mkdir(bucket, f"d{number}/in{number}")
    for number in range(HELD_MAX):
        rest.mkdir(bucket, f"held{number}")
    load = load_of("list_local")

    def page(name: str) -> list[str]:
        return [entry["name"] for entry in rest.twin().list_page(bucket, f"{name}/", limit=1)["entries"]]

    with superuser.transaction():
        superuser.execute("LOCK TABLE mantle.meta IN ACCESS EXCLUSIVE MODE")
        filling = load.fill(page)
        gathered = [load.pool.submit(page, f"d{number}") for number in range(MEMBERS)]
        wait_until(lambda: load.is_waiting(MEMBERS + 1), "all pages to gather", BOUND_S)
    assert [future.result(BOUND_S) for future in gathered] == [[f"in{number}"] for number in range(MEMBERS)]
    assert [future.result(BOUND_S) for future in filling] == [[]] * len(filling)
    load.assert_went_together(MEMBERS + len(filling), len(filling))


def test_a_page_shows_what_was_acknowledged(bucket, rest, load_of):
    """Each client lists what it has just made, beside the pages of others (P40)."""
    load = load_of("list_local")

    def client(number: int) -> None:
        own, made = rest.twin(), []
        own.mkdir(bucket, f"d{number}")
        for change in range(CHANGES):
            made.append(f"n{change:02}")
            own.mkdir(bucket, f"d{number}/{made[-1]}")
            listed = [entry["name"] for entry in own.list_page(bucket, f"d{number}/")["entries"]]
            assert listed == made

    clients = [load.pool.submit(client, number) for number in range(CLIENTS)]
    for future in clients:
        future.result(BOUND_S * 4)
    assert load.sample("elements_sum") - load.elements > load.sample("elements_count") - load.batches, "none shared one"


def test_a_stat_shows_what_was_acknowledged(bucket, rest, load_of):
    """Each client reads what it has just changed, beside the reads of others, with which it shares statements (P40)."""
    load = load_of("stat_local")

    def client(number: int) -> list[tuple[str, str]]:
        own, seen = rest.twin(), []
        own.mkdir(bucket, f"d{number}")
        for mode in (f"{number:04o}" for number in range(0o700, 0o700 + CHANGES)):
            own.insist("PATCH", f"/v1/ns/{bucket}/entries/d{number}", {"mode": mode})
            seen.append((mode, own.stat(bucket, f"d{number}")["mode"]))
        return seen

    clients = [load.pool.submit(client, number) for number in range(CLIENTS)]
    for future in clients:
        assert all(changed == read for changed, read in future.result(BOUND_S * 4))
    assert load.sample("elements_sum") - load.elements > load.sample("elements_count") - load.batches, "none shared one"
