"""A load of objects on a cluster. Every body names the change that made it, so that a read shows whose bytes it got.

A key has one writer, which begins its changes one after the other. So a read may answer what the last settled change
left, or what a change left that was begun since; and nothing else. A key whose last change has an unknown outcome is
not changed any more.

A *plain* writer works in one directory, and goes on with another key after each refusal: what it does needs one node of
PostgreSQL. A *careful* writer names its requests and repeats each until it is answered, at any gateway. It also uploads
in parts and removes directories with everything below them.
"""

import itertools
import math
import random
import threading
import time
import urllib.parse
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field

import botocore.exceptions
import urllib3.exceptions

from cluster.cluster import Cluster
from cluster.services import ClusterGateway
from stack.poll import wait_until

from . import oracle
from .clients import make_directories, s3_at
from .load import PACE_S, PROGRESS_BOUND_S, Times, Workers

SIZES = (1 << 10, 300 << 10)
KEYS, TREES, KEYS_OF_TREE = 8, 3, 5
PASSING = (0, 503)
DONE = (200, 202, 204)
RANGES = 0.3  # so many reads are of a range
READERS = 8
READ_BOUND_S = 60.0


@dataclass(frozen=True)
class Body:
    """A line, again and again; from its byte `begin` on."""

    line: str
    size: int
    begin: int = 0

    def bytes(self) -> bytes:
        line = self.line.encode()
        return (line * (-(-(self.begin + self.size) // len(line))))[self.begin : self.begin + self.size]


@dataclass
class Key:
    """What changes have left, or may have left, at a key. `None`: nothing is there."""

    name: str
    bodies: list[Body | None] = field(default_factory=lambda: [None])
    settled: int = 0
    is_open: bool = False  # the outcome of the last change is unknown

    @property
    def body(self) -> Body | None:
        return self.bodies[self.settled]

    def settle(self) -> None:
        self.settled = len(self.bodies) - 1


class Callers:
    """A client of S3 for each gateway, which threads share."""

    def __init__(self, cluster: Cluster, gateways: list[ClusterGateway]):
        self._cluster, self._gateways = cluster, gateways
        self._local = threading.local()
        self._s3 = [self._client(gateway) for gateway in gateways]

    def __len__(self) -> int:
        return len(self._s3)

    def _client(self, gateway: ClusterGateway):
        client = s3_at(self._cluster, gateway.url, connections=32)
        client.meta.events.register("before-sign.s3", self._name)
        return client

    def _name(self, request, **_ignored) -> None:
        if getattr(self._local, "request", None):
            request.headers["Idempotency-Key"] = self._local.request

    def replace(self, number: int, gateway: ClusterGateway) -> None:
        """From now on calls of this number go to another gateway."""
        self._gateways[number], self._s3[number] = gateway, self._client(gateway)

    def rest(self, number: int):
        """The native API, for one thread."""
        return oracle.rest_at(self._cluster, self._gateways[number])

    def call(self, number: int, verb: str, request: str | None = None, **given) -> tuple[int, dict]:
        """The status of a call, 0 if there was none; and the answer, with the bytes of a body."""
        self._local.request = request
        try:
            answer = getattr(self._s3[number], verb)(**given)
            if verb == "get_object":
                answer["Body"] = answer["Body"].read()
            return 200, answer
        except botocore.exceptions.ClientError as error:
            return error.response["ResponseMetadata"]["HTTPStatusCode"], error.response["Error"]
        except (botocore.exceptions.BotoCoreError, urllib3.exceptions.HTTPError, OSError) as error:
            return 0, {"Message": str(error)}
        finally:
            self._local.request = None


class Writer:
    """One writer of the keys below `prefix`. `group`: that has the directory, if the writer is plain."""

    def __init__(self, callers: Callers, ns: str, prefix: str, group: int | None):
        self.callers, self.ns, self.prefix, self.group = callers, ns, prefix, group
        self.keys: dict[str, Key] = {}
        self.times = [Times() for _ in range(len(callers))]  # of changes, by gateway
        self.wrong: list[str] = []
        self._random = random.Random(prefix)
        self._numbers = itertools.count()
        steps = {self.put: 8, self.delete: 3, self.copy: 2}
        if self.is_careful:
            steps |= {self.upload: 2, self.remove_tree: 1}
        self._steps, self._weights = list(steps), list(steps.values())

    @property
    def is_careful(self) -> bool:
        return self.group is None

    @property
    def changes(self) -> int:
        return sum(len(times.at) for times in self.times)

    def step(self, end: threading.Event) -> None:
        self._random.choices(self._steps, self._weights)[0](end)

    def put(self, end: threading.Event) -> None:
        key, body = self._key(), self._body()
        self._change([key], body, self._s3("put_object", key, Body=body.bytes()), end)

    def delete(self, end: threading.Event) -> None:
        key = self._there()
        if key:
            self._change([key], None, self._s3("delete_object", key), end)

    def copy(self, end: threading.Event) -> None:
        source, key = self._there(), self._key()
        if source and key is not source:
            place = {"Bucket": self.ns, "Key": source.name}
            self._change([key], source.body, self._s3("copy_object", key, CopySource=place), end)

    def upload(self, end: threading.Event) -> None:
        """In one part: new bytes, or a range of another object's."""
        source, key, body = self._there(), self._key(), self._body()
        if source and key is not source and self._random.random() < 0.5:
            body = source.body
            first = self._random.randrange(body.size)
            body = Body(body.line, self._random.randint(1, body.size - first), body.begin + first)
            given = {
                "CopySource": {"Bucket": self.ns, "Key": source.name},
                "CopySourceRange": f"bytes={first}-{first + body.size - 1}",
            }
            self._change([key], body, self._upload("upload_part_copy", key, given), end)
        else:
            self._change([key], body, self._upload("upload_part", key, {"Body": body.bytes()}), end)

    def remove_tree(self, end: threading.Event) -> None:
        tree = f"{self.prefix}/t{self._random.randrange(TREES)}/"
        keys = [key for key in self.keys.values() if key.name.startswith(tree)]
        if any(key.body for key in keys) and not any(key.is_open for key in keys):
            target = f"/v1/ns/{self.ns}/dirs/{urllib.parse.quote(tree)}?recursive=true"

            def attempt(gateway: int, request: str) -> int:
                rest = self.callers.rest(gateway)
                try:
                    return rest.call("DELETE", target, key=request).status
                finally:
                    rest.close()

            self._change(keys, None, attempt, end)

    def _s3(self, verb: str, key: Key, **given) -> Callable[[int, str | None], int]:
        return lambda gateway, request: self.callers.call(
            gateway, verb, request, Bucket=self.ns, Key=key.name, **given
        )[0]

    def _upload(self, verb: str, key: Key, given: dict) -> Callable[[int, str], int]:
        """All calls of an upload. Repeated, it goes on where it was."""
        place, parts = {"Bucket": self.ns, "Key": key.name}, []

        def attempt(gateway: int, request: str) -> int:
            if "UploadId" not in place:
                status, answer = self.callers.call(gateway, "create_multipart_upload", **place)
                if status != 200:
                    return status
                place["UploadId"] = answer["UploadId"]
            if not parts:
                status, answer = self.callers.call(gateway, verb, PartNumber=1, **place, **given)
                if status != 200:
                    return status
                parts.append({"PartNumber": 1, "ETag": answer.get("CopyPartResult", answer)["ETag"]})
            return self.callers.call(gateway, "complete_multipart_upload", **place, MultipartUpload={"Parts": parts})[0]

        return attempt

    def _change(self, keys: list[Key], body: Body | None, attempt: Callable, end: threading.Event) -> None:
        """Makes one change of some keys. Each key is open, or settled, when this returns."""
        for key in keys:
            key.bodies.append(body)
        request = str(uuid.uuid4()) if self.is_careful else None
        while True:
            gateway = self._random.randrange(len(self.callers))
            status = attempt(gateway, request)
            if status in DONE:
                for key in keys:
                    key.settle()
                self.times[gateway].at.append(time.monotonic())
                return
            self.times[gateway].refusals += 1
            if status not in PASSING:
                self.wrong.append(f"a change of {keys[0].name} to {body}: {status}")
            if status not in PASSING or not self.is_careful or end.is_set():
                for key in keys:
                    key.is_open = True
                return
            end.wait(PACE_S)

    def _key(self) -> Key:
        """A key that may be changed."""
        at, keys = self.prefix, KEYS
        if self.is_careful and self._random.random() < 0.5:
            at, keys = f"{at}/t{self._random.randrange(TREES)}", KEYS_OF_TREE
        name = f"{at}/k{self._random.randrange(keys)}"
        while self.keys.get(name) and self.keys[name].is_open:
            name = f"{at}/more{next(self._numbers)}"
        return self.keys.setdefault(name, Key(name))

    def _there(self) -> Key | None:
        there = [key for key in self.keys.values() if key.body and not key.is_open]
        return self._random.choice(there) if there else None

    def _body(self) -> Body:
        smallest, largest = SIZES
        size = int(smallest * math.exp(self._random.random() * math.log(largest / smallest)))
        return Body(f"{self.prefix} {next(self._numbers)} {uuid.uuid4().hex}\n", size)


class ObjectLoad(Workers):
    """Writers and readers while the block runs."""

    def __init__(self, callers: Callers, ns: str, writers: list[Writer]):
        self.callers, self.ns, self.writers = callers, ns, writers
        self.reads = [Times() for _ in range(len(callers))]
        self._misread: list[str] = []
        readers = [lambda _end, number=number: self._read_one(number) for number in range(len(callers))]
        super().__init__([*(writer.step for writer in writers), *readers])

    @property
    def wrong(self) -> list[str]:
        return [*self._faults, *self._misread, *(what for writer in self.writers for what in writer.wrong)]

    @property
    def keys(self) -> list[Key]:
        return [key for writer in self.writers for key in list(writer.keys.values())]

    def await_progress(self, more: int = 5) -> None:
        """Waits until every writer has made so many more changes, and so many more reads were answered."""
        counts = lambda: [*(writer.changes for writer in self.writers), *(len(times.at) for times in self.reads)]
        before = counts()
        have_moved = lambda: all(now >= then + more for now, then in zip(counts(), before, strict=True))
        what = f"{more} more changes of each writer"
        wait_until(have_moved, what, PROGRESS_BOUND_S, self._why_not)

    def changes(self, group: int, gateway: int, since: float, until: float) -> int:
        """How many changes plain writers made in directories of a group through a gateway."""
        chosen = (writer.times[gateway].at for writer in self.writers if writer.group == group)
        return sum(since < at < until for times in chosen for at in times)

    def assert_all_read(self) -> None:
        """Every gateway answers for every key what the last settled change left, or a later one of unknown outcome."""
        with ThreadPoolExecutor(READERS) as pool:
            works = [(key, number) for key in self.keys for number in range(len(self.callers))]
            wrong = [what for what in pool.map(lambda work: self._wrong_at_rest(*work), works) if what]
        assert wrong == [], f"{len(wrong)} of {len(works)} wrong answers, first: {wrong[0]}"

    def _read_one(self, gateway: int) -> None:
        keys = self.keys
        if not keys:
            return
        key, body = random.choice(keys), None
        since = key.settled
        cut = None
        if (body := key.bodies[since]) and random.random() < RANGES:
            first = random.randrange(body.size)
            cut = (first, random.randint(first, body.size - 1))
        status, found = self._read(key, gateway, cut)
        if status in PASSING:
            self.reads[gateway].refusals += 1
            return
        self.reads[gateway].at.append(time.monotonic())
        what = mismatch(key, since, cut, status, found)
        if what:
            self._misread.append(what)

    def _wrong_at_rest(self, key: Key, gateway: int) -> str | None:
        read = lambda: next((answer for answer in [self._read(key, gateway)] if answer[0] not in PASSING), None)
        status, found = wait_until(read, f"an answer for {key.name}", READ_BOUND_S)
        return mismatch(key, key.settled, None, status, found)

    def _read(self, key: Key, gateway: int, cut: tuple[int, int] | None = None) -> tuple[int, bytes]:
        given = {} if cut is None else {"Range": f"bytes={cut[0]}-{cut[1]}"}
        status, answer = self.callers.call(gateway, "get_object", Bucket=self.ns, Key=key.name, **given)
        return status, answer["Body"] if status == 200 else str(answer).encode()


def mismatch(key: Key, since: int, cut: tuple[int, int] | None, status: int, found: bytes) -> str | None:
    """What is wrong about an answer to a read that began when the change `since` was settled."""
    first, last = cut or (0, 0)
    for body in key.bodies[since:]:
        if body is None:
            is_right = status == 404
        elif cut and first >= body.size:
            is_right = status == 416
        else:
            is_right = status == 200 and found == (body.bytes()[first : last + 1] if cut else body.bytes())
        if is_right:
            return None
    may_be = [body and f"{body.line.strip()}, {body.size} bytes" for body in key.bodies[since:]]
    told = found if status != 200 else f"{len(found)} bytes, {found[:100]!r}"
    return f"{key.name}: {status} {told}; it may be one of {may_be}, range {cut}"


@contextmanager
def object_load(
    cluster: Cluster, ns: str, gateways: list[ClusterGateway], plain: int = 2, careful: int = 2
) -> Iterator[ObjectLoad]:
    """Load by `plain` writers for each group that has directories, and by careful ones."""
    callers = Callers(cluster, list(gateways))
    directories = make_directories(cluster, ns, plain)
    writers = [Writer(callers, ns, name, group) for group in directories for name, _ in directories[group]]
    writers += [Writer(callers, ns, f"careful{number}", None) for number in range(careful)]
    with ObjectLoad(callers, ns, writers) as load:
        load.await_progress()
        yield load
        load.await_progress()
