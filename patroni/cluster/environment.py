"""The environment file for users of the cluster, and a `patronictl` that finds its settings and passwords.

Invariant: passwords are stored in files of mode 0600 only; the command reads them when it runs.
"""

import shlex

from stack import secret
from stack.environment import write_exports
from stack.layout import DATABASE, REGION
from stack.load import shown
from stack.terminal import say

from .cluster import Cluster
from .layout import COORDINATOR, PORT_PGBOUNCER, PORT_POSTGRESQL

PATRONICTL = """#!/bin/sh
# patronictl with the cluster's settings: etcd, certificates, and the password of Patroni's REST interface.
PATRONI_RESTAPI_PASSWORD=$(cat {password}) || exit 1
export PATRONI_RESTAPI_PASSWORD
exec {patronictl} -c {config} "$@"
"""


def variables(cluster: Cluster) -> dict[str, str]:
    """The variables of S3 clients, curl, psql and the command line. DATABASE_URL leads through a gateway's
    HAProxy.
    """
    layout = cluster.layout
    read = lambda name: secret.read(layout, name)
    entrance = layout.gateway_hosts[0].address
    session = f"postgresql://operator:{read('operator')}@{entrance}"
    return {
        "AWS_ENDPOINT_URL": layout.gateway_url,
        "AWS_ACCESS_KEY_ID": read("access_key"),
        "AWS_SECRET_ACCESS_KEY": read("secret_key"),
        "AWS_REGION": REGION,
        "MANTLE_URL": layout.gateway_url,
        "MANTLE_TOKEN": read("token"),
        "DATABASE_URL": f"{session}:{PORT_POSTGRESQL}/{DATABASE}",
        "MANTLE_POOLER_URL": f"{session}:{PORT_PGBOUNCER}/{DATABASE}",
        "MANTLE_INDEX": ",".join(layout.index_addresses),
    }


def write(cluster: Cluster) -> None:
    layout = cluster.layout
    own = layout.binaries / "patronictl"
    values = {
        "password": layout.secrets / "restapi", "patronictl": layout.patroni / "bin" / "patronictl",
        "config": cluster.groups[COORDINATOR][0].config,
    }  # fmt: skip
    own.write_text(PATRONICTL.format(**{name: shlex.quote(str(path)) for name, path in values.items()}))
    own.chmod(0o755)
    write_exports(layout, variables(cluster))


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
