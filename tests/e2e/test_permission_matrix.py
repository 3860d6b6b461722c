"""Every cell of the permission matrix, through S3, the native API and the SQL verbs.

tests/support/permission_model.py states what each operation needs. For each operation it makes every class of callers
with every bit, on the way, in the directory and on the entry. Here each becomes directories and an entry of its own,
made in batches, and the operation is tried as Bob (1002, in group 50). The page has its table from the same model.

The SQL verbs do not walk, so cells that differ on the way are tried through the gateway alone.
"""

import itertools
import os
import urllib.parse
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import botocore.credentials
import psycopg
import pytest
from psycopg.types.json import Jsonb

from stack.layout import REPOSITORY
from tests.support import permission_model as model
from tests.support.permission_model import BY_NAME, CALLER, OPEN, OTHER_GROUP, RULES, Cell, Permission, Rule
from tests.support.rest import Rest
from tests.support.s3_wire import Wire

from .principals import PRINCIPALS, shared_gateway

PAGE = REPOSITORY / "docs" / "permissions.md"
BEGIN, END = "<!-- matrix -->\n", "<!-- end of matrix -->\n"
BATCH = 400
THREADS = 4
BOB = "bob"
CALLER_TEXT = ",".join(map(str, (PRINCIPALS[BOB][0], *PRINCIPALS[BOB][1])))
BYTES = b"secret"


@dataclass
class Place:
    """A cell in the namespace: `above/` holds `d/`, which holds the entry `e` or `e/`, and all beside it is open."""

    rule: Rule
    cell: Cell
    number: int
    above_id: int = 0
    directory_id: int = 0
    entry_id: int = 0

    @property
    def above(self) -> str:
        return f"c{self.number}/"

    @property
    def directory(self) -> str:
        return f"{self.above}d/"

    @property
    def is_directory(self) -> bool:
        return "directory" in self.rule.operation

    @property
    def entry_name(self) -> str:
        return "e/" if self.is_directory else "e"

    @property
    def key(self) -> str:
        return self.directory + self.entry_name

    @property
    def own(self) -> str:
        """A key of the caller's, beside the cell."""
        return f"free/own{self.number}"


class World:
    """The bucket, with what makes and tries cells."""

    def __init__(self, gateway, stack, superuser: psycopg.Connection):
        self.gateway, self.superuser = gateway, superuser
        self.bucket = f"matrix-{uuid.uuid4().hex[:12]}"
        self.root = gateway.rest("root")
        assert self.root.call("PUT", f"/v1/ns/{self.bucket}?mode=0777&umask=000").status == 201
        (self.ns,) = superuser.execute("SELECT ns FROM mantle.namespace(%s)", (self.bucket,)).fetchone()
        self.free = self.mkdirs([(self.ns, "free/", OPEN)])[0]
        wire = self.wire(stack, "root")
        assert wire.call("PUT", f"/{self.bucket}/bytes", BYTES).status == 200
        found = superuser.execute("SELECT locator, etag FROM mantle.meta WHERE pid = %s AND name = 'bytes'", (self.ns,))
        self.locator, self.etag = found.fetchone()
        self.numbers = itertools.count()

    def wire(self, stack, name: str) -> Wire:
        wire = Wire(stack)
        wire.url, wire.host, wire.port = self.gateway.url, self.gateway.host.address, self.gateway.port
        wire.keys = botocore.credentials.Credentials(f"AK{name}", f"SK{name}")
        return wire

    def ids(self, count: int) -> list[int]:
        (first,) = self.superuser.execute("SELECT first_id FROM mantle.allocate_ids('matrix', %s)", (count,)).fetchone()
        return list(range(first, first + count))

    def mkdirs(self, rows: list[tuple[int, str, Permission]]) -> list[int]:
        return self.make(
            rows,
            "SELECT code FROM mantle.mkdir(%(zero)s::int[], %(ns)s::bigint[], %(pid)s::bigint[], %(name)s::text[],"
            " %(id)s::bigint[], %(owner)s::int[], %(grp)s::int[], %(mode)s::int[], %(yes)s::boolean[],"
            " %(none)s::text[]::jsonb[], %(request)s::uuid[], %(zero)s::bigint[])",
        )

    def puts(self, rows: list[tuple[int, str, Permission]], locator: str | None) -> list[int]:
        return self.make(
            rows,
            "SELECT code FROM mantle.put_object(%(zero)s::int[], %(ns)s::bigint[], %(pid)s::bigint[], %(name)s::text[],"
            " %(id)s::bigint[], %(owner)s::int[], %(grp)s::int[], %(mode)s::int[], %(size)s::bigint[],"
            " %(etag)s::text[], %(none)s::text[], %(none)s::text[]::jsonb[], %(locator)s::text[], %(none)s::text[],"
            " %(request)s::uuid[], %(zero)s::bigint[])",
            locator,
        )

    def make(self, rows: list, query: str, locator: str | None = None) -> list[int]:
        made = self.ids(len(rows))
        for at in range(0, len(rows), BATCH):
            some, ids = rows[at : at + BATCH], made[at : at + BATCH]
            each = lambda value, some=some: [value] * len(some)
            given = {
                "zero": each(0), "ns": each(self.ns), "pid": [row[0] for row in some], "name": [row[1] for row in some],
                "id": ids, "owner": [row[2].owner for row in some], "grp": [row[2].group for row in some],
                "mode": [row[2].mode for row in some], "yes": each(True), "none": each(None), "size": each(len(BYTES)),
                "etag": each(getattr(self, "etag", None)), "locator": each(locator),
                "request": [uuid.uuid4() for _ in some],
            }  # fmt: skip
            assert {code for (code,) in self.superuser.execute(query, given)} == {None}
        return made

    def places(self, rule: Rule, cells: list[Cell]) -> list[Place]:
        """Makes these cells. The index has them when this returns."""
        places = [Place(rule, cell, next(self.numbers)) for cell in cells]
        above = self.mkdirs([(self.ns, place.above, place.cell.above) for place in places])
        below = self.mkdirs([(id, "d/", place.cell.directory) for id, place in zip(above, places, strict=True)])
        entries = [(id, place.entry_name, place.cell.entry) for id, place in zip(below, places, strict=True)]
        is_directory = places[0].is_directory
        has_bytes = rule.operation == "read an object"
        made = self.mkdirs(entries) if is_directory else self.puts(entries, self.locator if has_bytes else None)
        if "rename an object" in rule.operation:
            own = Permission(CALLER, OTHER_GROUP, 0o600)
            self.puts([(self.free, place.own.removeprefix("free/"), own) for place in places], None)
        for place, *ids in zip(places, above, below, made, strict=True):
            place.above_id, place.directory_id, place.entry_id = ids
        # The stream has everything in the order of the commits.
        assert self.root.call("PUT", f"/v1/ns/{self.bucket}/dirs/free/{uuid.uuid4().hex}/").status == 201
        return places


