"""The cells of the permission matrix as directories and entries: one bucket, in which each cell has a place of its own,
or for an operation on a namespace one bucket each. They are made by the SQL verbs, in batches.
"""

import itertools
import uuid
from dataclasses import dataclass

import botocore.credentials
import psycopg

from tests.support.permission_model import CALLER, OPEN, OTHER_GROUP, Cell, Permission, Rule
from tests.support.rest import Rest
from tests.support.s3_wire import Wire

from .principals import PRINCIPALS, SharedGateway

BATCH = 400
BYTES = b"secret"
# The operations for which each cell has something of the caller's, in an open directory.
MOVES_OBJECT = {"rename an object to a new name", "rename an object onto another"}
MOVES_DIRECTORY = {"move a directory to a new name", "move a directory onto an empty one"}
# And those that need something in the entry, a directory.
HOLDS_OBJECT = {"make a directory implicit", "list everything below"}
HOLDS_DIRECTORY = {"remove a directory with everything below"}
UPLOADS_OF_OTHERS = "go on with an upload of another's"


@dataclass
class Place:
    """A cell in the bucket: `above/` holds `d/`, which holds the entry `e` or `e/`, and all beside it is open."""

    rule: Rule
    cell: Cell
    number: int
    bucket: str
    above_id: int = 0
    directory_id: int = 0
    entry_id: int = 0
    own_id: int = 0
    upload: str = ""
    # Whether an open directory is between `above` and `d`.
    is_deep: bool = False

    @property
    def above(self) -> str:
        return f"c{self.number}/"

    @property
    def directory(self) -> str:
        return f"{self.above}m/d/" if self.is_deep else f"{self.above}d/"

    @property
    def entry_name(self) -> str:
        return "e/" if self.rule.is_directory else "e"

    @property
    def key(self) -> str:
        return self.directory + self.entry_name

    @property
    def new(self) -> str:
        """A key beside the entry that does not exist yet."""
        return self.directory + ("new/" if self.rule.is_directory else "new")

    @property
    def own(self) -> str:
        """A key of the caller's, elsewhere."""
        return f"free/own{self.number}" + ("/" if self.rule.is_directory else "")

    @property
    def own_name(self) -> str:
        return self.own.removeprefix("free/")

    @property
    def other(self) -> str:
        """A key elsewhere that does not exist yet."""
        return f"free/new{self.number}" + ("/" if self.rule.is_directory else "")


