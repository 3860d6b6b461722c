"""How each operation of the permission matrix is tried through the SQL verbs, as a gateway calls them.

The verbs get a directory's id, so they do not check the directories on the way. Each function returns the codes of its
places, in order; a batch verb takes all places in one call.
"""

import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from tests.support.permission_model import BY_NAME, CALLER, OPEN, Permission, Rule

from .permission_places import Place, World
from .principals import PRINCIPALS
from .sql_renames import ATTEMPT, Who, marks, record_permission, rename_directory

Codes = list[str | None]


BOB = Who(CALLER, ",".join(map(str, (CALLER, *PRINCIPALS["bob"][1]))))


def text(of: Permission) -> str:
    return f"{of.owner},{of.group},{of.mode}"


def batch(
    world: World,
    who: Who,
    places: list[Place],
    verb: str,
    names: list[str],
    arguments: list[tuple[str, list]],
    later: Sequence[tuple[str, list]] = (),
) -> Codes:
    """A batch verb. Its own arguments (type and values) come after principal, namespace, directory and name;
    `later` are the last.
    """
    each = lambda value: [value] * len(places)
    given = [
        ("int", each(who.uid)), ("bigint", each(world.ns)), ("bigint", [place.directory_id for place in places]),
        ("text", names), *arguments, ("uuid", [uuid.uuid4() for _ in places]), ("bigint", each(0)),
        ("text", each(None)), ("text", each(who.text)), ("text", [text(place.cell.directory) for place in places]),
        *later,
    ]  # fmt: skip
    call = f"SELECT code FROM mantle.{verb}({', '.join(f'%s::{of}[]' for of, _ in given)}) ORDER BY ord"
    return [code for (code,) in world.superuser.execute(call, [values for _, values in given])]


def put_object(world: World, who: Who, places: list[Place], names: list[str]) -> Codes:
    each = lambda value: [value] * len(places)
    new = [
        ("bigint", world.ids(len(places))), ("int", each(who.uid)), ("int", each(who.uid)), ("int", each(0o666)),
        ("bigint", each(1)), ("text", each("e")), ("text", each(None)), ("text[]::jsonb", each(None)),
        ("text", each(None)), ("text", each(None)),
    ]  # fmt: skip
    return batch(world, who, places, "put_object", names, new)


def mkdir(world: World, who: Who, places: list[Place], names: list[str], metadata: str | None = None) -> Codes:
    each = lambda value: [value] * len(places)
    new = [
        ("bigint", world.ids(len(places))), ("int", each(who.uid)), ("int", each(who.uid)), ("int", each(0o777)),
        ("boolean", each(True)), ("text[]::jsonb", each(metadata)),
    ]  # fmt: skip
    return batch(world, who, places, "mkdir", names, new)


def set_attributes(world: World, who: Who, places: list[Place], **new: object) -> Codes:
    each = lambda name: [new.get(name)] * len(places)
    given = [
        ("bigint", [place.entry_id for place in places]), ("int", each("owner")), ("int", each("grp")),
        ("int", each("mode")), ("text[]::jsonb", each("user_metadata")), ("boolean", each("explicit")),
    ]  # fmt: skip
    return batch(world, who, places, "set_attributes", names_of(places), given, [("text", each("part_of"))])


def set_roots(world: World, who: Who, places: list[Place], **new: object) -> Codes:
    """Each root is in a namespace of its own."""

    def change(place: Place) -> str | None:
        query = (
            "SELECT code FROM mantle.set_attributes(ARRAY[%s::int], ARRAY[%s::bigint], '{0}', ARRAY[%s::text],"
            " ARRAY[%s::bigint], ARRAY[%s::int], ARRAY[%s::int], ARRAY[%s::int], ARRAY[%s::jsonb], '{NULL}',"
            " ARRAY[gen_random_uuid()], '{0}', p_caller => ARRAY[%s::text])"
        )
        values = [new.get(name) for name in ("owner", "grp", "mode", "user_metadata")]
        ns = place.entry_id
        return one(world, query, [who.uid, ns, f"{place.bucket}/", ns, *values, who.text])

    return [change(place) for place in places]


