"""What docs/runbooks.md says of volumes: copies, the loss of one, an old copy that comes back, and restores."""

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import botocore.exceptions
import pytest

from stack.poll import wait_until
from tests.cluster import runbook
from tests.support.volume_blocks import blocks

from .another_gateway import running
from .clients import connect_as
from .test_restore import Backup
from .uploads import begin, complete, put, refused
from .volume_gateway import (
    BOUND_S,
    KIB,
    VolumeGateway,
    assert_all_read,
    locator_of,
    make,
    place_of,
    put_some,
    volume_gateway,
)

POINT = "before_the_deletes"
# The sweeper comes soon, and removes manifests at its second visit.
SWEPT = {"sweep_interval_ms": 200, "read_grace_ms": 200}
# Extents of manifests in a volume, and freed bytes of which its gateway has not said yet that nothing names them.
NAMES_LEFT = (
    "SELECT (SELECT count(*) FROM mantle.extents WHERE locator LIKE %s)"
    " + (SELECT count(*) FROM mantle.freed WHERE locator LIKE %s AND shared_by <> '0')"
)
SIZES = [1000 + 9000 * number for number in range(5)]


@pytest.fixture
def place(stack) -> Iterator[Path]:
    """A directory for one test's volumes and copies."""
    place = stack.layout.data / f"volumes-of-{os.urandom(4).hex()}"
    stack.account.own_folder(place, 0o700)
    yield place
    shutil.rmtree(place)


@pytest.fixture
def gateway(stack, place) -> VolumeGateway:
    return make(stack, folder=place / "volume")


@pytest.fixture
def backup(stack, whole) -> Iterator[Backup]:
    backup = Backup(stack)
    yield backup
    backup.remove()


def typed(stack, section: str, **words: str) -> str:
    """Runs a section's commands as the gateway's account."""
    return runbook.typed_by(
        stack.account, section,
        PATH=f"{stack.layout.binaries}:{stack.layout.postgresql_bin}:/usr/bin:/bin",
        SUPERUSER_URL=stack.postgresql.url("postgres", "superuser"), DATABASE_URL=stack.postgresql.url("operator"),
        **words,
    )  # fmt: skip


def copied(stack, gateway: VolumeGateway, copy: Path) -> None:
    """While the gateway runs."""
    typed(stack, "Copying a volume", VOLUME=str(gateway.folder), COPY=str(copy))


def number_of(file: Path) -> str:
    return file.name.removeprefix("volume-")


def lost_objects(sql, file: Path) -> tuple[set[str], set[int]]:
    """Names of objects that were in a volume, and numbers of manifests, by the runbook's statements on volume 3."""
    objects, uploads = (
        sql.execute(statement.replace("v1:3.", f"v1:{number_of(file)}.")).fetchall()
        for statement in runbook.statements("A volume that is lost")
    )
    return {name for _, _, name, _ in objects}, {upload for (upload,) in uploads}


@pytest.mark.allows("gateway", "a volume cannot be read|an object's bytes are (missing|damaged)")
@pytest.mark.faults
def test_a_lost_volume_is_read_from_its_copy(stack, superuser, place, gateway, bucket):
    copy = place / "copy"
    with running(gateway):
        s3 = gateway.s3(stack)
        old = put_some(s3, bucket, "old", SIZES)
        # It is in several segments.
        s3.put_object(Bucket=bucket, Key="large", Body=os.urandom(9 << 20))
        copied(stack, gateway, copy)
        late = put_some(s3, bucket, "late", SIZES)
        lost = gateway.file()
        manifest = int(locator_of(superuser, bucket, "large").removeprefix("manifest:"))
    assert lost_objects(superuser, lost) == ({*old, *late}, {manifest})
    words = {"NUMBER": number_of(lost), "VOLUME": str(gateway.folder), "ASIDE": str(place / "aside")}
    shown = typed(stack, "A volume that is lost", **words)
    assert [line.split()[1] for line in shown.splitlines() if line.split()[:1] == [number_of(lost)]] == ["lost"]
    assert (place / "aside" / lost.name).exists() and not lost.exists()
    with running(gateway):
        s3 = gateway.s3(stack)
        assert gateway.file().name != lost.name, "it made a new volume"
        new = put_some(s3, bucket, "new", SIZES)
        assert_all_read(s3, bucket, new)
        for key in old:
            assert refused(s3.get_object, Bucket=bucket, Key=key) == ("ServiceUnavailable", 503)
    gateway.volumes = (f'read_folders = ["{copy}"]',)
    with running(gateway):
        s3 = gateway.s3(stack)
        assert_all_read(s3, bucket, {**old, **new})
        for key in late:
            assert refused(s3.get_object, Bucket=bucket, Key=key)[1] == 500