@pytest.fixture(scope="module")
def world(stack) -> Iterator[World]:
    with (
        shared_gateway(stack) as gateway,
        psycopg.connect(
            host="127.0.0.1", port=stack.layout.postgresql_port, dbname="mantle", user="postgres", autocommit=True,
            password=(stack.layout.secrets / "superuser").read_text(encoding="ascii").strip(),
        ) as superuser,
    ):  # fmt: skip
        yield World(gateway, stack, superuser)


# How each operation is tried; each answers whether it was carried out. Anything but a success and a refusal fails.
Try = Callable[[World, Place, "Session"], bool]


class Session:
    """The caller's connections, of one thread."""

    def __init__(self, world: World, stack):
        self.rest: Rest = world.gateway.rest(BOB)
        self.wire = world.wire(stack, BOB)
        self.connection = self.wire.connection()
        self.ns = world.bucket

    def native(self, method: str, target: str, body=None) -> bool:
        answer = self.rest.call(method, f"/v1/ns/{self.ns}/{target}", body)
        return done(answer.status, answer.body)

    def s3(self, method: str, key: str, body: bytes = b"", headers: dict | None = None, query: str = "") -> bool:
        target = f"/{self.ns}/{urllib.parse.quote(key)}{query}"
        answer = self.wire.call(method, target, body, headers, self.connection)
        return done(answer.status, answer.body)

    def rename(self, source: str, destination: str, overwrite: bool = False) -> bool:
        return self.native("POST", "rename", {"src": source, "dst": destination, "overwrite": overwrite})

    def shows_etag(self, place: Place) -> bool:
        answer = self.rest.call("GET", f"/v1/ns/{self.ns}/entries/{place.key}")
        return done(answer.status, answer.body) and "etag" in answer.body

    def copies(self, world: World, place: Place) -> bool:
        source = {"x-amz-copy-source": f"/{self.ns}/bytes"}
        return self.s3("PUT", place.key, headers=source)


def done(status: int, body: object) -> bool:
    assert status in (200, 201, 204, 403), (status, body)
    return status != 403