def names_of(places: list[Place]) -> list[str]:
    return [place.entry_name for place in places]


def new_names(places: list[Place]) -> list[str]:
    return [place.new.removeprefix(place.directory) for place in places]


def one(world: World, query: str, arguments: list) -> str | None:
    return world.superuser.execute(query, arguments).fetchone()[0]


# From where to where a rename goes: each a directory's id, a name, and the directory's permission.
End = tuple[int, str, Permission]


def entry_of(world: World, place: Place) -> End:
    return place.directory_id, place.entry_name, place.cell.directory


def new_in(world: World, place: Place) -> End:
    return place.directory_id, place.new.removeprefix(place.directory), place.cell.directory


def own_of(world: World, place: Place) -> End:
    return world.free, place.own_name, OPEN


def elsewhere(world: World, place: Place) -> End:
    return world.free, place.other.removeprefix("free/"), OPEN


def bytes_of(world: World, place: Place) -> End:
    return world.ns, "bytes", OPEN


Ends = tuple[Callable[[World, Place], End], Callable[[World, Place], End]]


def rename_objects(world: World, who: Who, places: list[Place], ends: Ends) -> Codes:
    call = "SELECT code FROM mantle.rename_object(%s, %s, %s, %s, %s, %s, %s, %s, 0, NULL, %s, %s, %s)"

    def rename(place: Place) -> str | None:
        (*source, from_), (*to, into) = (end(world, place) for end in ends)
        return one(
            world, call, [who.uid, world.ns, *source, *to, True, uuid.uuid4(), who.text, text(from_), text(into)]
        )

    return [rename(place) for place in places]


def rename_directories(
    world: World, who: Who, places: list[Place], ends: Ends, overwrite: bool = False, is_changed: bool = True
) -> Codes:
    """The index checks a rename when it prepares it. The verb checks it again: by the permission that is recorded since
    it was changed (`is_changed`), or by that of the index.
    """

    def rename(place: Place) -> str | None:
        if is_changed:
            record_permission(world.superuser, world.ns, place.directory_id, place.cell.directory)
        (*source, from_), (*to, into) = (end(world, place) for end in ends)
        id, old = place.own_id or place.entry_id, place.entry_id if overwrite else 0
        parents = [None, None] if is_changed else [text(from_), text(into)]
        return rename_directory(world.superuser, who, world.ns, id, source, to, old, parents)

    return [rename(place) for place in places]


def rename_ways(*ends: Callable[[World, Place], End], overwrite: bool = False) -> dict[str, "Verb"]:
    of = lambda changed: Verb(lambda w, who, p: rename_directories(w, who, p, ends, overwrite, changed))
    return {"": of(True), "never changed": of(False)}


def remove_trees(world: World, who: Who, places: list[Place], is_changed: bool = True) -> Codes:
    (epoch,) = world.superuser.execute("SELECT epoch FROM mantle.index_group(1)").fetchone()

    def remove(place: Place) -> str | None:
        if is_changed:
            record_permission(world.superuser, world.ns, place.directory_id, place.cell.directory)
        parent = None if is_changed else text(place.cell.directory)
        request, source = uuid.uuid4(), (place.directory_id, place.entry_name, place.entry_id)
        moved = [who.uid, world.ns, *source, 1, epoch, ATTEMPT, request]
        proof = [1, epoch, ATTEMPT, who.uid, world.ns, request, *source, 1, "", 0]
        query = f"SELECT code FROM mantle.remove_tree({marks(9)}, 0, %s, NULL, %s, mantle.prove({marks(12)}), %s)"
        return one(world, query, [*moved, uuid.uuid4(), who.text, *proof, parent])

    return [remove(place) for place in places]


