"""The certificates that no process of Mantle's reports: patroni/monitoring/certificates.sh says when they expire, and
whether the program has loaded what is in its file. docs/runbooks.md, "Replacing certificates".
"""

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from cluster import certificates, monitoring
from cluster.cluster import Cluster
from cluster.layout import PORT_ETCD, PORT_ETCD_PEER, PORT_PATRONI, PORT_PGBOUNCER, PORT_POSTGRESQL
from stack import http
from stack.poll import wait_until

BOUND_S = 60.0
DAY_S = 86_400
SCRIPT = monitoring.SOURCE / "certificates.sh"
EXPIRES = 'mantle_certificate_expires_seconds{{file="{}"}}'
LOADED = 'mantle_certificate_loaded{{file="{}",address="{}"}}'


def shown(cluster: Cluster) -> dict[str, float]:
    """The samples of a check that is made now."""
    return http.samples(monitoring.check_certificates(cluster).read_text(encoding="utf-8"))


def loaded(cluster: Cluster, file: Path, addresses: list[str]) -> list[float]:
    page = shown(cluster)
    return [page[LOADED.format(file, address)] for address in addresses]


def test_every_certificate_is_watched(cluster: Cluster) -> None:
    """No file is left out, and every port shows what is in its file."""
    page, now = shown(cluster), time.time()
    of_processes = {host.name for host in (*cluster.layout.index_hosts, *cluster.layout.gateway_hosts)}
    of_processes |= {f"{name}-https" for name in (*of_processes, *(host.name for host in cluster.layout.store_hosts))}
    # Other tests make some of their own.
    ours = {certificates.ETCD_AUTHORITY, certificates.AUTHORITY, certificates.ADMINISTRATOR, "etcd", "patroni"}
    ours |= {host.name for host in cluster.layout.database_hosts}
    there = {path.stem for path in cluster.layout.certificates.glob("*.crt")}
    assert ours <= there
    for name in ours:
        assert page[EXPIRES.format(certificates.path(cluster.layout, f"{name}.crt"))] > now + DAY_S, name
    unknown = there - ours - of_processes - {"proxy"}
    assert {name for name in unknown if not name.startswith("test-")} == set(), "neither watched nor reported"
    states = {sample: value for sample, value in page.items() if sample.startswith("mantle_certificate_loaded")}
    assert len(states) == 2 * len(cluster.layout.etcd_hosts) + 3 * len(cluster.layout.database_hosts)
    assert set(states.values()) == {1.0}, states
    assert abs(page["mantle_certificates_checked_seconds"] - now) < BOUND_S


def test_a_certificate_that_is_not_loaded_is_noticed(cluster: Cluster) -> None:
    """PostgreSQL, Patroni and PgBouncer are told by a reload."""
    layout, pooler = cluster.layout, cluster.poolers[-1]
    member = cluster.members[-1]
    address = member.host.address
    ports = [f"postgres://{address}:{port}" for port in (PORT_POSTGRESQL, PORT_PGBOUNCER)]
    ports.append(f"{address}:{PORT_PATRONI}")
    file = certificates.path(layout, f"{member.host.name}.crt")
    assert loaded(cluster, file, ports) == [1, 1, 1]
    certificates.make_for(layout, cluster.account, member.host, replaces=True)
    assert loaded(cluster, file, ports) == [0, 0, 0]
    for service in (member, pooler):
        os.kill(service.process.pid(), signal.SIGHUP)
    wait_until(lambda: loaded(cluster, file, ports) == [1, 1, 1], "the new certificate on every port", BOUND_S)


def test_etcd_loads_its_certificate_by_itself(cluster: Cluster) -> None:
    layout = cluster.layout
    file = certificates.path(layout, "etcd.crt")
    ports = [f"{host.address}:{port}" for host in layout.etcd_hosts for port in (PORT_ETCD, PORT_ETCD_PEER)]
    before = file.read_text()
    certificates.make_etcd(layout, cluster.account, replaces=True)
    assert file.read_text() != before
    assert set(loaded(cluster, file, ports)) == {1.0}
    assert all(member.is_ready() for member in cluster.etcd)


def run(folder: Path, text: str) -> tuple[int, dict[str, float]]:
    """Exit code and samples of a run with this list."""
    given, page = folder / "list", folder / "page.prom"
    given.write_text(text)
    page.unlink(missing_ok=True)
    done = subprocess.run([SCRIPT, given, page], capture_output=True, text=True, check=False)
    return done.returncode, http.samples(page.read_text()) if page.exists() else {}


def make(path: Path, days: int) -> Path:
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-noenc"]
    command += ["-days", str(days), "-subj", "/CN=test", "-keyout", f"{path}.key", "-out", str(path)]
    subprocess.run(command, capture_output=True, check=True)
    return path


def test_the_first_certificate_to_expire_counts(tmp_path: Path) -> None:
    now = time.time()
    soon, late = make(tmp_path / "soon.crt", 3), make(tmp_path / "late.crt", 300)
    both, proxys, damaged, empty = (tmp_path / name for name in ("both.crt", "haproxy.pem", "damaged.crt", "empty.crt"))
    both.write_text(late.read_text() + soon.read_text())
    proxys.write_text(late.read_text() + Path(f"{late}.key").read_text())
    damaged.write_text("-----BEGIN CERTIFICATE-----\nMA==\n-----END CERTIFICATE-----\n" + late.read_text())
    empty.touch()
    files = [soon, late, both, proxys, damaged, empty, tmp_path / "missing.crt"]
    code, page = run(tmp_path, "# a comment\n\n" + "\n".join(map(str, files)))
    days = [round((page[EXPIRES.format(file)] - now) / DAY_S) for file in files]
    unreadable = round(-now / DAY_S)
    assert (code, days) == (0, [3, 300, 3, 300, *[unreadable] * 3])


def test_a_port_without_an_answer_shows_nothing(tmp_path: Path) -> None:
    file = make(tmp_path / "own.crt", 3)
    code, page = run(tmp_path, f"{file} 127.0.0.1:1 postgres://127.0.0.1:1\n")
    assert (code, [page[LOADED.format(file, at)] for at in ("127.0.0.1:1", "postgres://127.0.0.1:1")]) == (0, [0, 0])


@pytest.mark.parametrize("text", ["/a.crt\n/b.crt\n/a.crt 127.0.0.1:1\n", None])
def test_a_list_that_is_not_good_leaves_no_page(tmp_path: Path, text: str | None) -> None:
    """The page would be refused with a series in it twice, and would look checked without a list."""
    if text is None:
        page = tmp_path / "page.prom"
        done = subprocess.run([SCRIPT, tmp_path / "no-list", page], capture_output=True, check=False)
        assert (done.returncode, page.exists()) == (2, False)
    else:
        assert run(tmp_path, text) == (2, {})
