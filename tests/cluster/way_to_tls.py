"""A cluster's settings on its way from plain connections to TLS: docs/runbooks.md, "Changing a running cluster to TLS".

`make cluster` writes the settings at the end of the way. Before a step they lack what the step sets. So what is written
after the last step is what `make cluster` writes.
"""

import re
from collections.abc import Callable
from enum import IntEnum

from cluster.cluster import Cluster
from cluster.member import Member
from cluster.services import ClusterGateway, Pooler, Proxy, Replica
from stack.service import Service


class Step(IntEnum):
    """The last step that was done."""

    PLAIN = 0
    SERVERS = 1  # PostgreSQL and PgBouncer take sessions with TLS too
    BETWEEN = 2  # servers verify each other
    BOTH_CHECKS = 3  # HAProxy asks each Patroni by HTTP and by HTTPS
    REST = 4  # Patroni answers HTTPS
    CHECKS = 5  # HAProxy asks by HTTPS only
    ACCEPT = 6  # IndexNodes verify PostgreSQL
    GATEWAYS = 7  # gateways use TLS to all, and take HTTPS too
    CONNECT = 8  # IndexNodes use TLS between each other
    STRICT = 9  # Mantle's processes take TLS only
    HTTPS = 10  # users too
    REFUSED = 11  # PostgreSQL and PgBouncer refuse what is plain


def without(text: str, *patterns: str) -> str:
    """The text without the lines that start with a match of a pattern; each pattern matches a line."""
    for pattern in patterns:
        text, count = re.subn(rf"^{pattern}.*\n", "", text, flags=re.MULTILINE)
        assert count, f"no line {pattern!r}"
    return text


def replaced(text: str, pattern: str, by: str) -> str:
    """The text with another one for each match; there is at least one."""
    text, count = re.subn(pattern, by, text, flags=re.MULTILINE)
    assert count, f"nothing matches {pattern!r}"
    return text


def patroni(text: str, step: Step) -> str:
    if step < Step.SERVERS:
        text = without(text, "    ssl: ", "    ssl_cert_file: ", "    ssl_key_file: ", "    ssl_ca_file: ")
    if step < Step.BETWEEN:
        text = without(text, "      sslmode: ", "      sslrootcert: ", "      channel_binding: ")
        text = replaced(text, r"sslmode=verify-full sslrootcert=\S+", "sslmode=prefer")
    if step < Step.BOTH_CHECKS:
        text = replaced(text, r"^ctl:\n  cacert: .*$", "ctl: {}")
    if step < Step.REST:
        text = without(text, "  certfile: ", "  keyfile: ")
    if step < Step.REFUSED:
        text = replaced(text, "- hostssl ", "- host ")
        text = replaced(text, " clientcert=verify-full$", "")
    return text


def pgbouncer(text: str, step: Step) -> str:
    if step < Step.SERVERS:
        text = without(text, "client_tls_")
    elif step < Step.REFUSED:
        text = replaced(text, "^client_tls_sslmode = require$", "client_tls_sslmode = allow")
    return without(text, "server_tls_") if step < Step.BETWEEN else text


def haproxy(text: str, step: Step) -> str:
    if step >= Step.CHECKS:
        return text
    check, _, authority = re.search(r"check-ssl verify required (ca-file (\S+)) ", text).group(0, 1, 2)
    text = text.replace(check, "")
    server = r"^    server (\S+)( +\S+ check port \d+) verifyhost (\S+)$"
    plain = r"    server \1\2 no-check-ssl"
    both = rf"{plain}\n    server \1-tls\2 check-ssl verify required ca-file {authority} verifyhost \3"
    return replaced(text, server, plain if step < Step.BOTH_CHECKS else both)


def database(text: str, is_plain: bool) -> str:
    """The section about PostgreSQL of an IndexNode or a gateway."""
    if not is_plain:
        return text
    text = replaced(text, r"^\[postgres\.tls\]\n(?:\w+ = .*\n)+", "")
    return replaced(text, "^password_file = ", "plain = true\npassword_file = ")


def phase(text: str, name: str) -> str:
    return replaced(text, '^phase = "strict"$', f'phase = "{name}"')


def indexnode(text: str, step: Step) -> str:
    text = database(text, is_plain=step < Step.ACCEPT)
    if step < Step.CONNECT:
        return phase(text, "accept")
    return phase(text, "connect") if step < Step.STRICT else text


def gateway(text: str, step: Step) -> str:
    text = database(text, is_plain=step < Step.GATEWAYS)
    if step < Step.GATEWAYS:
        text = replaced(phase(text, "accept"), r"^\[https\]\n(?:\w+ = .*\n)+", "")
    elif step < Step.STRICT:
        text = phase(text, "connect")
    return f"plain_http = true\n{text}" if step < Step.HTTPS else text


TEXTS: dict[type[Service], Callable[[str, Step], str]] = {
    Member: patroni,
    Pooler: pgbouncer,
    Proxy: haproxy,
    Replica: indexnode,
    ClusterGateway: gateway,
}


class Way:
    """Makes the launcher's objects write, and expect, what there is after a step."""

    def __init__(self, cluster: Cluster):
        self.step = Step.PLAIN
        self._changed: list[tuple[object, str]] = []
        for service in cluster.services():
            if type(service) in TEXTS:
                self._replace(service, "settings", self._settings(service))
        for member in cluster.members:
            self._replace(member, "environment", self._environment(member))
            self._replace(member, "client_environment", self._client_environment(member))

    def _replace(self, of: object, name: str, by: Callable) -> None:
        setattr(of, name, by)
        self._changed.append((of, name))

    def _settings(self, service: Service) -> Callable[[], str]:
        at_the_end, text = service.settings, TEXTS[type(service)]
        return lambda: text(at_the_end(), self.step)

    def _environment(self, member: Member) -> Callable[[], dict[str, str]]:
        """Without TLS there is no channel that a password could be bound to."""
        at_the_end, late = member.environment, {"PGCHANNELBINDING"}
        return lambda: {k: v for k, v in at_the_end().items() if self.step >= Step.BETWEEN or k not in late}

    def _client_environment(self, member: Member) -> Callable[..., dict[str, str]]:
        at_the_end, late = member.client_environment, {"PGSSLMODE", "PGSSLROOTCERT"}

        def here(*given: str) -> dict[str, str]:
            return {k: v for k, v in at_the_end(*given).items() if self.step >= Step.BETWEEN or k not in late}

        return here

    def end(self) -> None:
        """From now on the launcher's objects are as before."""
        for of, name in self._changed:
            delattr(of, name)
        self._changed.clear()
