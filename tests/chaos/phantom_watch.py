"""Watches IndexNodes for two wrong answers: directories that PostgreSQL never had, and records older than an earlier
answer.

Clients seldom see the first: a read of such a directory's content also asks PostgreSQL, and the client that was making
the directory makes it again. So the watch asks the replicas directly, all the time. At the end it looks for each id in
PostgreSQL: as a directory, or, if it was removed since, in the answer to the request that made it. Clients seldom see
the second either: the index finds it after some seconds, and repairs it by a rebuild.
"""

import threading

import grpc

from cluster.cluster import Cluster
from tests.cluster.clients import index_channel, session
from tests.cluster.load import Probe

from .workload import Workload

messages, services = grpc.protos_and_services("index.proto")

PAUSE_S = 0.05
TIMEOUT_S = 1.0
RECORDS = 512  # of the last ones that were seen


class Phantoms:
    """Asks one replica after the other for the paths of workloads and of the probes' writers while the block runs."""

    def __init__(self, cluster: Cluster, ns: str, workloads: list[Workload], probes: list[Probe]):
        self.cluster, self.ns, self.probes = cluster, ns, probes
        self.paths = [path for workload in workloads for path in paths_of(workload)]
        self.answers = 0
        self._seen: dict[int, str] = {}
        self._newest: dict[int, tuple[int, str]] = {}
        self._older: list[str] = []
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> "Phantoms":
        self._thread.start()
        return self

    def __exit__(self, *_ignored) -> None:
        self._end.set()
        self._thread.join()

    def _watch(self) -> None:
        channels: dict[str, list[grpc.Channel]] = {}
        while not self._end.is_set():
            for address in self.cluster.layout.index_addresses:
                if address not in channels:
                    channels[address] = [
                        index_channel(self.cluster, address, role) for role in ("gateway", "administrator")
                    ]
                try:
                    gateway, administrator = map(services.IndexStub, channels[address])
                    self._ask(address, gateway)
                    self._look(address, administrator)
                except (grpc.RpcError, StopIteration):
                    # It is down, or cut off: that is the fault. New channels read the certificates again.
                    close(channels.pop(address))
                self._end.wait(PAUSE_S)
        for both in channels.values():
            close(both)

    def _ask(self, address: str, stub) -> None:
        paths = [*self.paths, *(probe.writing for probe in self.probes if probe.writing)]
        count = len(paths)
        request = messages.ResolveRequest(
            number=1, timeout_ms=int(TIMEOUT_S * 1000), paths="".join(paths), path_bytes=[len(path) for path in paths],
            namespaces=[self.ns], namespace_queries=[count], callers=[messages.Caller(uid=0)], caller_queries=[count],
        )  # fmt: skip
        answer = next(stub.Resolve(iter([request]), timeout=TIMEOUT_S))
        for path, code, found in zip(paths, answer.codes, answer.ids, strict=False):
            if code == 0:
                self._seen.setdefault(found, f"{path} at {address}")
        self.answers += len(answer.codes) > 0

    def _look(self, address: str, stub) -> None:
        """Every answer includes all earlier commits, so a version never decreases, whichever replica answers."""
        ids = messages.DirectoryIds(ids=list(self._seen)[-RECORDS:])
        answer = stub.Directories(
            messages.DirectoriesRequest(group=1, ids=ids, timeout_ms=int(TIMEOUT_S * 1000)), timeout=TIMEOUT_S
        )
        for found in answer.directories:
            newest, told_by = self._newest.get(found.id, (0, ""))
            if found.version < newest:
                self._older.append(
                    f"version {found.version} of directory {found.id} at {address} after {newest} at {told_by}"
                )
            else:
                self._newest[found.id] = (found.version, address)

    def wrong(self) -> list[str]:
        """Versions that decreased, and ids that PostgreSQL does not know."""
        if self.answers == 0:
            return ["no replica answered the watch for phantoms"]
        with session(self.cluster) as connection:
            known = connection.execute(
                "SELECT n.id FROM unnest(%s::bigint[]) n(id) WHERE n.id IN (SELECT m.id FROM mantle.meta m)"
                " OR n.id IN (SELECT r.id FROM mantle.requests r WHERE r.verb = 'mkdir')",
                (list(self._seen),),
            ).fetchall()
        phantoms = self._seen.keys() - {row[0] for row in known}
        return self._older[:1] + [
            f"a directory that PostgreSQL never had: {self._seen[one]} as {one}" for one in sorted(phantoms)
        ]


def close(channels: list[grpc.Channel]) -> None:
    for channel in channels:
        channel.close()


def paths_of(workload: Workload) -> list[str]:
    """Paths of one name below the workload's directory, and of two."""
    names = (*workload.mix.directories, *filter(None, [workload.mix.moved]))
    return [f"{workload.name}/{one}" for one in names] + [
        f"{workload.name}/{one}/{two}" for one in names for two in names
    ]
