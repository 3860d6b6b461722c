"""Bodies in chunks (`aws-chunked`): signed and unsigned, with and without a trailer, and what is wrong with them."""

import hashlib
import hmac
import os

import pytest

from tests.support.s3_wire import Wire, b64, code, crc32

UNSIGNED = "STREAMING-UNSIGNED-PAYLOAD-TRAILER"
SIGNED = "STREAMING-AWS4-HMAC-SHA256-PAYLOAD"
SIGNED_WITH_TRAILER = "STREAMING-AWS4-HMAC-SHA256-PAYLOAD-TRAILER"
CRC32 = "x-amz-checksum-crc32"
MIB = 1 << 20
CHUNK_BYTES = 320 * MIB
GROWTH_BYTES_MAX = 64 * MIB


def framing(payload: str, length: int, **more: str) -> dict[str, str]:
    return {"x-amz-content-sha256": payload, "x-amz-decoded-content-length": str(length), **more}


def put(wire: Wire, target: str, body: bytes, length: int, trailer: str | None = None, payload: str = UNSIGNED):
    headers = framing(payload, length)
    if trailer:
        headers["x-amz-trailer"] = trailer
    return wire.call("PUT", target, body, headers)


@pytest.mark.parametrize(
    ("body", "length", "trailer", "expected"),
    [
        (b"3\r\nabc", 3, None, "IncompleteBody"),
        (b"3\r\nabc\r\n", 3, None, "IncompleteBody"),
        (b"3\nabc\r\n0\r\n\r\n", 3, None, "IncompleteBody"),
        (b"x\r\nabc\r\n0\r\n\r\n", 3, None, "IncompleteBody"),
        (b"3\r\nabc\r\n0\r\n\r\n", 4, None, "IncompleteBody"),
        (b"3\r\nabc\r\n0\r\n\r\n", 2, None, "IncompleteBody"),
        (b"ffffffffffffffff\r\nabc\r\n0\r\n\r\n", 3, None, "IncompleteBody"),
        (b"3\r\nabc\r\n0\r\n\r\n", 3, CRC32, "MalformedTrailerError"),
        (b"3\r\nabc\r\n0\r\nx-amz-checksum-sha1:AAAA\r\n\r\n", 3, CRC32, "MalformedTrailerError"),
        (b"3\r\nabc\r\n0\r\n%b:AAAA\r\n\r\n" % CRC32.encode(), 3, None, "MalformedTrailerError"),
        (b"3\r\nabc\r\n0\r\n%b:AAAA\r\n\r\n" % CRC32.encode(), 3, CRC32, "InvalidRequest"),
        (b"3\r\nabc\r\n0\r\n%b:AAAAAA==\r\n\r\n" % CRC32.encode(), 3, CRC32, "BadDigest"),
    ],
)
def test_what_is_wrong_is_said(wire, bucket, body, length, trailer, expected):
    for target in (f"/{bucket}/chunks", f"/{bucket}/chunks/"):
        answer = put(wire, target, body, length, trailer)
        assert answer.status == 400
        if not target.endswith("/"):
            assert code(answer) == expected
        assert not wire.exists(target)


def test_a_length_is_demanded(wire, bucket):
    headers = {"x-amz-content-sha256": UNSIGNED}
    assert code(wire.call("PUT", f"/{bucket}/k", b"3\r\nabc\r\n0\r\n\r\n", headers)) == "MissingContentLength"


def test_a_body_that_is_not_in_chunks(wire, bucket):
    target = f"/{bucket}/k"
    assert code(wire.call("PUT", target, b"abc", {"x-amz-decoded-content-length": "2"})) == "IncompleteBody"
    assert not wire.exists(target)
    assert wire.call("PUT", target, b"abc", {"x-amz-decoded-content-length": "3"}).status == 200


def test_a_document_in_signed_chunks(wire, bucket):
    target = f"/{bucket}/k"
    wire.call("PUT", target, b"abc")
    document = b"<Delete><Object><Key>k</Key></Object></Delete>"
    headers, body = signed(wire, f"/{bucket}?delete", document, crc32(document), "POST")
    assert wire.plain("POST", f"/{bucket}?delete", body.replace(b"<Key>k", b"<Key>j"), headers).status == 403
    assert wire.exists(target)
    assert wire.plain("POST", f"/{bucket}?delete", body, headers).status == 200
    assert not wire.exists(target)


def test_a_body_without_a_trailer(wire, bucket):
    """Its checksum may be in a header, or be left to the server."""
    target = f"/{bucket}/chunks"
    body = b"2\r\nab\r\n1\r\nc\r\n0\r\n\r\n"
    plain = wire.call("PUT", target, b"abc").headers["x-amz-checksum-crc64nvme"]
    assert put(wire, target, body, 3).headers["x-amz-checksum-crc64nvme"] == plain
    sha512 = b64(hashlib.sha512(b"abc").digest())
    answer = wire.call("PUT", target, body, framing(UNSIGNED, 3, **{"x-amz-checksum-sha512": sha512}))
    assert answer.headers["x-amz-checksum-sha512"] == sha512
    assert wire.call("GET", target).body == b"abc"


