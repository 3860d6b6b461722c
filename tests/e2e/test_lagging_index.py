"""The index lags behind PostgreSQL, where a listing already shows changes that are not acknowledged. The index must not
refuse calls that such a change makes possible.
"""

import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from stack.poll import wait_until
from tests.support.rest import Answer, Rest

from .inspection import READY_BOUND_S, behind

FINAL = "mantle_gateway_final_misses_total"
ROUNDS = 20


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


def test_a_miss_of_a_lagging_index_is_not_final(stack, bucket, rest, superuser):
    other = rest.twin()
    with ThreadPoolExecutor() as pool:
        with behind(superuser):
            under_way = pool.submit(other.mkdir, bucket, "place")
            wait_until(lambda: "place/" in rest.list(bucket, ""), "the listing to tell", READY_BOUND_S)
            final = stack.gateway.metrics().get(FINAL, 0)
            for path, status in (("place/", 200), ("none/", 404), ("place/none/", 404)):
                assert rest.call("GET", f"/v1/ns/{bucket}/entries/{path}").status == status, path
            assert stack.gateway.metrics().get(FINAL, 0) == final
            assert not under_way.done()
        under_way.result()


def test_what_somebody_has_seen_is_never_missing(bucket, rest):
    """Acknowledged or not: a lookup that begins after a listing has shown a directory finds it."""
    other, third = rest.twin(), rest.twin()
    with ThreadPoolExecutor() as pool:
        for number in range(ROUNDS):
            under_way = pool.submit(other.mkdir, bucket, f"d{number}")
            wait_until(lambda: f"d{number}/" in rest.list(bucket, ""), "the listing to tell", READY_BOUND_S)
            assert third.call("GET", f"/v1/ns/{bucket}/entries/d{number}/").status == 200
            under_way.result()
            assert third.call("GET", f"/v1/ns/{bucket}/entries/d{number}/").status == 200
