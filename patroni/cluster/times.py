"""The time budget (times.toml), and the relations between its numbers.

Invariant: no template and no program of the cluster contains a time of its own. Constants that are compiled into the
services are compared with their sources. If a relation does not hold, nothing starts.
"""

import re
import tomllib
from pathlib import Path

from stack.failure import Failure
from stack.layout import REPOSITORY

TABLE = REPOSITORY / "patroni" / "times.toml"
# The source of each compiled constant, and its name there.
COMPILED = {
    "lease_s": ("indexnode/types/src/limits.rs", "LEASE_S"),
    "tombstone_retention_s": ("indexnode/types/src/limits.rs", "TOMBSTONE_RETENTION_MIN_S"),
    "shard_map_age_s": ("gateway/src/store/nodes.rs", "MAP_AGE_MAX"),
    "gateway_connect_s": ("gateway/src/store/pool.rs", "CONNECT_TIMEOUT"),
    "standby_recheck_s": ("indexnode/src/source/standby_gate.rs", "RECHECK"),
    "source_retry_s": ("indexnode/src/source/leader.rs", "RETRY_MAX"),
    "epoch_lease_s": ("extension/src/settings.rs", "EPOCH_LEASE_MS"),
    "source_connect_s": ("indexnode/src/postgres/database.rs", "CONNECT_TIMEOUT"),
}
# What may follow the name of such a constant: seconds as a number or as a Duration, or a setting in milliseconds.
VALUE = (
    r"\b{}: (?:u64 = (\d+)|Duration = Duration::from_secs\((\d+)\)"
    r"|GucSetting<i32> = GucSetting::<i32>::new\((\d+)_000\));"
)

Times = dict[str, dict[str, int]]


def read(table: Path = TABLE) -> Times:
    """The table, if its relations hold."""
    times = tomllib.loads(table.read_text(encoding="utf-8"))
    broken = [why for holds, why in relations(times) if not holds]
    if broken:
        raise Failure(f"{table} breaks its own rules:\n" + "\n".join(f"    {why}" for why in broken))
    return times


def of(*sections: str) -> dict[str, int]:
    """The numbers of some sections, by name, for templates."""
    times = read()
    return {name: value for section in sections for name, value in times[section].items()}


def failover_s(t: Times) -> float:
    """The longest time from the death of a primary's machine until clients reach the next primary, without further
    faults.
    """
    election_s = t["etcd"]["election_timeout_ms"] * 2 / 1000  # when the etcd leader was on that machine
    found_s = t["haproxy"]["check_interval_ms"] * 2 / 1000
    promoted_s = t["patroni"]["ttl_s"] + 2 * t["patroni"]["loop_wait_s"] + election_s
    return promoted_s + found_s + t["compiled"]["shard_map_age_s"]


def relations(t: Times) -> list[tuple[bool, str]]:
    """Each relation with its reason."""
    patroni, etcd, haproxy, pgbouncer = t["patroni"], t["etcd"], t["haproxy"], t["pgbouncer"]
    gateway, index, compiled, citus = t["gateway"], t["indexnode"], t["compiled"], t["citus"]
    ttl, loop, retry = patroni["ttl_s"], patroni["loop_wait_s"], patroni["retry_timeout_s"]
    detection_s = haproxy["fall"] * haproxy["check_interval_ms"] / 1000 + haproxy["check_timeout_ms"] / 1000
    return [
        (ttl >= 20 and loop >= 1 and retry >= 3,
         "Patroni takes no ttl_s under 20, loop_wait_s under 1, retry_timeout_s under 3"),
        (ttl >= loop + 2 * retry,
         "ttl_s ≥ loop_wait_s + 2 · retry_timeout_s, or a leader loses its key while it still asks etcd"),
        (etcd["election_timeout_ms"] >= 5 * etcd["heartbeat_interval_ms"],
         "etcd: election_timeout_ms ≥ 5 · heartbeat_interval_ms"),
        (2 * etcd["election_timeout_ms"] < 1000 * retry,
         "an election of etcd (≤ 2 · election_timeout_ms) ends within Patroni's retry_timeout_s"),
        (detection_s < ttl, "HAProxy takes a dead primary out before another one is promoted (ttl_s)"),
        (compiled["standby_recheck_s"] < loop,
         "an IndexNode notices a synchronous standby before Patroni may promote it: standby_recheck_s < loop_wait_s"),
        (t["postgresql"]["wal_sender_timeout_s"] > ttl,
         "a standby is not cut off by a stall that Patroni forgives: wal_sender_timeout_s > ttl_s"),
        (t["postgresql"]["client_silence_s"] > ttl, "nor is any other client: client_silence_s > ttl_s"),
        (citus["node_connect_timeout_s"] + citus["node_silence_s"] + citus["node_probe_s"] < ttl,
         "no session waits for a lost node when its standby is promoted, so nothing delays its entry in pg_dist_node: "
         "node_connect_timeout_s + node_silence_s + node_probe_s < ttl_s"),
        (pgbouncer["server_connect_timeout_s"] + pgbouncer["server_login_retry_s"] < pgbouncer["query_wait_timeout_s"],
         "a PgBouncer tries its server more than once before it refuses: "
         "server_connect_timeout_s + server_login_retry_s < query_wait_timeout_s"),
        (index["election_timeout_ms"] >= 3 * index["heartbeat_ms"],
         "IndexNode: election_timeout_ms ≥ 3 · heartbeat_ms"),
        (compiled["epoch_lease_s"] > failover_s(t),
         "lookups go on while PostgreSQL fails over: epoch_lease_s > ttl_s and what follows it"),
        (gateway["rename_lock_ms"] <= index["lock_ms_max"],
         "a gateway asks for no longer lock than an IndexNode gives: rename_lock_ms ≤ lock_ms_max"),
        (gateway["await_timeout_ms"] > 4 * index["election_timeout_ms"],
         "an acknowledgement outlives an IndexNode's election: await_timeout_ms > 4 · election_timeout_ms"),
        (gateway["connection_wait_ms"] >= 1000 * compiled["gateway_connect_s"],
         "a gateway waits for a connection as long as making one may take: connection_wait_ms ≥ gateway_connect_s"),
        (1000 * compiled["lease_s"] > gateway["answer_wait_ms"],
         "what was resolved is good for a whole request: lease_s > answer_wait_ms"),
        (gateway["answer_wait_ms"] >= gateway["await_timeout_ms"] + gateway["connection_wait_ms"],
         "an answer says what was not there: answer_wait_ms ≥ await_timeout_ms + connection_wait_ms"),
        (compiled["tombstone_retention_s"] >= 3 * compiled["lease_s"], "a tombstone outlives every lease three times"),
        (t["client"]["retry_s"] > failover_s(t) + gateway["await_timeout_ms"] / 1000,
         f"a client repeats for longer than a failover takes ({failover_s(t):.0f} s and an acknowledgement): retry_s"),
    ]  # fmt: skip


def differing_from_sources(t: Times) -> list[str]:
    """Compiled constants that differ from the sources."""
    found = []
    for name, (source, constant) in COMPILED.items():
        there = re.search(VALUE.format(constant), (REPOSITORY / source).read_text(encoding="utf-8"))
        value = there[there.lastindex] if there else "not found"
        if value != str(t["compiled"][name]):
            found.append(f"{name}: {t['compiled'][name]} in {TABLE.name}, {value} in {source}")
    return found + [f"{name}: no source is named" for name in t["compiled"] if name not in COMPILED]