THROUGH: dict[str, dict[str, Try]] = {
    "put a new object": {"S3": lambda w, p, s: s.s3("PUT", p.directory + "new", b"1")},
    "make a directory": {
        "native": lambda w, p, s: s.native("PUT", f"dirs/{p.directory}new/"),
        "S3": lambda w, p, s: s.s3("PUT", p.directory + "new/"),
    },
    "overwrite an object": {"S3": lambda w, p, s: s.s3("PUT", p.key, b"1")},
    "read an object": {
        "S3 GET": lambda w, p, s: s.s3("GET", p.key),
        "S3 HEAD": lambda w, p, s: s.s3("HEAD", p.key),
        "native": lambda w, p, s: s.shows_etag(p),
        "S3 copy": lambda w, p, s: s.s3("PUT", p.own, headers={"x-amz-copy-source": f"/{s.ns}/{p.key}"}),
    },
    "stat": {"native": lambda w, p, s: s.native("GET", f"entries/{p.key}")},
    "list": {
        "native": lambda w, p, s: s.native("GET", f"list/{p.directory}"),
        "S3": lambda w, p, s: s.s3("GET", "", query=f"?list-type=2&prefix={urllib.parse.quote(p.directory, safe='')}"),
    },
    "delete an object": {"S3": lambda w, p, s: s.s3("DELETE", p.key)},
    "remove an empty directory": {
        "native": lambda w, p, s: s.native("DELETE", f"dirs/{p.key}"),
        "S3": lambda w, p, s: s.s3("DELETE", p.key),
    },
    "rename an object away": {"native": lambda w, p, s: s.rename(p.key, p.own + "x")},
    "rename an object to a new name": {"native": lambda w, p, s: s.rename(p.own, p.directory + "new")},
    "rename an object onto another": {"native": lambda w, p, s: s.rename(p.own, p.key, overwrite=True)},
    "rename a directory in its parent": {"native": lambda w, p, s: s.rename(p.key, p.directory + "new/")},
    "move a directory to another parent": {"native": lambda w, p, s: s.rename(p.key, p.own + "/")},
    "change the mode": {"native": lambda w, p, s: s.native("PATCH", f"entries/{p.key}", {"mode": "0604"})},
    "change the group": {"native": lambda w, p, s: s.native("PATCH", f"entries/{p.key}", {"group": CALLER})},
    "change user metadata": {
        "native": lambda w, p, s: s.native("PATCH", f"entries/{p.key}", {"user_metadata": {"a": "b"}})
    },
}

# The SQL verbs, with their own arguments after principal, namespace, directory and name.
OPTIONS = {"request": "uuid", "hash": "bigint", "lease": "text", "caller": "text", "parent": "text"}


def verb(world: World, place: Place, name: str, entry: str, arguments: list[tuple[str, object]]) -> str | None:
    """The code that a batch verb answers to one element."""
    end = [
        ("uuid", uuid.uuid4()), ("bigint", 0), ("text", None), ("text", CALLER_TEXT),
        ("text", f"{place.cell.directory.owner},{place.cell.directory.group},{place.cell.directory.mode}"),
    ]  # fmt: skip
    given = [("int", CALLER), ("bigint", world.ns), ("bigint", place.directory_id), ("text", entry), *arguments, *end]
    call = ", ".join(f"ARRAY[%s]::{of}[]" for of, _ in given)
    return world.superuser.execute(f"SELECT code FROM mantle.{name}({call})", [value for _, value in given]).fetchone()[
        0
    ]


def put_object(world: World, place: Place, name: str) -> str | None:
    new = [("bigint", world.ids(1)[0]), ("int", CALLER), ("int", CALLER), ("int", 0o666), ("bigint", 1), ("text", "e")]
    return verb(
        world, place, "put_object", name, [*new, ("text", None), ("jsonb", None), ("text", None), ("text", None)]
    )


def mkdir(world: World, place: Place) -> str | None:
    new = [("bigint", world.ids(1)[0]), ("int", CALLER), ("int", CALLER), ("int", 0o777), ("boolean", True)]
    return verb(world, place, "mkdir", "new/", [*new, ("jsonb", None)])


def set_attributes(world: World, place: Place, **new: object) -> str | None:
    given = [("int", None), ("int", new.get("grp")), ("int", new.get("mode")), ("jsonb", new.get("user_metadata"))]
    return verb(
        world, place, "set_attributes", place.entry_name, [("bigint", place.entry_id), *given, ("boolean", None)]
    )


def rename_object(
    world: World, place: Place, source: tuple[int, str], to: tuple[int, str], parents: list
) -> str | None:
    call = "SELECT code FROM mantle.rename_object(%s, %s, %s, %s, %s, %s, %s, %s, 0, NULL, %s, %s, %s)"
    texts = [f"{one.owner},{one.group},{one.mode}" for one in parents]
    given = [CALLER, world.ns, *source, *to, True, uuid.uuid4(), CALLER_TEXT, *texts]
    return world.superuser.execute(call, given).fetchone()[0]


