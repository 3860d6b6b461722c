"""A client of the native API. It uses plain http.client, so that a path reaches the server byte for byte.

`call` sends one request and returns any answer. The verbs below it behave like a careful client: they retry what the
error table calls retryable, with the same idempotency key, and raise `Refused` for other errors.
"""

import http.client
import json
import ssl
import time
import urllib.parse
import uuid
from dataclasses import dataclass, field
from pathlib import Path

from stack.failure import Failure
from stack.poll import wait_until

TIMEOUT_S = 30.0
RETRY_BOUND_S = 90.0


class Refused(Exception):
    """A final refusal: HTTP status and the code of the problem document."""

    def __init__(self, answer: "Answer"):
        super().__init__(f"{answer.status} {answer.code}: {answer.body}")
        self.answer = answer
        self.status = answer.status
        self.code = answer.code


@dataclass
class Answer:
    """One answer; status 0 when the connection broke."""

    status: int
    body: dict | list | None = None
    headers: dict[str, str] = field(default_factory=dict)

    @property
    def code(self) -> str | None:
        return self.body.get("code") if isinstance(self.body, dict) else None

    @property
    def passing(self) -> bool:
        """The same request may succeed later."""
        return self.status in (0, 503)


def quote(path: str) -> str:
    return urllib.parse.quote(path, safe="/")


class Rest:
    """One client; threads must not share it (see `twin`)."""

    def __init__(self, host: str, port: int, token: str, trusted: Path | None = None):
        """`trusted`: a file of authorities, for HTTPS. Each connection reads it again."""
        self.host = host
        self.port = port
        self.token = token
        self.trusted = trusted
        self.connection: http.client.HTTPConnection | None = None

    def twin(self) -> "Rest":
        return Rest(self.host, self.port, self.token, self.trusted)

    def call(
        self, method: str, target: str, body=None, *, key: str | None = None, headers: dict | None = None
    ) -> Answer:
        """One request, `target` sent as given."""
        send = {"Authorization": f"Bearer {self.token}", **(headers or {})}
        if key is not None:
            send["Idempotency-Key"] = key
        payload = None
        if body is not None:
            payload = body if isinstance(body, bytes) else json.dumps(body).encode()
            send.setdefault("Content-Type", "application/json")
        elif method in ("PUT", "POST", "PATCH"):
            payload = b""
        try:
            if self.connection is None:
                self.connection = self._new_connection()
            # putrequest would refuse some targets that a hostile client may send.
            self.connection._validate_path = lambda _: None
            self.connection.request(method, target, payload, send)
            response = self.connection.getresponse()
            raw = response.read()
        except (OSError, http.client.HTTPException):
            self.close()
            return Answer(0)
        headers = {name.lower(): value for name, value in response.getheaders()}
        document = json.loads(raw) if raw and "json" in headers.get("content-type", "") else None
        return Answer(response.status, document, headers)

    def _new_connection(self) -> http.client.HTTPConnection:
        if self.trusted is None:
            return http.client.HTTPConnection(self.host, self.port, timeout=TIMEOUT_S)
        context = ssl.create_default_context(cafile=str(self.trusted))
        return http.client.HTTPSConnection(self.host, self.port, timeout=TIMEOUT_S, context=context)

    def close(self) -> None:
        if self.connection is not None:
            self.connection.close()
            self.connection = None

    def insist(
        self, method: str, target: str, body=None, *, key: str | None = None, bound_s: float = RETRY_BOUND_S
    ) -> Answer:
        """Retries temporary refusals with one idempotency key until there is a final answer."""
        key = key or str(uuid.uuid4())
        last = Answer(0)

        def final() -> bool:
            nonlocal last
            last = self.call(method, target, body, key=key)
            return not last.passing

        began = time.monotonic()
        try:
            wait_until(final, f"{method} {target}", bound_s)
        except Failure as failure:
            raise AssertionError(f"{failure} ({time.monotonic() - began:.0f} s; last answer {last})") from failure
        if last.status >= 400:
            raise Refused(last)
        return last

    def create_namespace(self, ns: str, *, group: int | None = None) -> Answer:
        return self.insist("PUT", f"/v1/ns/{ns}" + (f"?group={group}" if group else ""))

    def delete_namespace(self, ns: str) -> Answer:
        return self.insist("DELETE", f"/v1/ns/{ns}")

    def mkdir(self, ns: str, path: str, *, parents: bool = False, key: str | None = None) -> Answer:
        query = "?parents=true" if parents else ""
        return self.insist("PUT", f"/v1/ns/{ns}/dirs/{quote(path)}{query}", key=key)

    def rmdir(self, ns: str, path: str, *, key: str | None = None) -> Answer:
        return self.insist("DELETE", f"/v1/ns/{ns}/dirs/{quote(path)}", key=key)

    def rename(self, ns: str, src: str, dst: str, *, overwrite: bool = False, key: str | None = None) -> Answer:
        return self.insist("POST", f"/v1/ns/{ns}/rename", {"src": src, "dst": dst, "overwrite": overwrite}, key=key)

    def stat(self, ns: str, path: str) -> dict:
        return self.insist("GET", f"/v1/ns/{ns}/entries/{quote(path)}").body

    def exists(self, ns: str, path: str) -> bool:
        try:
            self.stat(ns, path)
        except Refused as refused:
            if refused.status == 404:
                return False
            raise
        return True

    def list_page(self, ns: str, path: str, *, limit: int | None = None, cursor: str | None = None) -> dict:
        given = {"limit": limit, "cursor": cursor}
        query = urllib.parse.urlencode({name: value for name, value in given.items() if value is not None})
        return self.insist("GET", f"/v1/ns/{ns}/list/{quote(path)}?{query}").body

    def list(self, ns: str, path: str, *, limit: int = 1000) -> list[str]:
        """Names of all children, directories with their slash."""
        names: list[str] = []
        cursor = None
        while True:
            page = self.list_page(ns, path, limit=limit, cursor=cursor)
            names += [entry["name"] + ("/" if entry["type"] == "directory" else "") for entry in page["entries"]]
            cursor = page.get("cursor")
            if not cursor:
                return names
