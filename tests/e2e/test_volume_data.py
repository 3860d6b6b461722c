"""`mantle data`: shows the volumes that PostgreSQL knows, checks their bytes, and moves bytes into one."""

import hashlib
import json
import os
from collections.abc import Iterator

import pytest

from stack import secret
from stack.poll import wait_until
from tests.support.volume_blocks import blocks

from .another_gateway import running
from .inspection import command_line
from .migrations import migrate
from .uploads import files
from .volume_gateway import (
    BOUND_S,
    KIB,
    LOCATOR,
    TOKEN_OF_UID_0,
    VolumeGateway,
    flip,
    locator_of,
    make,
    put_some,
    volume_gateway,
)


@pytest.fixture
def gateway(stack, folder) -> Iterator[VolumeGateway]:
    with volume_gateway(stack, folder=folder) as gateway:
        yield gateway


def number(gateway: VolumeGateway) -> int:
    return int(gateway.file().name.removeprefix("volume-"))


def test_the_status_says_what_postgresql_knows(stack, gateway):
    wait_until(lambda: gateway.bytes_of("leased") > 0, "a segment", BOUND_S)
    done = command_line(stack, "data", "status", "--json", DATABASE_URL=stack.postgresql.url("operator"))
    assert done.returncode == 0, done.stderr
    (volume,) = [found for found in json.loads(done.stdout)["volumes"] if found["volume"] == number(gateway)]
    assert volume["state"] == "active" and volume["is_current"] and volume["mounted"] is not None
    assert (volume["segments"], volume["name"]) == (2, str(gateway.folder))
    assert volume["leased"] + volume["unused"] == 2 and volume["mount_epoch"] == 1


def scrub(stack, gateway: VolumeGateway, *more: str):
    url = stack.postgresql.url("postgres", "superuser")
    folder = ("--folder", str(gateway.folder))
    return command_line(stack, "data", "scrub", "--json", *folder, *more, DATABASE_URL=url)


def test_a_scrub_finds_what_is_damaged(stack, gateway, superuser, bucket):
    s3 = gateway.s3(stack)
    bodies = {f"k{number}": os.urandom(1000 + 5000 * number) for number in range(8)}
    for key, body in bodies.items():
        s3.put_object(Bucket=bucket, Key=key, Body=body)
    done = scrub(stack, gateway)
    assert done.returncode == 0, done.stderr
    sound = json.loads(done.stdout)
    assert (sound["extents"], sound["bytes"], sound["damaged"]) == (8, sum(map(len, bodies.values())), [])
    locator = locator_of(superuser, bucket, "k5")
    flip(gateway, locator)
    done = scrub(stack, gateway)
    assert done.returncode == 1
    (damaged,) = json.loads(done.stdout)["damaged"]
    assert damaged["locator"] == locator and damaged["objects"][0].endswith("/k5")
    assert not (gateway.folder / "scrub.json").exists(), "it came to its end"
    s3.delete_object(Bucket=bucket, Key="k5")
    assert json.loads(scrub(stack, gateway).stdout)["damaged"] == []


def test_a_scrub_goes_on_where_it_was(stack, gateway, bucket):
    gateway.s3(stack).put_object(Bucket=bucket, Key="k", Body=os.urandom(1000))
    state = {"volume": number(gateway), "after": [1, 0]}
    (gateway.folder / "scrub.json").write_text(json.dumps(state), encoding="utf-8")
    assert json.loads(scrub(stack, gateway).stdout)["extents"] == 0, "the first segment was done before"
    assert json.loads(scrub(stack, gateway).stdout)["extents"] == 1


@pytest.mark.allows("gateway", "a scrub found bytes of an object that are damaged")
def test_the_gateway_finds_damage_that_nobody_reads(stack, superuser, bucket, folder):
    gateway = make(stack, folder=folder, volumes=("scrub_interval_s = 1",))
    with running(gateway):
        s3 = gateway.s3(stack)
        bodies = put_some(s3, bucket, "k", [1000 + 5000 * number for number in range(8)])
        wait_until(lambda: gateway.count("scrub_bytes_total") >= sum(map(len, bodies.values())), "a scrub", BOUND_S)
        assert gateway.count("scrub_finished_seconds") > 0 and gateway.count("scrub_damaged") == 0
        flip(gateway, locator_of(superuser, bucket, "k5"))
        wait_until(lambda: gateway.count("scrub_damaged") == 1, "the damage to be found", BOUND_S)
        assert gateway.count("bytes_corrupt_total") == 0, "nobody has read it"
        gateway.process.kill()
        gateway.start()
        gateway.await_ready()
        wait_until(lambda: gateway.count("scrub_damaged") == 1, "its metrics", BOUND_S)
        s3.delete_object(Bucket=bucket, Key="k5")
        wait_until(lambda: gateway.count("scrub_damaged") == 0, "the object's end to be noticed", BOUND_S)


