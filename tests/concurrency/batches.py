"""Random batches of mkdir and put_object, with everything that a verb must refuse.

A batch is a list of elements; an element has a value for each parameter. Names, directories and request ids come from
small pools, so that elements meet existing entries, tombstones, each other and earlier requests.
"""

import random
import uuid

from psycopg.types.json import Jsonb

# Parameters of the verbs and the types of their arrays, in the order of the call.
COMMON = {
    "principal": "int",
    "ns": "bigint",
    "pid": "bigint",
    "name": "text",
    "id": "bigint",
    "owner": "int",
    "grp": "int",
    "mode": "int",
}
REQUEST = {"request": "uuid", "hash": "bigint", "lease": "text", "caller": "text", "parent": "text"}
# Their arrays may be NULL.
OPTIONAL = ("lease", "caller", "parent", "inline")
PARAMETERS = {
    "mkdir": COMMON | {"explicit": "boolean", "user_metadata": "jsonb"} | REQUEST,
    "put_object": COMMON
    | {
        "size": "bigint",
        "etag": "text",
        "content_type": "text",
        "user_metadata": "jsonb",
        "locator": "text",
        "condition": "text",
    }
    | REQUEST
    | {"inline": "bytea"},
}
STEMS = ("a", "b", "é", "x" * 255)
BAD_STEMS = ("", ".", "..", "x/y", "/_ATTR", "y" * 256, "/")
OBJECT_BYTES_MAX = 1 << 48
LOCATOR_BYTES_MAX = 2048
INLINE_BYTES_MAX = 16_384
# What the databases admit: volume, segment, epoch.
ADMITTED = ((1, 0, 5), (1, 1, 5))
GOOD_IN_VOLUMES = ("v1:1.0.5/1.1/0+1", "v1:1.1.5/1.2/3+4,5+6")
BAD_IN_VOLUMES = ("v1:1.0.4/1.1/0+1", "v1:1.2.5/1.1/0+1", "v1:2.0.5/1.1/0+1", "v1:1.0.05/1.1/0+1", "v1:")
# Locators of bytes that would have to come along.
BAD_INLINE = ("inline:1", "inline:")
DAY_MS = 86_400_000

Element = dict[str, object]


class Batches:
    """A source of batches for one namespace. `now_ms` is the time that request ids of version 7 are relative to."""

    def __init__(self, seed: int, ns: int, first_id: int, lease: str, now_ms: int):
        self.random = random.Random(seed)
        self.ns = ns
        self.next_id = first_id
        self.unrecorded_id = first_id + (1 << 40)
        deadline, rest = lease.split("/", 1)
        self.leases = [lease, lease, f"{int(deadline) - 3_600_000_000}/{rest}", lease[:-1] + "9", "no lease"]
        self.now_ms = now_ms
        self.directories = [ns]
        self.requests: list[uuid.UUID] = []

    def next(self) -> tuple[str, list[Element]]:
        """A verb and its elements; in one batch of four, only new entries that pass every check."""
        verb = self.random.choice(("mkdir", "put_object"))
        is_good = self.random.random() < 1 / 4
        elements = [self.element(verb, is_good) for _ in range(self.random.choice((1, 1, 2, 3, 6, 12)))]
        if self.random.random() < 0.5:
            for element in elements:
                element["lease"] = None
        elif not is_good and self.random.random() < 0.3:
            for element in elements:
                element["lease"] = self.random.choice(self.leases)
        if not is_good and len(elements) > 1 and self.random.random() < 0.2:
            copied = self.random.sample(("name", "pid", "request", "hash"), self.random.randint(1, 4))
            elements[-1] |= {parameter: elements[0][parameter] for parameter in copied}
        self.requests += [element["request"] for element in elements if element["request"]]
        # Only a few of the new directories are used, so that entries meet in one.
        if verb == "mkdir" and elements[0]["id"] is not None and self.random.random() < 0.5:
            self.directories.append(elements[0]["id"])
        return verb, elements

    def element(self, verb: str, is_good: bool) -> Element:
        choose, slash = self.random.choice, "/" if verb == "mkdir" else ""
        self.next_id += 1
        stem = f"n{self.next_id}" if is_good else choose(STEMS)
        element = {
            "principal": 5,
            "ns": self.ns,
            "pid": choose(self.directories[-6:]),
            "name": stem + slash,
            "id": self.next_id,
            "owner": 7,
            "grp": 8,
            "mode": choose((0, 0o755, 0o777)),
            "request": self.request(7),
            "hash": choose((0, 1, 2)),
            "lease": self.leases[0],
            "caller": choose(("7,8", "9,8,20")),
            "parent": "7,8,504",
            "user_metadata": choose((None, Jsonb({"k": "v"}))),
        }
        if verb == "mkdir":
            element["explicit"] = choose((True, False))
        else:
            element |= {
                "size": choose((0, 1, 1000, OBJECT_BYTES_MAX)),
                "etag": choose((None, "e")),
                "content_type": choose((None, "t")),
                "locator": choose((None, "l", "l" * LOCATOR_BYTES_MAX, *GOOD_IN_VOLUMES)),
                "condition": choose((None, "*absent")),
                "inline": None,
            }
            if self.random.random() < 1 / 3:
                # The larger ones are not in their row.
                inline = bytes([choose((0, 7, 255))]) * choose((1, 40, 4096, 9000, INLINE_BYTES_MAX))
                element |= {"size": len(inline), "locator": None, "inline": inline}
        if not is_good:
            oddities = self.oddities(verb)
            for parameter in self.random.sample(sorted(oddities), self.random.choice((0, 0, 1, 1, 2))):
                element[parameter] = choose(oddities[parameter])
        return element

    def oddities(self, verb: str) -> dict[str, tuple]:
        """Values that a verb refuses, or that lead it away from a new entry."""
        slash = "/" if verb == "mkdir" else ""
        reused = self.random.choice(self.requests) if self.requests else None
        odd = {
            "principal": (6, None),
            "ns": (self.unrecorded_id, None),
            "pid": (0, 1023, self.unrecorded_id, None),
            "name": (*(stem + slash for stem in BAD_STEMS), "a" if slash else "a/", None),
            "id": (self.unrecorded_id, 0, None),
            "owner": (-1, None),
            "grp": (-1, None),
            "mode": (-1, 0o1755, 0o2000, None),
            "request": (reused, self.request(4), self.request(7, 300_000), self.request(7, 3 * DAY_MS), None),
            "hash": (None,),
            "lease": (*self.leases, None),
            "caller": ("0", "5", "9,20", "nobody", None),
            "parent": ("7,8,455", "7,8,1016", "9,8,448", "0755", None),
        }
        if verb == "mkdir":
            return odd | {"explicit": (None,)}
        return odd | {
            "size": (-1, OBJECT_BYTES_MAX + 1, None),
            "locator": ("l" * (LOCATOR_BYTES_MAX + 1), *BAD_IN_VOLUMES, *BAD_INLINE),
            "inline": (b"", b"another size", bytes(INLINE_BYTES_MAX + 1)),
            "condition": ("*present", "e", "other"),
        }

    def request(self, version: int, age_ms: int = 0) -> uuid.UUID:
        """A request id; one of version 7 has the time when it was made in its first six bytes."""
        bits = self.random.getrandbits(128)
        if version == 7:
            bits = (self.now_ms - age_ms) << 80 | bits & ((1 << 80) - 1)
        return uuid.UUID(int=bits & ~(0xF << 76) & ~(0x3 << 62) | version << 76 | 0x2 << 62)