def copy_objects(world: World, who: Who, places: list[Place], ends: Ends) -> Codes:
    columns = "id, version FROM mantle.meta WHERE pid = %s AND name = %s AND ts = 0"
    query = (
        "SELECT code FROM mantle.copy_object(p_principal => %s, p_src_ns => %s, p_src_pid => %s, p_src_name => %s,"
        " p_src_id => %s, p_src_version => %s, p_ns => %s, p_dst_pid => %s, p_dst_name => %s, p_id => %s,"
        " p_owner => %s, p_grp => %s, p_mode => 438, p_content_type => NULL, p_user_metadata => NULL,"
        " p_condition => NULL, p_request => gen_random_uuid(), p_hash => 0, p_caller => %s, p_dst_parent => %s,"
        " p_src_parent => %s)"
    )

    def copy(place: Place) -> str | None:
        (*source, from_), (*to, into) = (end(world, place) for end in ends)
        version = world.superuser.execute(f"SELECT {columns}", source).fetchone()
        new = (*world.ids(1), who.uid, who.uid)
        given = [who.uid, world.ns, *source, *version, world.ns, *to, *new, who.text, text(into), text(from_)]
        return one(world, query, given)

    return [copy(place) for place in places]


def put_parts(world: World, who: Who, places: list[Place]) -> Codes:
    query = (
        "SELECT code FROM mantle.put_part_delegated(%s, %s, 2, 'e', 'c', ARRAY[%s::text], '{0}', '{1}', true, NULL,"
        " p_caller => %s)"
    )
    locator = world.part[2]
    return [one(world, query, [int(place.upload, 16), world.ns, locator, who.text]) for place in places]


def abort_uploads(world: World, who: Who, places: list[Place]) -> Codes:
    query = "SELECT code FROM mantle.abort_upload_delegated(%s, p_caller => %s)"
    return [one(world, query, [int(place.upload, 16), who.text]) for place in places]


def list_trees(world: World, who: Who, places: list[Place]) -> Codes:
    """The walk begins at the directory above, and answers no code: the key is there or not."""
    query = "SELECT count(*) FROM mantle.list_tree(%s, %s, 'd/e/k', NULL, 1, %s)"
    found = [one(world, query, [world.ns, place.above_id, who.text]) for place in places]
    return [None if count else "MT030" for count in found]


def namespaces(world: World, who: Who, places: list[Place], call: str) -> Codes:
    return [one(world, f"SELECT code FROM mantle.{call}", [who.uid, place.bucket]) for place in places]


@dataclass(frozen=True)
class Verb:
    """`made`: how the cells are made (World.places). `checks`: what the verb checks, if others check the rest."""

    call: Callable[[World, Who, list[Place]], Codes]
    made: dict = field(default_factory=dict)
    checks: Rule | None = None