def epochs(stack, volume: str, files: list[Path]) -> tuple[int, dict[Path, int]]:
    """The mount epoch that PostgreSQL knows, and those of files."""
    answer, end, others = typed(stack, "An old copy of a volume", FILES=" ".join(map(str, files))).partition("\n}\n")
    (known,) = [told["mount_epoch"] for told in json.loads(answer + end)["volumes"] if str(told["volume"]) == volume]
    shown = [line.split() for line in others.splitlines()]
    return known, {Path(file): max(int(one), int(other)) for file, one, other in shown}


def put_back(stack, gateway: VolumeGateway, copy: Path, aside: Path) -> None:
    """While the gateway is stopped."""
    typed(stack, "Putting a volume back", VOLUME=str(gateway.folder), COPY=str(copy), ASIDE=str(aside))


@pytest.mark.allows("gateway", "the volume is not mounted")
@pytest.mark.faults
def test_an_old_copy_of_a_volume_is_refused(stack, place, gateway, bucket):
    copy, right, aside = place / "copy", place / "right", place / "aside"
    with running(gateway):
        bodies = put_some(gateway.s3(stack), bucket, "old", SIZES)
        copied(stack, gateway, copy)
        file = gateway.file()
    with running(gateway):
        bodies |= put_some(gateway.s3(stack), bucket, "late", SIZES)
    put_back(stack, gateway, copy, right)
    gateway.prepare()
    gateway.start()
    try:
        wait_until(lambda: gateway.metrics().get("mantle_gateway_volume_mounted") == 0, "its metrics", BOUND_S)
        wait_until(lambda: "an old copy of the volume" in gateway.problem(), "its refusal", BOUND_S)
        assert not gateway.is_ready()
        assert refused(gateway.s3(stack).put_object, Bucket=bucket, Key="x", Body=b"x")[1] == 503
        assert file.read_bytes() == (copy / file.name).read_bytes(), "nothing was written to it"
    finally:
        gateway.process.stop()
    known, found = epochs(stack, number_of(file), [file, right / file.name])
    assert found == {file: known - 1, right / file.name: known}
    put_back(stack, gateway, right, aside)
    with running(gateway):
        assert_all_read(gateway.s3(stack), bucket, bodies)


@pytest.mark.allows("gateway", "an object's bytes are (missing|damaged)")
@pytest.mark.faults
def test_a_copy_of_the_last_mount_gives_right_bytes_or_errors(stack, place, gateway, bucket):
    """It is used instead of the volume. What was put since lies where it has nothing, or bytes of deleted objects."""
    copy = place / "copy"
    with running(gateway):
        s3 = gateway.s3(stack)
        old = put_some(s3, bucket, "old", SIZES)
        gone = put_some(s3, bucket, "gone", SIZES)
        used = sum(map(blocks, SIZES))
        gateway.await_used(2 * used)
        copied(stack, gateway, copy)
        for key in gone:
            s3.delete_object(Bucket=bucket, Key=key)
        gateway.await_used(used)
        late = put_some(s3, bucket, "late", SIZES * 3)
        # With the same size and name as before: only the generation tells them apart.
        again = put_some(s3, bucket, "gone", SIZES)
    put_back(stack, gateway, copy, place / "aside")
    with running(gateway):
        s3 = gateway.s3(stack)
        assert_all_read(s3, bucket, old)
        new = put_some(s3, bucket, "new", SIZES)
        assert_all_read(s3, bucket, {**old, **new})
        for key in (*late, *again):
            assert is_unreadable(s3, bucket, key), key


