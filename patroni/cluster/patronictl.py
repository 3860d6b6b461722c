"""Runs Patroni's command line as a DBA types it, and reads its output.

Invariant: the leader of a group is always read from Patroni (etcd), never assumed.
"""

import json
import os
import subprocess

from stack import http, terminal
from stack.poll import wait_until

from . import certificates
from .layout import ClusterLayout
from .member import Member

SWITCHOVER_BOUND_S = 60.0


def run(layout: ClusterLayout, member: Member, *arguments: str) -> str:
    """Runs `patronictl` with a member's settings (etcd, certificates) and returns its output."""
    command = [str(layout.patroni / "bin" / "patronictl"), "-c", str(member.config), *arguments]
    environment = {**os.environ, **member.environment(), "LC_ALL": "C.UTF-8"}
    return terminal.run(command, "patronictl", env=environment, stdin=subprocess.DEVNULL)


def members(member: Member) -> list[dict]:
    """A group's members by Patroni: name, role, state, timeline, lag. Empty when this one does not answer."""
    status, body = http.call("GET", f"{member.rest}/cluster", tls=certificates.client_context(member.layout))
    return json.loads(body)["members"] if status == 200 else []


def last_heartbeat(member: Member) -> int:
    """When this Patroni's last loop ran, in seconds since 1970; 0 when it does not answer."""
    status, body = http.call("GET", f"{member.rest}/patroni", tls=certificates.client_context(member.layout))
    return json.loads(body).get("dcs_last_seen", 0) if status in (200, 503) else 0


def await_leader(group: list[Member], bound_s: float, other_than: Member | None = None) -> Member:
    """The group's primary, once it accepts writes."""
    candidates = [member for member in group if member is not other_than]
    what = f"a primary among {', '.join(member.name for member in candidates)}"
    return wait_until(lambda: next((member for member in candidates if member.answers("primary")), None), what, bound_s)


def switchover(layout: ClusterLayout, group: list[Member], to: Member | None = None) -> tuple[Member, Member]:
    """A planned one: the primary hands over to its synchronous standby. Returns the old and the new primary."""
    old = await_leader(group, SWITCHOVER_BOUND_S)
    new = to or next(member for member in group if member is not old)
    where = ["--group", str(old.group)] if layout.shape.is_citus else []
    servers = ["--leader", old.name, "--candidate", new.name]
    run(layout, old, "switchover", *where, *servers, "--scheduled", "now", "--force")
    return old, await_leader(group, SWITCHOVER_BOUND_S, other_than=old)