def rename_directory(world: World, place: Place, to: tuple[int, str]) -> str | None:
    """A directory's rename is checked by the index; the verb checks what was changed since, which its record has."""
    here = place.cell.directory
    record = "SELECT FROM mantle.record_permission_delegated(%s, %s, %s, %s, %s)"
    world.superuser.execute(record, (place.directory_id, world.ns, here.owner, here.group, here.mode))
    request, epoch = uuid.uuid4(), world.superuser.execute("SELECT epoch FROM mantle.index_group(1)").fetchone()[0]
    moved = [CALLER, world.ns, place.directory_id, place.entry_name, place.entry_id, *to, 0, 1, epoch, 1 << 50, request]
    proof = [1, epoch, 1 << 50, CALLER, world.ns, request, place.directory_id, place.entry_name, place.entry_id, *to, 0]
    query = (
        f"SELECT code FROM mantle.rename_directory({', '.join(['%s'] * len(moved))}, 0, NULL, %s,"
        f" mantle.prove({', '.join(['%s'] * len(proof))}))"
    )
    return world.superuser.execute(query, [*moved, CALLER_TEXT, *proof]).fetchone()[0]


def own(place: Place) -> str:
    return place.own.removeprefix("free/")


SQL: dict[str, Callable[[World, Place], str | None]] = {
    "put a new object": lambda w, p: put_object(w, p, "new"),
    "make a directory": mkdir,
    "overwrite an object": lambda w, p: put_object(w, p, p.entry_name),
    "delete an object": lambda w, p: verb(w, p, "delete_object", p.entry_name, [("bigint", None), ("bigint", None)]),
    "remove an empty directory": lambda w, p: verb(w, p, "rmdir", p.entry_name, [("bigint", p.entry_id)]),
    "rename an object away": lambda w, p: rename_object(
        w, p, (p.directory_id, p.entry_name), (w.free, own(p) + "x"), [p.cell.directory, OPEN]
    ),
    "rename an object to a new name": lambda w, p: rename_object(
        w, p, (w.free, own(p)), (p.directory_id, "new"), [OPEN, p.cell.directory]
    ),
    "rename an object onto another": lambda w, p: rename_object(
        w, p, (w.free, own(p)), (p.directory_id, p.entry_name), [OPEN, p.cell.directory]
    ),
    "rename a directory in its parent": lambda w, p: rename_directory(w, p, (p.directory_id, "new/")),
    "move a directory to another parent": lambda w, p: rename_directory(w, p, (w.free, own(p) + "/")),
    "change the mode": lambda w, p: set_attributes(w, p, mode=0o604),
    "change the group": lambda w, p: set_attributes(w, p, grp=CALLER),
    "change user metadata": lambda w, p: set_attributes(w, p, user_metadata=Jsonb({"a": "b"})),
}
# Reads are the gateway's alone.
READS = {"read an object", "stat", "list"}


def wrong(place: Place, was_done: bool) -> str | None:
    expected = place.rule.allows(place.cell)
    return None if was_done == expected else f"{place.rule.operation}: {place.cell}: done: {was_done}"


def test_no_operation_is_left_out():
    assert THROUGH.keys() == BY_NAME.keys() == SQL.keys() | READS


@pytest.mark.parametrize(
    ("operation", "way"), [(rule.operation, way) for rule in RULES for way in THROUGH[rule.operation]]
)
def test_every_cell_through_the_gateway(stack, world, operation, way):
    rule = BY_NAME[operation]
    cells = model.cells(rule)
    places = world.places(rule, cells)
    with ThreadPoolExecutor(THREADS) as pool:
        parts = [places[number::THREADS] for number in range(THREADS)]

        def try_all(part: list[Place]) -> list[str | None]:
            session = Session(world, stack)
            return [wrong(place, THROUGH[operation][way](world, place, session)) for place in part]

        found = [one for part in pool.map(try_all, parts) for one in part]
    assert len(found) == len(cells) and [one for one in found if one] == []


@pytest.mark.parametrize("operation", list(SQL))
def test_every_cell_through_the_sql_verbs(world, operation):
    rule = BY_NAME[operation]
    cells = [cell for cell in model.cells(rule) if cell.above == OPEN]
    found = []
    for place in world.places(rule, cells):
        code = SQL[operation](world, place)
        assert code in (None, "MT030"), (code, place)
        found.append(wrong(place, code is None))
    assert [one for one in found if one] == []


def test_the_page_has_the_table():
    """MANTLE_BLESS=1 renews it."""
    text = Path(PAGE).read_text(encoding="utf-8")
    before, rest = text.split(BEGIN)
    _, after = rest.split(END)
    current = f"{before}{BEGIN}{model.table()}{END}{after}"
    if os.environ.get("MANTLE_BLESS"):
        Path(PAGE).write_text(current, encoding="utf-8")
    assert text == current or os.environ.get("MANTLE_BLESS"), "MANTLE_BLESS=1 renews the table"