@pytest.mark.allows("gateway", "an object's bytes are (missing|damaged)")
@pytest.mark.allows("gateway", "the volume cannot be looked after|the volume is not mounted|could not sweep the stores")
@pytest.mark.allows("postgresql", "terminating background worker")
@pytest.mark.allows("indexnode", r"rebuilding the index reason=PostgreSQL left timeline")
@pytest.mark.parametrize("delay_ms", [0, 3_600_000])
@pytest.mark.faults
def test_a_restore_finds_all_bytes_within_the_delay_and_never_wrong_ones(stack, place, backup, bucket, delay_ms):
    body = os.urandom(200 * KIB)
    settings = (f"reuse_delay_ms = {delay_ms}", f"bytes_max = {8 << 20}")
    copies = place / "copies"
    backup.take()
    with volume_gateway(stack, folder=place / "volume", volumes=settings, **SWEPT) as gateway:
        s3 = gateway.s3(stack)
        s3.put_object(Bucket=bucket, Key="k", Body=body)
        shared = put_shared(s3, bucket)
        with connect_as(stack, "postgres", "superuser") as session:
            used = locator_of(session, bucket, "k")
        words = {"POINT": POINT, "VOLUME": str(gateway.folder), "COPIES": str(copies)}
        typed(stack, "Backing up a volume with PostgreSQL", **words)
        for key in ["k", *shared]:
            s3.delete_object(Bucket=bucket, Key=key)
        with connect_as(stack, "postgres", "superuser") as session:
            here = f"v1:{gateway.file().name.removeprefix('volume-')}.%"
            is_swept = lambda: session.execute(NAMES_LEFT, (here, here)).fetchone() == (0,)
            wait_until(is_swept, "the sweeper", BOUND_S)
        overwritten = lambda: not holds(gateway.file(), used, body)
        # Each replaces the one before. With the delay all of them stay in the volume.
        for _ in range(60 if delay_ms else 300):
            s3.put_object(Bucket=bucket, Key="late", Body=os.urandom(100 * KIB))
            if overwritten():
                break
        assert overwritten() == (delay_ms == 0)
        backup.await_archived()
        backup.restore(POINT)
        new = {}
        wait_until(lambda: puts(s3, bucket, new), "a put", BOUND_S)
        if delay_ms:
            assert_all_read(s3, bucket, {**new, **shared, "k": body})
            return
        assert is_unreadable(s3, bucket, "k")
        assert_all_read(s3, bucket, new)
        gateway.process.stop()
        put_back(stack, gateway, copies / POINT, place / "aside")
        gateway.start()
        gateway.await_ready()
        assert_all_read(s3, bucket, {**shared, "k": body})
        for key, bytes_since in new.items():
            assert is_unreadable(s3, bucket, key) or s3.get_object(Bucket=bucket, Key=key)["Body"].read() == bytes_since


def put_shared(s3, bucket: str) -> dict[str, bytes]:
    """Objects and copies of them: one in one piece, one in parts; and one in parts that nothing shares."""
    bodies = put_some(s3, bucket, "copied", [150 * KIB])
    for key in ["parted", "alone"]:
        upload = begin(s3, bucket, key)
        bodies[key] = os.urandom(150 * KIB)
        complete(s3, upload, put(s3, upload, [bodies[key]]))
    for key in ["copied0", "parted"]:
        s3.copy_object(Bucket=bucket, Key=f"{key} copy", CopySource={"Bucket": bucket, "Key": key})
        bodies[f"{key} copy"] = bodies[key]
    return bodies


def puts(s3, bucket: str, known: dict[str, bytes]) -> bool:
    """Whether objects may be put; adds them."""
    try:
        known |= put_some(s3, bucket, "new", SIZES)
    except s3.exceptions.ClientError:
        return False
    return True


def is_unreadable(s3, bucket: str, key: str) -> bool:
    """Whether a read is refused, or ends short."""
    try:
        s3.get_object(Bucket=bucket, Key=key)["Body"].read()
    except s3.exceptions.ClientError as error:
        return error.response["ResponseMetadata"]["HTTPStatusCode"] == 500
    except (botocore.exceptions.IncompleteReadError, botocore.exceptions.ResponseStreamingError):
        return True
    return False


def holds(file: Path, text: str, body: bytes) -> bool:
    """Whether the volume has these bytes at the place of a locator."""
    at, length = place_of(text)
    with file.open("rb") as volume:
        volume.seek(at)
        return body in volume.read(length + 64 * KIB)
