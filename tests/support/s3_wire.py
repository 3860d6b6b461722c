"""Raw S3 requests: signed as a client library would, with headers and bodies that no library sends."""

import base64
import hashlib
import http.client
import xml.etree.ElementTree as ET
import zlib
from dataclasses import dataclass
from urllib.parse import urlsplit

import botocore.auth
import botocore.awsrequest
import botocore.credentials

from stack import secret
from stack.layout import REGION
from stack.stack import Stack

UNSIGNED = "UNSIGNED-PAYLOAD"
TIMEOUT_S = 60.0


class Signer(botocore.auth.S3SigV4Auth):
    """Signs the path as it is sent, with any claim about the payload."""

    words = UNSIGNED

    def payload(self, _request):
        return self.words


@dataclass(frozen=True)
class Answer:
    status: int
    headers: dict[str, str]  # in lower case
    body: bytes

    @property
    def text(self) -> str:
        return self.body.decode()


class Wire:
    """Calls the gateway of a stack. Targets are sent as they are."""

    def __init__(self, stack: Stack):
        self.url = stack.gateway.url
        address = urlsplit(self.url)
        self.host, self.port = address.hostname, address.port
        self.keys = botocore.credentials.Credentials(
            secret.read(stack.layout, "access_key"), secret.read(stack.layout, "secret_key")
        )

    def signed(
        self, method: str, target: str, headers: dict[str, str] | None = None, region: str = REGION, service: str = "s3"
    ) -> dict[str, str]:
        """The headers of a request; those given are signed too."""
        headers = {"x-amz-content-sha256": UNSIGNED, **(headers or {})}
        request = botocore.awsrequest.AWSRequest(method, self.url + target, headers=headers)
        signer = Signer(self.keys, service, region)
        signer.words = headers["x-amz-content-sha256"]
        signer.add_auth(request)
        return dict(request.headers.items())

    def presigned(self, method: str, target: str, expires: int, headers: dict[str, str] | None = None) -> str:
        """A target that is signed in its query."""
        request = botocore.awsrequest.AWSRequest(method, self.url + target, headers=headers or {})
        botocore.auth.S3SigV4QueryAuth(self.keys, "s3", REGION, expires=expires).add_auth(request)
        return request.url.removeprefix(self.url)

    def plain(
        self,
        method: str,
        target: str,
        body: bytes = b"",
        headers: dict[str, str] | None = None,
        connection: http.client.HTTPConnection | None = None,
    ) -> Answer:
        """Sends headers as they are."""
        connection = connection or self.connection()
        connection.request(method, target, body, headers or {})
        response = connection.getresponse()
        read = response.read()
        return Answer(response.status, {name.lower(): value for name, value in response.getheaders()}, read)

    def call(
        self,
        method: str,
        target: str,
        body: bytes = b"",
        headers: dict[str, str] | None = None,
        connection: http.client.HTTPConnection | None = None,
    ) -> Answer:
        return self.plain(method, target, body, self.signed(method, target, headers), connection)

    def exists(self, target: str) -> bool:
        return self.call("HEAD", target).status == 200

    def connection(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection(self.host, self.port, timeout=TIMEOUT_S)


def b64(digest: bytes) -> str:
    return base64.b64encode(digest).decode()


def md5(body: bytes) -> str:
    return b64(hashlib.md5(body).digest())


def crc32(body: bytes) -> str:
    return b64(zlib.crc32(body).to_bytes(4, "big"))


def code(answer: Answer) -> str | None:
    """The code of an error document."""
    return ET.fromstring(answer.body).findtext("Code")