class World:
    """The bucket, with what makes cells."""

    def __init__(self, gateway: SharedGateway, stack, superuser: psycopg.Connection):
        self.gateway, self.stack, self.superuser = gateway, stack, superuser
        self.bucket = f"matrix-{uuid.uuid4().hex[:12]}"
        self.root = gateway.rest("root")
        assert self.root.call("PUT", f"/v1/ns/{self.bucket}?mode=0777&umask=000").status == 201
        (self.ns,) = superuser.execute("SELECT ns FROM mantle.namespace(%s)", (self.bucket,)).fetchone()
        # And a directory whose key may be copied.
        self.free, _ = self.mkdirs([(self.ns, "free/", OPEN), (self.ns, "marker/", OPEN)])
        wire = self.wire("root")
        assert wire.call("PUT", f"/{self.bucket}/bytes", BYTES).status == 200
        found = superuser.execute("SELECT locator, etag FROM mantle.meta WHERE pid = %s AND name = 'bytes'", (self.ns,))
        self.locator, self.etag = found.fetchone()
        # A part of these bytes, of which the cells' uploads have copies.
        upload = self.new_upload(wire, "part")
        assert wire.call("PUT", f"/{self.bucket}/part?uploadId={upload}&partNumber=1", BYTES).status == 200
        part = "SELECT etag, checksum, locator FROM mantle.extents WHERE upload = %s"
        self.part = superuser.execute(part, (int(upload, 16),)).fetchone()
        self.numbers = itertools.count()

    def rest(self, name: str) -> Rest:
        return self.gateway.rest(name)

    def wire(self, name: str) -> Wire:
        wire = Wire(self.stack)
        wire.url, wire.host, wire.port = self.gateway.url, self.gateway.host.address, self.gateway.port
        wire.keys = botocore.credentials.Credentials(f"AK{name}", f"SK{name}")
        return wire

    def new_upload(self, wire: Wire, key: str) -> str:
        answer = wire.call("POST", f"/{self.bucket}/{key}?uploads")
        assert answer.status == 200, answer
        return answer.text.split("<UploadId>")[1].split("<")[0]

    def ids(self, count: int) -> list[int]:
        (first,) = self.superuser.execute("SELECT first_id FROM mantle.allocate_ids('matrix', %s)", (count,)).fetchone()
        return list(range(first, first + count))

    def mkdirs(self, rows: list[tuple[int, str, Permission]], *, explicit: bool = True) -> list[int]:
        return self.make(
            rows,
            "SELECT code FROM mantle.mkdir(%(zero)s::int[], %(ns)s::bigint[], %(pid)s::bigint[], %(name)s::text[],"
            " %(id)s::bigint[], %(owner)s::int[], %(grp)s::int[], %(mode)s::int[], %(explicit)s::boolean[],"
            " %(none)s::text[]::jsonb[], %(request)s::uuid[], %(zero)s::bigint[])",
            explicit=explicit,
        )

    def puts(self, rows: list[tuple[int, str, Permission]], **given) -> list[int]:
        return self.make(
            rows,
            "SELECT code FROM mantle.put_object(%(zero)s::int[], %(ns)s::bigint[], %(pid)s::bigint[], %(name)s::text[],"
            " %(id)s::bigint[], %(owner)s::int[], %(grp)s::int[], %(mode)s::int[], %(size)s::bigint[],"
            " %(etag)s::text[], %(none)s::text[], %(metadata)s::text[]::jsonb[], %(locator)s::text[], %(none)s::text[],"
            " %(request)s::uuid[], %(zero)s::bigint[])",
            **given,
        )

    def make(
        self, rows: list, query: str, explicit: bool = True, locator: str | None = None, metadata: str | None = None
    ):
        made = self.ids(len(rows))
        for at in range(0, len(rows), BATCH):
            some, ids = rows[at : at + BATCH], made[at : at + BATCH]
            each = lambda value, some=some: [value] * len(some)
            given = {
                "zero": each(0), "ns": each(self.ns), "pid": [row[0] for row in some], "name": [row[1] for row in some],
                "id": ids, "owner": [row[2].owner for row in some], "grp": [row[2].group for row in some],
                "mode": [row[2].mode for row in some], "explicit": each(explicit), "none": each(None),
                "size": each(len(BYTES)), "etag": each(getattr(self, "etag", None)), "locator": each(locator),
                "metadata": each(metadata), "request": [uuid.uuid4() for _ in some],
            }  # fmt: skip
            assert {code for (code,) in self.superuser.execute(query, given)} == {None}
        return made

    def places(
        self,
        rule: Rule,
        cells: list[Cell],
        *,
        explicit: bool = True,
        uploads: str = "",
        metadata: str | None = None,
        is_deep: bool = False,
    ) -> list[Place]:
        """Makes these cells. The index has them when this returns.

        `explicit`: whether an entry that is a directory is. `uploads`: the key of an upload that each cell has,
        `key` or `new`. `metadata`: of a namespace's root. `is_deep`: the directory on the way is not the one above.
        """
        if rule.is_namespace:
            return self.namespaces(rule, cells, metadata)
        places = [Place(rule, cell, next(self.numbers), self.bucket, is_deep=is_deep) for cell in cells]
        above = self.mkdirs([(self.ns, place.above, place.cell.above) for place in places])
        if is_deep:
            above = self.mkdirs([(id, "m/", OPEN) for id in above])
        below = self.mkdirs([(id, "d/", place.cell.directory) for id, place in zip(above, places, strict=True)])
        entries = [(id, place.entry_name, place.cell.entry) for id, place in zip(below, places, strict=True)]
        if rule.is_directory:
            made = self.mkdirs(entries, explicit=explicit)
        else:
            locator = self.locator if rule.operation == "read an object" else None
            metadata = '{":tagging": "a=b"}' if rule.operation == "change tags" else None
            made = self.puts(entries, locator=locator, metadata=metadata)
        for place, *ids in zip(places, above, below, made, strict=True):
            place.above_id, place.directory_id, place.entry_id = ids
        # The worker would remove an implicit directory that holds nothing.
        if rule.operation in HOLDS_OBJECT or not explicit:
            self.puts([(place.entry_id, "k", OPEN) for place in places])
        self.add_more(rule, places)
        if uploads:
            self.add_uploads(places, uploads)
        # The stream has everything in the order of the commits.
        self.root.mkdir(self.bucket, f"free/{uuid.uuid4().hex}")
        return places

    def add_more(self, rule: Rule, places: list[Place]) -> None:
        """What an operation needs besides the entry."""
        if rule.operation in MOVES_OBJECT:
            own = Permission(CALLER, OTHER_GROUP, 0o600)
            self.puts([(self.free, place.own_name, own) for place in places])
        if rule.operation in MOVES_DIRECTORY:
            own = Permission(CALLER, OTHER_GROUP, 0o700)
            for place, id in zip(places, self.mkdirs([(self.free, p.own_name, own) for p in places]), strict=True):
                place.own_id = id
        if rule.operation in HOLDS_DIRECTORY:
            self.mkdirs([(place.entry_id, "f/", place.cell.below) for place in places])

    def add_uploads(self, places: list[Place], key: str) -> None:
        principal = PRINCIPALS["carol"][0] if places[0].rule.operation == UPLOADS_OF_OTHERS else CALLER
        ids, etag, checksum, locator = self.ids(len(places)), *self.part
        keys = [getattr(place, key) for place in places]
        made = self.superuser.execute(
            "SELECT mantle.create_upload_delegated(u.id, %s, u.key, %s, 0, NULL, NULL, NULL, 'FULL_OBJECT')"
            " FROM unnest(%s::bigint[], %s::text[]) AS u(id, key)",
            (self.ns, principal, ids, keys),
        ).fetchall()
        parts = self.superuser.execute(
            "SELECT (mantle.put_part_delegated(u.id, %s, 1, %s, %s, ARRAY[%s], '{0}', ARRAY[%s::bigint], true,"
            " NULL)).code FROM unnest(%s::bigint[]) AS u(id)",
            (self.ns, etag, checksum, locator, len(BYTES), ids),
        ).fetchall()
        assert {code for (code,) in made + parts} == {None}
        for place, id in zip(places, ids, strict=True):
            place.upload = f"{id:016x}"

    def namespaces(self, rule: Rule, cells: list[Cell], metadata: str | None) -> list[Place]:
        places = []
        for cell, id in zip(cells, self.ids(len(cells)), strict=True):
            number = next(self.numbers)
            place = Place(rule, cell, number, f"{self.bucket}-{number}", entry_id=id)
            root = cell.entry
            made = self.superuser.execute(
                "SELECT code FROM mantle.create_namespace(0, %s, %s, %s, %s, %s, gen_random_uuid(), 0)",
                (place.bucket, id, root.owner, root.group, root.mode),
            ).fetchone()
            assert made == (None,)
            if metadata:
                described = self.superuser.execute(
                    "SELECT code FROM mantle.set_attributes('{0}', ARRAY[%s::bigint], '{0}', ARRAY[%s::text],"
                    " ARRAY[%s::bigint], '{NULL}', '{NULL}', '{NULL}', ARRAY[%s::jsonb], '{NULL}',"
                    " ARRAY[gen_random_uuid()], '{0}')",
                    (id, f"{place.bucket}/", id, metadata),
                ).fetchone()
                assert described == (None,)
            places.append(place)
        last = f"{self.bucket}-last-{uuid.uuid4().hex[:8]}"
        self.root.create_namespace(last)
        self.root.delete_namespace(last)
        return places
