"""The environment file for users of the cluster, and a `patronictl` that finds its settings and passwords.

Invariant: passwords are stored in files of mode 0600 only; the command reads them when it runs.
"""

import shlex

from stack.environment import client_variables, write_file
from stack.load import shown
from stack.postgresql import database_url
from stack.terminal import say

from .cluster import Cluster
from .layout import COORDINATOR, PORT_ETCD, PORT_PGBOUNCER, PORT_POSTGRESQL

PATRONICTL = """#!/bin/sh
# patronictl with the cluster's settings: etcd, certificates, and the password of Patroni's REST interface.
PATRONI_RESTAPI_PASSWORD=$(cat {password}) || exit 1
export PATRONI_RESTAPI_PASSWORD
exec {patronictl} -c {config} "$@"
"""


def variables(cluster: Cluster) -> dict[str, str]:
    """The variables of S3 clients, curl, psql and the command line. PostgreSQL is reached by a gateway's HAProxy."""
    layout = cluster.layout
    session = lambda port: database_url(layout, "operator", layout.gateway_hosts[0].address, port)
    return {
        **client_variables(layout, cluster.gateways[0].url),
        "DATABASE_URL": session(PORT_POSTGRESQL),
        "MANTLE_POOLER_URL": session(PORT_PGBOUNCER),
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
    own = layout.binaries / "patronictl"
    own.write_text(PATRONICTL.format(**quoted))
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
