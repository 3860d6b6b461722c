"""What `mantle size` answers for connections and memory, against a cluster under load, and against its settings."""

import json
import re
import subprocess
import threading
from collections import Counter
from pathlib import Path

from cluster.cluster import Cluster
from cluster.faults import tree
from cluster.layout import GATEWAYS
from cluster.member import MAX_CONNECTIONS
from stack.layout import CONFIG
from stack.poll import wait_until
from stack.status import resident_mib
from tests.support.rest import Rest

from .clients import rest_of, session

CLIENTS, OPERATIONS = 48, 1500
BOUND_S = 120.0
SESSIONS = """SELECT usename, count(*) FROM pg_stat_activity WHERE backend_type = 'client backend'
    AND pid <> pg_backend_pid() GROUP BY 1"""
# By default a statement for several shards opens up to 16 connections to a node that answers slowly.
ONE_CONNECTION_A_NODE = """SELECT rolname FROM pg_roles
    WHERE 'citus.max_adaptive_executor_pool_size=1' = ANY (rolconfig)"""
MIB = 2**20


def size(cluster: Cluster, directories: int) -> dict:
    shape = cluster.shape
    workers = shape.workers if shape.is_citus else 0
    options = {"objects": 0, "directories": directories, "gateways": GATEWAYS, "workers": workers}
    arguments = [word for name, value in options.items() for word in (f"--{name}", str(value))]
    command = [str(cluster.layout.binaries / "mantle"), "size", *arguments, "--json"]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True, env={}).stdout)


def test_the_settings_permit_what_is_needed(cluster: Cluster) -> None:
    needed = size(cluster, 0)["connections"]
    patroni = (CONFIG / "patroni.yml").read_text(encoding="utf-8")
    pooler = (CONFIG / "pgbouncer.ini").read_text(encoding="utf-8")
    number = lambda text, name: int(re.search(rf"^\s*{name}\s*[=:]\s*(\d+)", text, flags=re.MULTILINE)[1])
    assert needed["max_connections"] <= MAX_CONNECTIONS
    assert needed["max_wal_senders"] <= number(patroni, "max_wal_senders")
    assert needed["pooler_clients"] <= number(pooler, "max_client_conn")
    assert "max_prepared_transactions: $max_connections" in patroni
    for group in cluster.groups if cluster.shape.is_citus else ():
        with session(cluster, group) as server:
            assert {role for (role,) in server.execute(ONE_CONNECTION_A_NODE)} == {"gateway", "index"}


def work(rest: Rest, ns: str, number: int, done: Counter, end: threading.Event) -> None:
    """Makes directories, and looks up paths that do not exist, which PostgreSQL has to answer."""
    count = 0
    while not end.is_set():
        rest.call("PUT", f"/v1/ns/{ns}/dirs/w{number}/d{count}/?parents=true")
        rest.call("GET", f"/v1/ns/{ns}/entries/w{number}/d{count}/missing")
        count += 1
        done[number] = count


def test_sessions_and_memory_under_load(cluster: Cluster, ns: str) -> None:
    needed = size(cluster, 0)
    end, done = threading.Event(), Counter()
    clients = [rest_of(cluster, number % GATEWAYS) for number in range(CLIENTS)]
    threads = [
        threading.Thread(target=work, args=(client, ns, number, done, end), daemon=True)
        for number, client in enumerate(clients)
    ]
    most: Counter = Counter()
    servers = {group: session(cluster, group) for group in cluster.groups}
    for thread in threads:
        thread.start()

    def look() -> bool:
        for group, server in servers.items():
            for user, count in server.execute(SESSIONS).fetchall():
                most[group, user] = max(most[group, user], count)
        return sum(done.values()) >= OPERATIONS

    try:
        wait_until(look, f"{OPERATIONS} operations", BOUND_S)
        memory = {service.name: resident_mib(service.process.pid()) * MIB for service in cluster.services()}
        private = {group: private_bytes(server) for group, server in servers.items()}
    finally:
        end.set()
        for thread in threads:
            thread.join()
    connections, bytes_of = needed["connections"], needed["memory"]
    for group in cluster.groups:
        total = sum(count for (other, _), count in most.items() if other == group)
        assert total <= connections["max_connections"] - connections["reserved"], most
        assert most[group, "gateway"] <= connections["pooler_servers"] + connections["citus"], most
        assert most[group, "index"] <= connections["index"], most
        sessions, used = private[group]
        assert used <= sessions * bytes_of["sessions"] / (connections["max_connections"] - connections["reserved"])
    # The answer is no more than a few times what is there, or it would not help.
    busiest = max(sum(count for (other, _), count in most.items() if other == group) for group in cluster.groups)
    assert connections["max_connections"] <= 8 * busiest, most
    for services, answer in (
        (cluster.replicas, bytes_of["indexnode"] + 50 * MIB),  # earlier tests left directories
        (cluster.gateways, bytes_of["gateway"]),
        (cluster.etcd, bytes_of["etcd"]),
    ):
        for service in services:
            assert memory[service.name] <= answer, (service.name, memory[service.name], answer)
    assert all(resident_mib(pid) > 0 for member in cluster.members for pid in tree(member.process.pid())[:1])


def private_bytes(server) -> tuple[int, int]:
    """Number of sessions, and the private memory of all of them."""
    pids = [pid for (pid,) in server.execute("SELECT pid FROM pg_stat_activity WHERE backend_type = 'client backend'")]
    used = 0
    for pid in pids:
        try:
            text = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii")
        except OSError:  # it has ended
            continue
        used += sum(int(kib) * 1024 for kib in re.findall(r"^Private_(?:Clean|Dirty):\s+(\d+)", text, re.MULTILINE))
    return len(pids), used