IMPLICIT = {"explicit": False}
OF_KEY = {"uploads": "key"}
METADATA = '{"a": "b"}'
SQL: dict[str, dict[str, Verb]] = {
    "put a new object": {
        "put": Verb(lambda w, who, p: put_object(w, who, p, new_names(p))),
        "copy": Verb(lambda w, who, p: copy_objects(w, who, p, (bytes_of, new_in))),
    },
    "overwrite an object": {
        "put": Verb(lambda w, who, p: put_object(w, who, p, names_of(p))),
        "copy": Verb(lambda w, who, p: copy_objects(w, who, p, (bytes_of, entry_of))),
    },
    "make a directory": {
        "new": Verb(lambda w, who, p: mkdir(w, who, p, new_names(p))),
        "implicit": Verb(lambda w, who, p: mkdir(w, who, p, names_of(p)), IMPLICIT),
    },
    "put the key of a directory that is there": {
        "implicit": Verb(lambda w, who, p: mkdir(w, who, p, names_of(p), METADATA), IMPLICIT),
        "explicit": Verb(lambda w, who, p: set_attributes(w, who, p, user_metadata=METADATA, part_of="put")),
    },
    "read an object": {"copy": Verb(lambda w, who, p: copy_objects(w, who, p, (entry_of, elsewhere)))},
    "list everything below": {"walk": Verb(list_trees)},
    "delete an object": {
        "": Verb(
            lambda w, who, p: batch(
                w, who, p, "delete_object", names_of(p), [("bigint", [None] * len(p)), ("bigint", [None] * len(p))]
            )
        )
    },
    "remove an empty directory": {
        "": Verb(
            lambda w, who, p: batch(w, who, p, "rmdir", names_of(p), [("bigint", [place.entry_id for place in p])])
        )
    },
    "make a directory implicit": {"": Verb(lambda w, who, p: set_attributes(w, who, p, explicit=False))},
    "remove a directory with everything below": {
        "": Verb(remove_trees, checks=BY_NAME["remove an empty directory"]),
        "never changed": Verb(
            lambda w, who, p: remove_trees(w, who, p, is_changed=False), checks=BY_NAME["remove an empty directory"]
        ),
    },
    "rename an object away": {"": Verb(lambda w, who, p: rename_objects(w, who, p, (entry_of, elsewhere)))},
    "rename an object to a new name": {"": Verb(lambda w, who, p: rename_objects(w, who, p, (own_of, new_in)))},
    "rename an object onto another": {"": Verb(lambda w, who, p: rename_objects(w, who, p, (own_of, entry_of)))},
    "rename a directory in its parent": rename_ways(entry_of, new_in),
    "move a directory to another parent": rename_ways(entry_of, elsewhere),
    "move a directory to a new name": rename_ways(own_of, new_in),
    "move a directory onto an empty one": rename_ways(own_of, entry_of, overwrite=True),
    "change the mode": {"": Verb(lambda w, who, p: set_attributes(w, who, p, mode=0o604))},
    "change the group": {"": Verb(lambda w, who, p: set_attributes(w, who, p, grp=CALLER))},
    "change the group to another": {"": Verb(lambda w, who, p: set_attributes(w, who, p, grp=777))},
    "change the owner": {"": Verb(lambda w, who, p: set_attributes(w, who, p, owner=1003))},
    "change user metadata": {"": Verb(lambda w, who, p: set_attributes(w, who, p, user_metadata=METADATA))},
    "change tags": {"": Verb(lambda w, who, p: set_attributes(w, who, p, user_metadata=METADATA, part_of="tags"))},
    # The gateway checks the directory of an upload, which the verbs do not know.
    "go on with an upload of one's own": {
        "part": Verb(put_parts, OF_KEY, checks=Rule("an upload of one's own")),
        "abort": Verb(abort_uploads, OF_KEY, checks=Rule("an upload of one's own")),
    },
    "go on with an upload of another's": {"part": Verb(put_parts, OF_KEY), "abort": Verb(abort_uploads, OF_KEY)},
    "put the key of a directory on a condition": {
        "": Verb(
            lambda w, who, p: set_attributes(w, who, p, user_metadata=METADATA, part_of="put"),
            checks=BY_NAME["put the key of a directory that is there"],
        )
    },
    "change metadata of the root of a namespace": {
        "": Verb(lambda w, who, p: set_roots(w, who, p, user_metadata=METADATA))
    },
    "change the mode of the root of a namespace": {"": Verb(lambda w, who, p: set_roots(w, who, p, mode=0o604))},
    "change the group of the root of a namespace": {"": Verb(lambda w, who, p: set_roots(w, who, p, grp=CALLER))},
    "change the owner of the root of a namespace": {"": Verb(lambda w, who, p: set_roots(w, who, p, owner=1003))},
    "change the umask of a namespace": {"": Verb(lambda w, who, p: namespaces(w, who, p, "set_umask(%s, %s, 23)"))},
    "remove a namespace": {
        "": Verb(lambda w, who, p: namespaces(w, who, p, "delete_namespace(%s, %s, gen_random_uuid(), 0)"))
    },
}
# The other operations call SQL functions that take no caller: whoever may call them gets an answer.
WITHOUT_CALLER = {
    "find a bucket": "resolve_path",
    "stat the root of a namespace": "stat stat_local",
    "list the root of a namespace": "list list_filled list_local list_uploads upload list_parts",
    "totals of a namespace": "usage dirstat upload_usage",
    "read the tags of a bucket": "stat stat_local",
    "read the key of a directory": "stat stat_local",
    "stat": "stat stat_local",
    "list": "list list_filled list_local",
    "totals of a directory": "usage dirstat",
}