class Chunks:
    """Signs the chunks of a body, as AWS's documentation says."""

    def __init__(self, wire: Wire, headers: dict[str, str]):
        fields = dict(field.strip().split("=", 1) for field in headers["Authorization"].split(" ", 1)[1].split(","))
        self.scope = fields["Credential"].split("/", 1)[1]
        self.date, self.previous = headers["X-Amz-Date"], fields["Signature"]
        self.key = b"AWS4" + wire.keys.secret_key.encode()
        for part in self.scope.split("/"):
            self.key = hmac.digest(self.key, part.encode(), "sha256")

    def _sign(self, algorithm: str, *digested: bytes) -> str:
        digests = [hashlib.sha256(data).hexdigest() for data in digested]
        text = "\n".join([algorithm, self.date, self.scope, self.previous, *digests])
        self.previous = hmac.new(self.key, text.encode(), "sha256").hexdigest()
        return self.previous

    def chunk(self, data: bytes) -> bytes:
        signature = self._sign("AWS4-HMAC-SHA256-PAYLOAD", b"", data)
        end = data + b"\r\n" if data else b""
        return f"{len(data):x};chunk-signature={signature}\r\n".encode() + end

    def trailer(self, name: str, value: str) -> bytes:
        signature = self._sign("AWS4-HMAC-SHA256-TRAILER", f"{name}:{value}\n".encode())
        return f"{name}:{value}\r\nx-amz-trailer-signature:{signature}\r\n\r\n".encode()


def signed(
    wire: Wire, target: str, data: bytes, checksum: str | None = None, method: str = "PUT"
) -> tuple[dict[str, str], bytes]:
    """Headers and body of a request in two chunks."""
    if checksum is None:
        headers = framing(SIGNED, len(data))
    else:
        headers = framing(SIGNED_WITH_TRAILER, len(data), **{"x-amz-trailer": CRC32})
    headers = wire.signed(method, target, headers)
    chunks = Chunks(wire, headers)
    half = len(data) // 2
    body = chunks.chunk(data[:half]) + chunks.chunk(data[half:]) + chunks.chunk(b"")
    return headers, body + (b"\r\n" if checksum is None else chunks.trailer(CRC32, checksum))


@pytest.mark.parametrize("with_trailer", [False, True])
def test_signed_chunks(wire, bucket, with_trailer):
    target, data = f"/{bucket}/chunks", os.urandom(70_000)
    headers, body = signed(wire, target, data, crc32(data) if with_trailer else None)
    assert wire.plain("PUT", target, body, headers).status == 200
    assert wire.call("GET", target).body == data


@pytest.mark.parametrize("with_trailer", [False, True])
def test_changed_chunks(wire, bucket, with_trailer):
    """No byte of a signed body can be changed, nor a chunk be left out or moved."""
    target, data = f"/{bucket}/chunks", bytes(50) + b"\x01" * 50
    headers, body = signed(wire, target, data, crc32(data) if with_trailer else None)
    second, last = body.index(b"\r\n32;") + 2, body.index(b"\r\n0;") + 2
    first = body[:second]
    changed = [
        body.replace(b"\x00", b"\x02", 1),
        body.replace(b"\x01", b"\x02", 1),
        body[second:last] + first + body[last:],
        flipped(body, body.index(b"=") + 1),
        flipped(body, body.index(b"=", second) + 1),
        flipped(body, body.index(b"=", last) + 1),
    ]
    if with_trailer:
        changed += [body.replace(crc32(data).encode(), b"AAAAAA=="), flipped(body, body.index(b"signature:") + 10)]
    for wrong in changed:
        assert wrong != body
        assert code(wire.plain("PUT", target, wrong, headers)) == "SignatureDoesNotMatch", wrong
    without_second = wire.plain("PUT", target, first + body[last:], headers)
    assert code(without_second) == "SignatureDoesNotMatch"
    unsigned = wire.call("PUT", target, b"3\r\nabc\r\n0\r\n\r\n", framing(SIGNED, 3))
    assert code(unsigned) == "IncompleteBody"
    assert not wire.exists(target)


def flipped(body: bytes, at: int) -> bytes:
    """With another hexadecimal digit there."""
    return body[:at] + (b"1" if body[at : at + 1] == b"0" else b"0") + body[at + 1 :]


def resident_peak(pid: int) -> int:
    with open(f"/proc/{pid}/status") as status:
        line = next(line for line in status if line.startswith("VmHWM:"))
    return int(line.split()[1]) * 1024


def test_one_large_chunk_does_not_stay_in_memory(stack, wire, bucket):
    """Some SDKs send an object as one chunk."""
    target, piece = f"/{bucket}/large", bytes(MIB)
    headers = wire.signed("PUT", target, framing(UNSIGNED, CHUNK_BYTES))
    head, end = b"%x\r\n" % CHUNK_BYTES, b"\r\n0\r\n\r\n"
    headers["Content-Length"] = str(len(head) + CHUNK_BYTES + len(end))

    def body():
        yield head
        for _ in range(CHUNK_BYTES // MIB):
            yield piece
        yield end

    pid = stack.gateway.process.pid()
    with open(f"/proc/{pid}/clear_refs", "w") as peak:
        peak.write("5")  # the peak from now on
    before = resident_peak(pid)
    assert wire.plain("PUT", target, body(), headers).status == 200
    assert resident_peak(pid) - before < GROWTH_BYTES_MAX
    assert wire.call("HEAD", target).headers["content-length"] == str(CHUNK_BYTES)
    assert wire.call("DELETE", target).status == 204
