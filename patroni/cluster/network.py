"""The network of the hosts: a namespace for each, one for the switch that joins them, and a link to this machine.

Invariant: everything is named after the cluster's tag, and only objects of that name are changed or removed. The switch
has a namespace of its own, so that this machine's firewall and bridges do not affect it. A partition moves hosts to
another bridge. They reach each other and no other host. Packets are lost, not refused, as when a cable is cut.
Source: ip-netns(8), ip-link(8).
"""

import itertools
import subprocess
from collections.abc import Iterable

from stack.failure import Failure
from stack.layout import Host
from stack.terminal import run

from .layout import ClusterLayout

MAIN = "lan"
TRIED_MAX = 64


def is_permitted() -> bool:
    """Tries to make a network namespace, unnamed and gone at once."""
    command = ["unshare", "--net", "ip", "link", "add", "lan", "type", "bridge"]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def free_network() -> str:
    """The first three parts of addresses that this machine has no route to, from the range reserved for tests."""
    for third in range(TRIED_MAX):
        network = f"198.18.{third}"
        shown = run(["ip", "-4", "route", "show", "to", "match", f"{network}.1"], "ip route")
        if all(line.startswith("default") for line in shown.splitlines()):
            return network
    raise Failure("no network in 198.18.0.0/15 is free")


class Network:
    """The network of one cluster."""

    def __init__(self, layout: ClusterLayout):
        self.layout = layout
        self.switch = f"mantle-{layout.tag}-switch"
        self.islands = itertools.count(1)

    @property
    def is_real(self) -> bool:
        return self.layout.shape.has_namespaces

    def up(self) -> None:
        """Makes what is missing."""
        if not self.is_real:
            return
        there = self._namespaces()
        if self.switch not in there:
            ours = f"mantle-{self.layout.tag}"
            run(["ip", "netns", "add", self.switch], "making a network namespace")
            self._batch(self.switch, [f"link add {MAIN} type bridge", f"link set {MAIN} up", "link set lo up"])
            self._batch(None, [
                f"link add {ours} type veth peer name us netns {self.switch}",
                f"addr add {self.layout.own_address}/24 dev {ours}", f"link set {ours} up",
            ])  # fmt: skip
            self._batch(self.switch, [f"link set us master {MAIN} up"])
        for host in self.layout.hosts:
            self.add(host, there)

    def add(self, host: Host, there: Iterable[str] = ()) -> None:
        """Makes a host's namespace and its link, unless they exist."""
        if not self.is_real or host.namespace in there:
            return
        run(["ip", "netns", "add", host.namespace], "making a network namespace")
        self._batch(self.switch, [
            f"link add {host.name} type veth peer name eth0 netns {host.namespace}",
            f"link set {host.name} master {MAIN} up",
        ])  # fmt: skip
        self._batch(host.namespace, ["link set lo up", f"addr add {host.address}/24 dev eth0", "link set eth0 up"])

    def down(self) -> None:
        """Removes the namespaces, and their links with them."""
        for namespace in self._namespaces():
            run(["ip", "netns", "delete", namespace], "removing a network namespace")

    def _namespaces(self) -> set[str]:
        shown = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=False)
        names = (line.split()[0] for line in shown.stdout.splitlines() if line)
        return {name for name in names if name.startswith(f"mantle-{self.layout.tag}-")}

    def partition(self, *hosts: Host) -> None:
        """These hosts reach each other and no other host."""
        if not self.is_real:
            raise Failure("hosts cannot be cut off here: network namespaces are not permitted on this machine")
        island = f"island{next(self.islands)}"
        moves = [f"link set {host.name} master {island}" for host in hosts]
        self._batch(self.switch, [f"link add {island} type bridge", f"link set {island} up", *moves])

    def heal(self) -> None:
        """Every host reaches every other."""
        if not self.is_real or self.switch not in self._namespaces():
            return
        self._batch(self.switch, [f"link set {host.name} master {MAIN} up" for host in self.layout.hosts])
        shown = run(["ip", "-n", self.switch, "-brief", "link", "show", "type", "bridge"], "ip link")
        islands = [line.split()[0] for line in shown.splitlines() if line.startswith("island")]
        self._batch(self.switch, [f"link delete {island}" for island in islands])

    @staticmethod
    def _batch(namespace: str | None, commands: list[str]) -> None:
        if commands:
            where = ["-n", namespace] if namespace else []
            run(["ip", *where, "-batch", "-"], "setting the network up", input="\n".join(commands) + "\n")