def test_the_gateways_scrub_goes_on_where_it_was(stack, superuser, bucket, folder):
    state = folder / "background-scrub.json"
    gateway = make(stack, folder=folder, volumes=("scrub_interval_s = 0",))
    with running(gateway):
        put_some(gateway.s3(stack), bucket, "k", [10_000] * 40)
        assert not state.exists()
    gateway.volumes = ("scrub_interval_s = 3600", "scrub_bytes_per_second = 100_000")
    with running(gateway):
        is_begun = lambda: state.exists() and json.loads(state.read_text(encoding="utf-8"))["after"] is not None
        wait_until(is_begun, "a part of the scrub", BOUND_S)
        gateway.process.kill()
    after = json.loads(state.read_text(encoding="utf-8"))["after"]
    places = [LOCATOR.fullmatch(locator_of(superuser, bucket, f"k{number}")).groups() for number in range(40)]
    left = sum(10_000 for _, segment, _, _, block, _ in places if [int(segment), int(block)] > after)
    assert 0 < left < 400_000
    with running(gateway):
        wait_until(lambda: gateway.count("scrub_finished_seconds") > 0, "the end of the scrub", BOUND_S)
        assert gateway.count("scrub_bytes_total") == left


def test_bytes_are_moved_into_the_volume(stack, s3, gateway, superuser, bucket):
    """From the folder of files. Objects keep their content and metadata, and copies and parts stay readable."""
    bodies = {f"d{number % 3}/k{number}": os.urandom(300 * number) for number in range(40)}
    for key, body in bodies.items():
        s3.put_object(Bucket=bucket, Key=key, Body=body, Metadata={"is": "kept"})
    s3.copy_object(Bucket=bucket, Key="copy", CopySource={"Bucket": bucket, "Key": "d1/k1"})
    before = {key: s3.head_object(Bucket=bucket, Key=key) for key in bodies}
    old = files(stack)
    code, text = migrate(stack, gateway, bucket)
    told = json.loads(text)
    assert (code, told["state"], told["objects"], told["failed"]) == (0, "done", 41, 0)
    beside = gateway.s3(stack)
    for key, body in {**bodies, "copy": bodies["d1/k1"]}.items():
        assert beside.get_object(Bucket=bucket, Key=key)["Body"].read() == body, key
    for key, head in before.items():
        after = beside.head_object(Bucket=bucket, Key=key)
        assert [after[name] for name in ("ETag", "LastModified", "Metadata")] == [
            head[name] for name in ("ETag", "LastModified", "Metadata")
        ]
    # Files that were not shared are gone.
    assert len(old - files(stack)) >= len(bodies) - 2
    used = sum(blocks(len(body)) for body in [*bodies.values(), bodies["d1/k1"]] if body)
    assert gateway.bytes_of("used") == used
    code, text = migrate(stack, gateway, bucket)
    assert (code, json.loads(text)["objects"]) == (0, 0), "a second run finds nothing to do"


@pytest.mark.allows("gateway", "the bytes of an object (do not match its etag|are gone, or cannot be read)")
def test_bytes_that_do_not_match_their_etag_stay(stack, s3, gateway, bucket):
    body = os.urandom(10 * KIB)
    before = files(stack)
    s3.put_object(Bucket=bucket, Key="k", Body=body)
    (file,) = files(stack) - before
    file.write_bytes(b"?" * len(body))
    code, text = migrate(stack, gateway, bucket)
    assert (code, json.loads(text)["failed"], gateway.bytes_of("used")) == (1, 1, 0)
    assert hashlib.md5(file.read_bytes()).hexdigest() != hashlib.md5(body).hexdigest()


def test_only_uid_0_may_move_bytes(stack, gateway, bucket):
    code, text = migrate(stack, gateway, bucket, secret.read(stack.layout, "token"))
    assert code == 3 and "uid 0" in json.loads(text)["error"]["message"]
    code, text = migrate(stack, gateway, "there-is-none")
    assert code == 2, text


def test_the_token_of_uid_0_stays_secret(stack, gateway):
    """It is in a file that others cannot read, and goes to another machine over TLS only."""
    file = stack.layout.config / f"{gateway.name}-token"
    gateway.account.write(file, TOKEN_OF_UID_0)
    of = lambda url: command_line(stack, "data", "migrate", "--json", "--gateway", url, "--token-file", str(file))
    elsewhere = of("http://198.51.100.1:7400")
    assert elsewhere.returncode == 2 and "https" in json.loads(elsewhere.stderr)["error"]["message"]
    file.chmod(0o644)
    try:
        readable = of(gateway.url)
    finally:
        file.chmod(0o600)
    assert readable.returncode == 2 and "0600" in json.loads(readable.stderr)["error"]["message"]
