"""Clients put and delete, each in a chain of directories of its own. After each acknowledgement another gateway lists:
it shows the key, and then nothing, not even the directories that the put has made (P54).
"""

import threading
import uuid
from collections.abc import Callable

import botocore.exceptions

from stack.poll import wait_until

DEPTH = 10
BOUND_S = 120.0


def shown(s3, bucket: str, **given) -> list[str]:
    """What a listing by directories has: common prefixes and keys."""
    page = s3.list_objects_v2(Bucket=bucket, Delimiter="/", **given)
    return [p["Prefix"] for p in page.get("CommonPrefixes", [])] + [o["Key"] for o in page.get("Contents", [])]


def play(pairs: list, bucket: str, rounds: int, kill: Callable[[], None]) -> None:
    """`pairs`: for each client, the boto3 client that it writes through, and the one that lists. After so many rounds
    of each, `kill` ends a gateway in the midst of its work; until then every call must succeed.
    """
    chain = "/".join(f"c{level}" for level in range(DEPTH))
    killed, ended, faults, done = threading.Event(), threading.Event(), [], [0] * len(pairs)

    def work(number: int, writer, reader) -> None:
        top = f"t{number:02}"
        try:
            while not ended.is_set():
                key = f"{top}/{chain}/{uuid.uuid4().hex[:6]}"
                writer.put_object(Bucket=bucket, Key=key, Body=b"")
                assert shown(reader, bucket, Prefix=top) == [f"{top}/"], "the key is not listed"
                writer.delete_object(Bucket=bucket, Key=key)
                assert shown(reader, bucket, Prefix=top) == [], "a ghost"
                done[number] += 1
        except (botocore.exceptions.HTTPClientError, botocore.exceptions.ConnectionError) as error:
            if not killed.is_set():
                faults.append(error)
        except BaseException as error:
            faults.append(error)

    threads = [threading.Thread(target=work, args=(number, *pair)) for number, pair in enumerate(pairs)]
    for thread in threads:
        thread.start()
    try:
        wait_until(lambda: faults or min(done) >= rounds, "some rounds", BOUND_S)
        killed.set()
        kill()
    finally:
        ended.set()
        for thread in threads:
            thread.join()
    assert faults == []
