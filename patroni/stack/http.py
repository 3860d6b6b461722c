"""The few HTTP calls that the launcher makes itself."""

import socket
import ssl
import urllib.error
import urllib.request
from http.client import HTTPException

TIMEOUT_S = 10.0


def call(
    method: str, url: str, token: str | None = None, *, tls: ssl.SSLContext | None = None, timeout_s: float = TIMEOUT_S
) -> tuple[int, str]:
    """Status and body; status 0 when nothing answers."""
    request = urllib.request.Request(url, method=method)
    if token:
        request.add_header("Authorization", f"Bearer {token}")
    # Loopback addresses never go through a proxy.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=tls))
    try:
        with opener.open(request, timeout=timeout_s) as response:
            return response.status, response.read().decode("utf-8", "replace")
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode("utf-8", "replace")
    except (OSError, HTTPException):
        return 0, ""


def is_ready(url: str) -> bool:
    """Checks that the probe answers 200."""
    return call("GET", url)[0] == 200


def accepts(address: str, port: int) -> bool:
    """Checks that the port accepts connections."""
    try:
        socket.create_connection((address, port), timeout=1).close()
    except OSError:
        return False
    return True


def metrics(url: str, tls: ssl.SSLContext | None = None) -> dict[str, float]:
    """The samples of a Prometheus page, by name and labels as written."""
    status, body = call("GET", url, tls=tls)
    return samples(body) if status == 200 else {}


def samples(page: str) -> dict[str, float]:
    """The samples of the text of a Prometheus page."""
    found = {}
    for line in page.splitlines():
        name, _, value = line.rpartition(" ")
        if name and not line.startswith("#"):
            found[name] = float(value)
    return found
