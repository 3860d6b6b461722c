"""The index lags behind PostgreSQL, where a listing already shows changes that are not acknowledged. The index must not
refuse calls that such a change makes possible.
"""

import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager

import pytest

from stack.poll import wait_until
from tests.support.rest import Answer, Rest

from .inspection import READY_BOUND_S, frozen

WALSENDERS = "SELECT active_pid FROM pg_replication_slots WHERE slot_type = 'logical' AND active_pid IS NOT NULL"


@contextmanager
def behind(superuser) -> Iterator[None]:
    """No commit reaches the index while the block runs."""
    with ExitStack() as still:
        for (walsender,) in superuser.execute(WALSENDERS).fetchall():
            still.enter_context(frozen(walsender))
        yield


def rename(rest: Rest, bucket: str, key: str) -> Answer:
    return rest.call(
        "POST", f"/v1/ns/{bucket}/rename", {"src": "moved/", "dst": "place/below/", "overwrite": False}, key=key
    )


def rename_there(rest: Rest, bucket: str, key: str) -> Answer:
    return rest.call("POST", f"/v1/ns/{bucket}/rename", {"src": "moved/", "dst": "place/", "overwrite": False}, key=key)


def remove(rest: Rest, bucket: str, key: str) -> Answer:
    return rest.call("DELETE", f"/v1/ns/{bucket}/dirs/place?recursive=true", key=key)


@pytest.mark.parametrize(("is_made", "change"), [(True, rename), (True, remove), (False, rename_there)])
def test_what_a_listing_shows_is_not_refused(
    bucket, rest, superuser, is_made: bool, change: Callable[[Rest, str, str], Answer]
):
    rest.mkdir(bucket, "moved")
    if not is_made:
        rest.mkdir(bucket, "place")
    key, other = str(uuid.uuid4()), rest.twin()
    with ThreadPoolExecutor() as pool:
        with behind(superuser):
            under_way = pool.submit(other.mkdir if is_made else other.rmdir, bucket, "place")
            wait_until(lambda: ("place/" in rest.list(bucket, "")) is is_made, "the listing to tell", READY_BOUND_S)
            answer = change(rest, bucket, key)
            assert answer.status == 503, answer
            assert not under_way.done()
        under_way.result()
    wait_until(lambda: change(rest, bucket, key).status in (200, 202), "the change, asked for again", READY_BOUND_S)
