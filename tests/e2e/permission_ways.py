"""How each operation of the permission matrix is tried through the gateway: by S3 and by the native API.

A way answers whether the operation was carried out. An answer that is neither a success nor 403 fails the test.
"""

import urllib.parse
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property

from tests.support.s3_wire import Answer, md5

from .permission_places import Place, World

# Everything that is no refusal.
DONE = (200, 201, 202, 204, 206)
TAGS = b"<Tagging><TagSet><Tag><Key>a</Key><Value>c</Value></Tag></TagSet></Tagging>"


def done(status: int, body: object) -> bool:
    assert status in (*DONE, 403), (status, body)
    return status != 403


class Session:
    """A principal's connections, of one thread."""

    def __init__(self, world: World, name: str):
        self.world = world
        self.rest = world.rest(name)
        self.wire = world.wire(name)
        self.connection = self.wire.connection()

    def native(self, place: Place, method: str, target: str, body=None) -> bool:
        answer = self.rest.call(method, f"/v1/ns/{place.bucket}{target}", body)
        return done(answer.status, answer.body)

    def answer(
        self, place: Place, method: str, key: str, body: bytes = b"", headers: dict | None = None, query: str = ""
    ) -> Answer:
        target = f"/{place.bucket}/{urllib.parse.quote(key)}{query}"
        return self.wire.call(method, target, body, headers, self.connection)

    def s3(self, place: Place, method: str, key: str, body: bytes = b"", headers: dict | None = None, query: str = ""):
        answer = self.answer(place, method, key, body, headers, query)
        return done(answer.status, answer.body)

    @cached_property
    def upload(self) -> str:
        """An upload of the principal's own, in an open directory."""
        return self.world.new_upload(self.wire, self.upload_key)

    @property
    def upload_key(self) -> str:
        return f"free/upload-{id(self)}"

    # Operations of which more than one place, or more than the status, is to be said.

    def rename(self, place: Place, source: str, destination: str, overwrite: bool = False) -> bool:
        return self.native(place, "POST", "/rename", {"src": source, "dst": destination, "overwrite": overwrite})

    def rename_s3(self, place: Place, source: str, destination: str) -> bool:
        headers = {"x-amz-rename-source": f"/{place.bucket}/{source}"}
        return self.s3(place, "PUT", destination, headers=headers, query="?renameObject")

    def copy(self, place: Place, source: str, destination: str, headers: dict | None = None) -> bool:
        headers = {"x-amz-copy-source": f"/{place.bucket}/{source}", **(headers or {})}
        return self.s3(place, "PUT", destination, headers=headers)

    def copy_part(self, place: Place, source: str, key: str, upload: str) -> bool:
        headers = {"x-amz-copy-source": f"/{place.bucket}/{source}"}
        return self.s3(place, "PUT", key, headers=headers, query=f"?partNumber=1&uploadId={upload}")

    def complete(self, place: Place, key: str) -> bool:
        etag = self.world.part[0]
        parts = f"<Part><PartNumber>1</PartNumber><ETag>{etag}</ETag></Part>"
        body = f"<CompleteMultipartUpload>{parts}</CompleteMultipartUpload>".encode()
        return self.s3(place, "POST", key, body, query=f"?uploadId={place.upload}")

    def delete_many(self, place: Place, key: str) -> bool:
        body = f"<Delete><Object><Key>{key}</Key></Object></Delete>".encode()
        answer = self.answer(place, "POST", "", body, {"content-md5": md5(body)}, "?delete")
        assert answer.status == 200, answer
        is_refused = "<Code>AccessDenied</Code>" in answer.text
        assert is_refused or "<Deleted>" in answer.text, answer
        return not is_refused

    def shows(self, place: Place, query: str, text: str) -> bool:
        """Whether a listing of the bucket was answered and has this text."""
        answer = self.answer(place, "GET", "", query=query)
        return done(answer.status, answer.body) and text in answer.text

    def shows_etag(self, place: Place) -> bool:
        answer = self.rest.call("GET", f"/v1/ns/{place.bucket}/entries/{place.key}")
        return done(answer.status, answer.body) and "etag" in answer.body

    def stat_many(self, place: Place, path: str) -> bool:
        answer = self.rest.call("POST", f"/v1/ns/{place.bucket}/stat", {"paths": [path]})
        assert answer.status == 200, answer
        (entry,) = answer.body["entries"]
        assert "entry" in entry or entry["error"]["code"] == "access_denied", entry
        return "entry" in entry


