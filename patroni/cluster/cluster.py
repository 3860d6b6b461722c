"""All services of a cluster together: start, stop, leaders, changes of its members."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

from stack import secret
from stack.deployment import Deployment
from stack.failure import Failure
from stack.layout import Host
from stack.poll import wait_until
from stack.process import Process
from stack.service import Service, start_each
from stack.terminal import step

from . import certificates, faults, patronictl, programs, tafdb, template, times
from .etcd import Etcd
from .layout import COORDINATOR, GATEWAYS, VOTERS, ClusterLayout, Shape, keep_shape, read_shape
from .member import Member
from .network import Network
from .services import ClusterGateway, Pooler, Proxy, Replica
from .store import Store

READY_BOUND_S = 60.0
LEADER_BOUND_S = 120.0  # includes initdb on a busy machine, or recovery after a crash
STANDBY_BOUND_S = 120.0


class Cluster(Deployment):
    """One cluster, given by its directory. `shape` is for a new one."""

    SECRETS = (*secret.NAMES, "replication", "rewind", "restapi")

    def __init__(self, folder: Path, shape: Shape | None = None):
        place = folder.absolute().resolve()
        kept = read_shape(place) or shape
        if kept is None:
            raise Failure(f"there is no cluster in {folder}: `make cluster` makes one")
        super().__init__(folder, ClusterLayout(place, 0, kept))

    def _compose(self, layout: ClusterLayout) -> None:
        self.layout, self.shape, account = layout, layout.shape, self.account
        self.network = Network(layout)
        self.etcd = [Etcd(layout, account, host) for host in layout.etcd_hosts]
        self.store = Store(layout, account) if self.shape.has_store else None
        self.groups = {
            group: [Member(layout, account, group, host) for host in layout.group_hosts(group)]
            for group in self.shape.groups
        }
        self.poolers = [Pooler(layout, account, member, f"{member.name}-pgbouncer") for member in self.members]
        self.proxies = [Proxy(layout, account, host) for host in (*layout.index_hosts, *layout.gateway_hosts)]
        self.replicas = [Replica(layout, account, number) for number in range(1, len(layout.index_hosts) + 1)]
        self.gateways = [ClusterGateway(layout, account, number) for number in range(1, GATEWAYS + 1)]

    @property
    def members(self) -> list[Member]:
        return [member for group in self.groups.values() for member in group]

    def services(self) -> list[Service]:
        store = self.store.services() if self.store else []
        return [*self.etcd, *store, *self.members, *self.poolers, *self.proxies, *self.replicas, *self.gateways]

    def services_on(self, host: Host) -> list[Service]:
        """The services of a host, in the order of their start."""
        return [service for service in self.services() if service.host == host]

    @property
    def processes(self) -> dict[str, Process]:
        """Every process that the launcher starts, by name, in the order of their start."""
        return {service.name: service.process for service in self.services()}

    def _prepare(self) -> None:
        super()._prepare()
        keep_shape(self.layout.folder, self.shape)
        certificates.make_missing(self.layout, self.account)
        if self.store:
            self.store.prepare()
        programs.renew(self.layout, self.stop)
        rotation = template.filled("logrotate.conf", {"logs": self.layout.logs})
        (self.layout.config / "logrotate.conf").write_text(
            rotation, encoding="utf-8"
        )  # logrotate wants a file of root's

    def _start_all(self) -> None:
        with step(f"{len(self.layout.hosts)} hosts"):
            self.network.up()
        # First, and alone: busy disks and processors delay its first election.
        with step("etcd"):
            start_each(self.etcd)
        # The store and the others need nothing of each other until the gateways start.
        with ThreadPoolExecutor(max_workers=1) as beside:
            store = beside.submit(self.store.start) if self.store else None
            self._start_metadata()
            if store:
                with step("the store of objects' bytes, which began beside them"):
                    store.result()
        with step("gateways"):
            start_each(self.gateways)
        with step("standbys that may be promoted"):
            self.await_settled()

    def _start_metadata(self) -> None:
        """PostgreSQL and the index."""
        with step(f"PostgreSQL under Patroni, groups: {len(self.groups)}"):
            self._start_members()
        with step("database"):
            leader = self.leader(COORDINATOR)
            if self.shape.is_citus:
                tafdb.await_workers(leader, self.shape)
            tafdb.set_up(leader, self.shape)
        with step("PgBouncer and HAProxy"):
            start_each([*self.poolers, *self.proxies])
        with step("IndexNodes"):
            start_each(self.replicas[:VOTERS])
            start_each(self.replicas[VOTERS:])

    def _start_members(self) -> None:
        """A new group's first server makes its data, and the others copy it. Later Patroni decides which one leads."""
        new = [group for group in self.groups.values() if not any(member.data.exists() for member in group)]
        for member in self.members:
            if member.process.pid() is None:
                member.prepare()
                if not any(member in group[1:] for group in new):
                    member.start()
        for group in new:
            patronictl.await_leader(group[:1], LEADER_BOUND_S)
            for member in group[1:]:
                member.start()
        for number in self.groups:
            self.leader(number, LEADER_BOUND_S)
            self.await_standbys(number)

    def add_worker(self) -> int:
        """Adds a group of servers on new hosts, which joins by itself. Returns its number. Call within `alone`."""
        if not self.shape.is_citus:
            raise Failure("without Citus there is one group, and no workers")
        with step(f"worker {len(self.groups)}"):
            self._compose(replace(self.layout, shape=replace(self.shape, workers=self.shape.workers + 1)))
            keep_shape(self.layout.folder, self.shape)
            certificates.make_missing(self.layout, self.account)
            self.network.up()
            self._start_members()
            tafdb.await_workers(self.leader(COORDINATOR), self.shape)
            start_each(self.poolers)
        return self.shape.workers

    def stop(self, except_for: frozenset[str] = frozenset()) -> list[str]:
        """Stops everything that runs, clients first; returns the names. Namespaces go with the last process."""
        faults.thaw(list(self.processes.values()), self.members)
        chosen = [service for service in reversed(self.services()) if service.name not in except_for]
        servers = [service for service in chosen if isinstance(service, Member) and service.is_there()]
        others = [s for s in chosen if not isinstance(s, Member) and s.process.pid() is not None]
        for service in others:
            if not isinstance(service, Etcd):
                service.process.stop()
        with ThreadPoolExecutor(max_workers=len(self.members)) as pool:  # each takes some time
            list(pool.map(Member.stop, servers))
        for service in others:
            service.process.stop()  # etcd, which the servers need to the end
        if not except_for:
            self.network.down()
        return [service.name for service in (*others, *servers)]

    def leader(self, group: int, bound_s: float = READY_BOUND_S, other_than: Member | None = None) -> Member:
        """The primary that accepts writes, once there is one."""
        return patronictl.await_leader(self.groups[group], bound_s, other_than)

    def await_standbys(self, group: int, bound_s: float = STANDBY_BOUND_S) -> None:
        """Waits until a group has a synchronous standby, and every standby streams."""
        wait_until(lambda: self._has_standbys(group), f"the standbys of group {group}", bound_s)

    def await_protection(self, group: int, bound_s: float = STANDBY_BOUND_S) -> None:
        """Waits until a failover of a group loses no acknowledged change, and its next primary has the index's slot."""
        self.await_standbys(group, bound_s)
        (wanted,) = wait_until(lambda: self._wanted_position(group), f"group {group}'s primary to answer", bound_s)
        wait_until(lambda: self._is_protected(group, wanted), f"the slot on every server of group {group}", bound_s)

    def await_settled(self) -> None:
        """Waits until every group is protected, and still is after Patroni's next heartbeats.

        Patroni restarts a standby to create the slot there, and again when an IndexNode has recreated the slot. The
        primary's Patroni sees that one heartbeat later, and then has no synchronous standby for some seconds.
        """
        look_s = 2 * times.of("patroni")["loop_wait_s"]

        def are_settled() -> bool:
            for group in self.groups:
                self.await_protection(group)
            leaders = [self.leader(group) for group in self.groups]
            before = [patronictl.last_heartbeat(leader) for leader in leaders]
            for leader, at in zip(leaders, before, strict=True):
                has_beaten = lambda: patronictl.last_heartbeat(leader) > at + look_s
                wait_until(has_beaten, f"heartbeats of {leader.name}", READY_BOUND_S)
            return all(self._has_standbys(group) and self._is_protected(group, 0) for group in self.groups)

        wait_until(are_settled, "the standbys to settle", STANDBY_BOUND_S)

    def _has_standbys(self, group: int) -> bool:
        states = [(row["role"], row["state"]) for row in patronictl.members(self.leader(group))]
        rest = [state for role, state in states if role != "leader"]
        is_complete = len(rest) == self.shape.standbys and set(rest) == {"streaming"}
        return is_complete and ("sync_standby", "streaming") in states

    def _wanted_position(self, group: int) -> tuple[int] | None:
        """The slot's position on the primary; None when the primary does not answer in time."""
        try:
            return (self._slot_position(self.leader(group)),)
        except Failure:
            return None

    def _is_protected(self, group: int, wanted: int) -> bool:
        """Checks for a synchronous standby, and that every server has the slot at `wanted` or later."""
        try:
            leader = self.leader(group)
            flushed = leader.psql("SELECT required AND flushed IS NOT NULL FROM mantle.standby_flush()").strip() == "t"
            return flushed and all(self._slot_position(member) >= wanted for member in self.groups[group])
        except Failure:
            return False

    @staticmethod
    def _slot_position(member: Member) -> int:
        return member.slot_position() if member.is_source else 0

    def switchover(self, group: int) -> tuple[Member, Member]:
        """A planned one. Returns the old and the new primary."""
        return patronictl.switchover(self.layout, self.groups[group])
