"""Volumes as a gateway uses them: it registers, mounts, leases, admits, puts, scans, and takes what was freed."""

import itertools
import uuid

import psycopg

from . import verbs
from .tree import Op
from .verbs import Answer, Key

SEGMENTS = 100
BLOCKS = 65_536
ADMIT = "SELECT mantle.admit_segments(%s, %s, %s, %s, %s)"
SCAN = "SELECT locator, freed FROM mantle.segment_locators(%s, %s, %s, %s, %s)"
TAKE = "SELECT horizon, locators FROM mantle.take_freed_delegated(%s, %s, %s, %s, %s, %s)"


class Volume:
    """A volume, and the mount that works with it. `session`: on the node whose tables of volumes count."""

    ids = itertools.count(1)

    def __init__(self, session: psycopg.Connection):
        self.session = session
        self.number = session.execute(
            "SELECT mantle.register_volume(mantle.cluster_id(), 'test', 4096, %s, %s)", (BLOCKS, SEGMENTS)
        ).fetchone()[0]
        self.mount_epoch = 0
        self.horizons: dict[int, str] = {}
        self.mount()

    def mount(self, session: psycopg.Connection | None = None) -> None:
        """A new mount."""
        self.session = session or self.session
        self.mount_epoch += 1
        self.record()

    def record(self) -> None:
        """Records the mount, also after a failover."""
        values = (self.number, self.mount_epoch, BLOCKS, SEGMENTS, f"gateway-{self.mount_epoch}")
        self.session.execute("SELECT mantle.mount_volume(mantle.cluster_id(), %s, %s, 4096, %s, %s, %s)", values)

    def nodes(self) -> list[int]:
        return [at for (at,) in self.session.execute("SELECT * FROM mantle.volume_nodes()")]

    def lease(self, count: int = 1, unused_only: bool = True) -> list[tuple[int, int, bool]]:
        """Segments, their epochs, and whether they were used."""
        call = "SELECT * FROM mantle.lease_segments(%s, %s, %s, %s)"
        return self.session.execute(call, (self.number, self.mount_epoch, count, unused_only)).fetchall()

    def take_over(self, segment: int) -> int:
        """The new epoch."""
        call = "SELECT epoch FROM mantle.take_over_segments(%s, %s, %s)"
        return self.session.execute(call, (self.number, self.mount_epoch, [segment])).fetchone()[0]

    def admit(self, segment: int, epoch: int, session: psycopg.Connection | None = None) -> None:
        """On every node."""
        for at in self.nodes():
            self.admit_at(at, segment, epoch, session)

    def admit_at(self, at: int, segment: int, epoch: int, session: psycopg.Connection | None = None) -> None:
        (session or self.session).execute(ADMIT, (at, self.number, self.mount_epoch, [segment], [epoch]))

    def new_segment(self) -> tuple[int, int]:
        """A segment that every node admits, and its epoch."""
        ((segment, epoch, _),) = self.lease()
        self.admit(segment, epoch)
        return segment, epoch

    def locator(self, segment: int, epoch: int) -> str:
        """Of bytes that nothing else names."""
        block = next(self.ids)
        return f"v1:{self.number}.{segment}.{epoch}/1.{block}/{block}+100"

    def scan(self, segment: int, epoch: int, page: int = 1000) -> set[str]:
        """What rows name, and what was freed and nobody has taken."""
        found: list[str] = []
        while True:
            after = found[-1] if found else None
            rows = self.session.execute(SCAN, (self.number, segment, epoch, after, page)).fetchall()
            found += [locator for locator, _ in rows]
            if len(rows) < page:
                assert found == sorted(found) and len(set(found)) == len(found)
                return set(found)

    def take(self, at: int, session: psycopg.Connection | None = None, limit: int = 1000) -> list[str]:
        """What was freed on a node, as far as it may be used again."""
        values = (at, self.number, self.mount_epoch, self.horizons.get(at), 0, limit)
        self.horizons[at], locators = (session or self.session).execute(TAKE, values).fetchone()
        return locators


def put(session: psycopg.Connection, ns: int, pid: int, name: str, id: int, locator: str) -> Answer:
    return verbs.call_one(session, ns, Op("put_object", pid, name, id, locator=locator), Key(uuid.uuid4()))


def locators(session: psycopg.Connection, ns: int) -> set[str]:
    """Of a namespace's objects that are in volumes."""
    rows = session.execute("SELECT m.locator FROM mantle.meta m WHERE m.ns = %s AND m.locator ^@ 'v1:'", (ns,))
    return {locator for (locator,) in rows}