def listing(place: Place, more: str = "") -> str:
    return f"prefix={urllib.parse.quote(place.directory, safe='')}{more}"


Try = Callable[[Session, Place], bool]


@dataclass(frozen=True)
class Way:
    """`made`: how the cells are made (World.places)."""

    attempt: Try
    made: dict = field(default_factory=dict)


IMPLICIT = {"explicit": False}
METADATA = {"x-amz-meta-a": "b"}
REPLACED = {**METADATA, "x-amz-metadata-directive": "REPLACE"}
# The etag of every directory's key.
OF_NO_BYTES = {"if-match": '"d41d8cd98f00b204e9800998ecf8427e"'}
OF_KEY = {"uploads": "key"}
DEEP = {"is_deep": True}
TAGGED = {"metadata": '{":tagging": "a=b"}'}
PART = "?partNumber=2&uploadId="


def put_ways(key: str) -> dict[str, Way]:
    """The ways to put an object at a key of a place."""
    at = lambda p: getattr(p, key)
    return {
        "S3": Way(lambda s, p: s.s3(p, "PUT", at(p), b"1")),
        "S3 copy": Way(lambda s, p: s.copy(p, "bytes", at(p))),
        "S3 complete": Way(lambda s, p: s.complete(p, at(p)), {"uploads": key}),
    }


def upload_ways() -> dict[str, Way]:
    """The ways to go on with an upload."""
    return {
        "S3 part": Way(lambda s, p: s.s3(p, "PUT", p.key, b"1", query=PART + p.upload), OF_KEY),
        "S3 part copy": Way(lambda s, p: s.copy_part(p, "bytes", p.key, p.upload), OF_KEY),
        "S3 parts": Way(lambda s, p: s.s3(p, "GET", p.key, query=f"?uploadId={p.upload}"), OF_KEY),
        "S3 abort": Way(lambda s, p: s.s3(p, "DELETE", p.key, query=f"?uploadId={p.upload}"), OF_KEY),
    }


def attribute_way(body: dict) -> dict[str, Way]:
    return {"native": Way(lambda s, p: s.native(p, "PATCH", f"/entries/{p.key}", body))}


def rename_ways(source: str, destination: str, overwrite: bool = False) -> dict[str, Way]:
    of = lambda p: (getattr(p, source), getattr(p, destination))
    return {"native": Way(lambda s, p: s.rename(p, *of(p), overwrite)), "S3": Way(lambda s, p: s.rename_s3(p, *of(p)))}


