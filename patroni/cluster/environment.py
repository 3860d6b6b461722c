"""The environment file for users of the cluster, a `patronictl` that finds its settings and passwords, and a
`systemctl` that knows its hosts.

Invariant: passwords are stored in files of mode 0600 only; the commands read them when they run.
"""

import shlex
import sys
from urllib.parse import quote

from stack import servers
from stack.environment import client_variables, write_file, write_passwords
from stack.layout import DATABASE, REPOSITORY
from stack.load import shown
from stack.terminal import say

from . import certificates
from .cluster import Cluster
from .layout import COORDINATOR, PORT_ETCD, PORT_PGBOUNCER, PORT_POSTGRESQL

PATRONICTL = """#!/bin/sh
# patronictl with the cluster's settings: etcd, certificates, and the password of Patroni's REST interface.
PATRONI_RESTAPI_PASSWORD=$(cat {password}) || exit 1
export PATRONI_RESTAPI_PASSWORD
exec {patronictl} -c {config} "$@"
"""

SYSTEMCTL = """#!/bin/sh
# systemctl --host HOST start|stop|restart|is-active UNIT…: of the cluster's hosts, which have no systemd of their own.
# All else is this machine's.
if [ "$1" = --host ]; then
    shift
    MANTLE_PG={server} PYTHONDONTWRITEBYTECODE=1 PYTHONPATH={launchers} exec {python} -m cluster.units {folder} "$@"
fi
exec /usr/bin/systemctl "$@"
"""


def variables(cluster: Cluster) -> dict[str, str]:
    """The variables of S3 clients, curl, psql and the command line. PostgreSQL is reached by a gateway's HAProxy."""
    layout = cluster.layout
    authority = certificates.path(layout, f"{certificates.AUTHORITY}.crt")
    own = lambda suffix: str(certificates.path(layout, f"{certificates.ADMINISTRATOR}.{suffix}"))
    # The name is the servers', the address the proxy's. The password is in a file of libpq's.
    tls = f"hostaddr={layout.gateway_hosts[0].address}&sslmode=verify-full&sslrootcert={quote(str(authority))}"
    session = lambda role, port: f"postgresql://{role}@{certificates.TAFDB}:{port}/{DATABASE}?{tls}"
    # PgBouncer knows no channel binding.
    bound = lambda role: f"{session(role, PORT_POSTGRESQL)}&channel_binding=require"
    return {
        **client_variables(layout, cluster.gateways[0].url),
        "AWS_CA_BUNDLE": str(authority),
        "CURL_CA_BUNDLE": str(authority),
        "DATABASE_URL": bound("operator"),
        "MANTLE_POOLER_URL": session("operator", PORT_PGBOUNCER),
        "MANTLE_IMPORT_URL": bound("importer"),
        "SUPERUSER_URL": bound("postgres"),
        "PGPASSFILE": write_passwords(
            layout, {"operator": "operator", "importer": "importer", "postgres": "superuser"}
        ),
        # Whoever may read these may change the members of the index groups.
        "MANTLE_TLS_CA": str(authority),
        "MANTLE_TLS_CERTIFICATE": own("crt"),
        "MANTLE_TLS_KEY": own("key"),
        "MANTLE_INDEX": ",".join(layout.index_addresses),
        "ETCDCTL_API": "3",
        "ETCDCTL_ENDPOINTS": ",".join(f"https://{host.address}:{PORT_ETCD}" for host in layout.etcd_hosts),
        # Patroni's certificate: whoever may read it may promote a server.
        "ETCDCTL_CACERT": str(layout.certificates / "ca.crt"),
        "ETCDCTL_CERT": str(layout.certificates / "patroni.crt"),
        "ETCDCTL_KEY": str(layout.certificates / "patroni.key"),
    }


def write(cluster: Cluster) -> None:
    layout = cluster.layout
    config = cluster.groups[COORDINATOR][0].config
    values = {"password": layout.secrets / "restapi", "patronictl": layout.patroni / "bin" / "patronictl"}
    quoted = {name: shlex.quote(str(path)) for name, path in {**values, "config": config}.items()}
    launcher = {
        "launchers": REPOSITORY / "patroni", "python": sys.executable, "folder": cluster.given_folder,
        "server": servers.chosen(),
    }  # fmt: skip
    quoted |= {name: shlex.quote(str(path)) for name, path in launcher.items()}
    for name, script in {"patronictl": PATRONICTL, "systemctl": SYSTEMCTL}.items():
        own = layout.binaries / name
        own.write_text(script.format(**quoted))
        own.chmod(0o755)
    write_file(layout, variables(cluster), {})


def suggest(cluster: Cluster) -> None:
    urls = " and ".join(gateway.url for gateway in cluster.gateways)
    group = " --group 1" if cluster.shape.is_citus else ""
    say(f"""
Mantle runs at {urls} (S3 and /v1). Try:

  . {shown(cluster.given_folder / "env")}
  patronictl list
  mantle members
  patronictl switchover{group}      # another server becomes the primary; the services go on

make cluster-status shows everything; make cluster-stop ends it and keeps the data; make clean removes it.""")