THROUGH: dict[str, dict[str, Way]] = {
    "put a new object": {**put_ways("new"), "S3 begin": Way(lambda s, p: s.s3(p, "POST", p.new, query="?uploads"))},
    "overwrite an object": put_ways("key"),
    "make a directory": {
        "native": Way(lambda s, p: s.native(p, "PUT", f"/dirs/{p.new}")),
        "native deep": Way(lambda s, p: s.native(p, "PUT", f"/dirs/{p.new}"), DEEP),
        "S3": Way(lambda s, p: s.s3(p, "PUT", p.new)),
        "native implicit": Way(lambda s, p: s.native(p, "PUT", f"/dirs/{p.key}"), IMPLICIT),
    },
    "put the key of a directory that is there": {
        "S3": Way(lambda s, p: s.s3(p, "PUT", p.key, headers=METADATA)),
        "S3 implicit": Way(lambda s, p: s.s3(p, "PUT", p.key), IMPLICIT),
        "S3 copy": Way(lambda s, p: s.copy(p, "marker/", p.key, REPLACED)),
    },
    "put the key of a directory on a condition": {
        "S3": Way(lambda s, p: s.s3(p, "PUT", p.key, headers=METADATA | OF_NO_BYTES)),
        "S3 any": Way(lambda s, p: s.s3(p, "PUT", p.key, headers=METADATA | {"if-match": "*"})),
        "S3 copy": Way(lambda s, p: s.copy(p, "marker/", p.key, REPLACED | OF_NO_BYTES)),
    },
    "go on with an upload of one's own": upload_ways(),
    "go on with an upload of another's": upload_ways(),
    "read an object": {
        "S3 GET": Way(lambda s, p: s.s3(p, "GET", p.key)),
        "S3 GET deep": Way(lambda s, p: s.s3(p, "GET", p.key), DEEP),
        "S3 HEAD": Way(lambda s, p: s.s3(p, "HEAD", p.key)),
        "S3 attributes": Way(
            lambda s, p: s.s3(p, "GET", p.key, headers={"x-amz-object-attributes": "ETag"}, query="?attributes")
        ),
        "S3 tags": Way(lambda s, p: s.s3(p, "GET", p.key, query="?tagging")),
        "S3 copy": Way(lambda s, p: s.copy(p, p.key, p.own)),
        "S3 part copy": Way(lambda s, p: s.copy_part(p, p.key, s.upload_key, s.upload)),
        "native": Way(lambda s, p: s.shows_etag(p)),
    },
    "read the key of a directory": {
        "S3 GET": Way(lambda s, p: s.s3(p, "GET", p.key)),
        "S3 HEAD": Way(lambda s, p: s.s3(p, "HEAD", p.key)),
        "S3 copy": Way(lambda s, p: s.copy(p, p.key, p.own)),
    },
    "stat": {
        "native": Way(lambda s, p: s.native(p, "GET", f"/entries/{p.key}")),
        "native many": Way(lambda s, p: s.stat_many(p, p.key)),
        "native deep": Way(lambda s, p: s.native(p, "GET", f"/entries/{p.key}"), DEEP),
    },
    "list": {
        "native": Way(lambda s, p: s.native(p, "GET", f"/list/{p.directory}")),
        "S3": Way(lambda s, p: s.shows(p, "?list-type=2&delimiter=%2F&" + listing(p), p.key)),
        "S3 first": Way(lambda s, p: s.shows(p, "?delimiter=%2F&" + listing(p), p.key)),
        "S3 versions": Way(lambda s, p: s.shows(p, "?versions&delimiter=%2F&" + listing(p), p.key)),
    },
    "list everything below": {
        "S3": Way(lambda s, p: s.shows(p, "?list-type=2&" + listing(p), p.key + "k")),
        "S3 deep": Way(lambda s, p: s.shows(p, "?list-type=2&" + listing(p), p.key + "k"), DEEP),
        "S3 first": Way(lambda s, p: s.shows(p, "?" + listing(p), p.key + "k")),
        "S3 versions": Way(lambda s, p: s.shows(p, "?versions&" + listing(p), p.key + "k")),
        "S3 delimiter": Way(lambda s, p: s.shows(p, "?list-type=2&delimiter=k&" + listing(p), p.key + "k")),
    },
    "totals of a directory": {
        "native": Way(lambda s, p: s.native(p, "GET", f"/usage/{p.key}")),
        "native own": Way(lambda s, p: s.native(p, "GET", f"/usage/{p.key}?depth=0")),
    },
    "delete an object": {
        "S3": Way(lambda s, p: s.s3(p, "DELETE", p.key)),
        "S3 many": Way(lambda s, p: s.delete_many(p, p.key)),
    },
    "remove an empty directory": {
        "native": Way(lambda s, p: s.native(p, "DELETE", f"/dirs/{p.key}")),
        "S3": Way(lambda s, p: s.s3(p, "DELETE", p.key)),
        "S3 many": Way(lambda s, p: s.delete_many(p, p.key)),
    },
    "make a directory implicit": {"S3": Way(lambda s, p: s.s3(p, "DELETE", p.key))},
    "remove a directory with everything below": {
        "native": Way(lambda s, p: s.native(p, "DELETE", f"/dirs/{p.key}?recursive=true"))
    },
    "rename an object away": rename_ways("key", "other"),
    "rename an object to a new name": rename_ways("own", "new"),
    "rename an object onto another": rename_ways("own", "key", overwrite=True),
    "rename a directory in its parent": {
        **rename_ways("key", "new"),
        "native deep": Way(lambda s, p: s.rename(p, p.key, p.new), DEEP),
    },
    "move a directory to another parent": rename_ways("key", "other"),
    "move a directory to a new name": rename_ways("own", "new"),
    "move a directory onto an empty one": rename_ways("own", "key", overwrite=True),
    "change the mode": attribute_way({"mode": "0604"}),
    "change the group": attribute_way({"group": 1002}),
    "change the group to another": attribute_way({"group": 777}),
    "change the owner": attribute_way({"owner": 1003}),
    "change user metadata": attribute_way({"user_metadata": {"a": "b"}}),
    "change tags": {
        "S3": Way(lambda s, p: s.s3(p, "PUT", p.key, TAGS, query="?tagging")),
        "S3 delete": Way(lambda s, p: s.s3(p, "DELETE", p.key, query="?tagging")),
    },
    "find a bucket": {
        "S3 HEAD": Way(lambda s, p: s.s3(p, "HEAD", "")),
        "S3 location": Way(lambda s, p: s.s3(p, "GET", "", query="?location")),
        "S3 versioning": Way(lambda s, p: s.s3(p, "GET", "", query="?versioning")),
    },
    "stat the root of a namespace": {
        "native": Way(lambda s, p: s.native(p, "GET", "/entries/")),
        "native many": Way(lambda s, p: s.stat_many(p, "")),
    },
    "list the root of a namespace": {
        "native": Way(lambda s, p: s.native(p, "GET", "/list/")),
        "S3": Way(lambda s, p: s.s3(p, "GET", "", query="?list-type=2&delimiter=%2F")),
        "S3 first": Way(lambda s, p: s.s3(p, "GET", "", query="?delimiter=%2F")),
        "S3 versions": Way(lambda s, p: s.s3(p, "GET", "", query="?versions")),
        "S3 uploads": Way(lambda s, p: s.s3(p, "GET", "", query="?uploads")),
    },
    "totals of a namespace": {
        "native": Way(lambda s, p: s.native(p, "GET", "/usage/")),
        "native own": Way(lambda s, p: s.native(p, "GET", "/usage/?depth=0")),
    },
    "read the tags of a bucket": {"S3": Way(lambda s, p: s.s3(p, "GET", "", query="?tagging"), TAGGED)},
    "change metadata of the root of a namespace": {
        "S3 tags": Way(lambda s, p: s.s3(p, "PUT", "", TAGS, query="?tagging")),
        "S3 delete tags": Way(lambda s, p: s.s3(p, "DELETE", "", query="?tagging")),
        "native": Way(lambda s, p: s.native(p, "PATCH", "/entries/", {"user_metadata": {"a": "b"}})),
    },
    "change the mode of the root of a namespace": {
        "native": Way(lambda s, p: s.native(p, "PATCH", "/entries/", {"mode": "0604"}))
    },
    "change the group of the root of a namespace": {
        "native": Way(lambda s, p: s.native(p, "PATCH", "/entries/", {"group": 1002}))
    },
    "change the owner of the root of a namespace": {
        "native": Way(lambda s, p: s.native(p, "PATCH", "/entries/", {"owner": 1003}))
    },
    "change the umask of a namespace": {"native": Way(lambda s, p: s.native(p, "PATCH", "", {"umask": "027"}))},
    "remove a namespace": {
        "native": Way(lambda s, p: s.native(p, "DELETE", "")),
        "S3": Way(lambda s, p: s.s3(p, "DELETE", "")),
    },
}
