"""Every cell of the permission matrix, through S3, the native API and the SQL verbs.

tests/support/permission_model.py states what each operation needs. For each operation it makes every class of callers
with every bit, on the way, in the directory and on the entry. Here each becomes directories and an entry of its own,
and the operation is tried as Bob (1002, in group 50). Where he is refused, root (uid 0) tries the same through the
first interface, and succeeds. This shows that the refusal has changed nothing, and that uid 0 may do everything. The
table of the page is made from the same model.

One test for each interface tries all operations, because the checks after every test, such as `mantle.check()`, take
longer than the cells of an operation.
"""

import os
import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest

from stack.layout import REPOSITORY
from tests.support import permission_model as model
from tests.support.permission_model import BY_NAME, OPEN, RULES, Cell, Rule

from .clients import connect_as
from .permission_calls import NO_CALLS, NOT_OF_DIRECTORIES, TRIED_BY
from .permission_places import Place, World
from .permission_verbs import BOB, SQL, WITHOUT_CALLER
from .permission_ways import THROUGH, Session, Way
from .principals import SharedGateway
from .sql_renames import ROOT

PAGE = REPOSITORY / "docs" / "permissions.md"
BEGIN, END = "<!-- matrix -->\n", "<!-- end of matrix -->\n"
THREADS = 8
SHOWN_MAX = 20
WIRES = ("S3", "native")


@pytest.fixture(scope="module")
def world(stack, shared: SharedGateway) -> Iterator[World]:
    with connect_as(stack, "postgres", "superuser") as superuser:
        yield World(shared, stack, superuser)


def wrong(way: str, rule: Rule, cell: Cell, was_done: bool) -> str | None:
    return None if was_done == rule.allows(cell) else f"{way}: {rule.operation}: {cell}: done: {was_done}"


def report(found: list[str | None]) -> None:
    found = [one for one in found if one]
    assert not found, f"{len(found)} wrong answers:\n" + "\n".join(found[:SHOWN_MAX])


def test_no_operation_is_left_out():
    assert THROUGH.keys() == BY_NAME.keys()
    assert SQL.keys() | WITHOUT_CALLER.keys() == BY_NAME.keys() and not SQL.keys() & WITHOUT_CALLER.keys()
    names = [name for ways in THROUGH.values() for name in ways]
    assert all(name.split()[0] in WIRES for name in names)


def test_no_call_of_the_gateway_is_left_out(world):
    """What the gateway offers, it says itself."""
    series = re.compile(r'mantle_gateway_requests_total\{.*verb="(\w+)".*\}')
    offered = {found[1] for found in map(series.fullmatch, world.gateway.metrics()) if found}
    assert len(offered) > len(NO_CALLS)
    assert offered - NO_CALLS == TRIED_BY.keys() | NOT_OF_DIRECTORIES
    assert {name for names in TRIED_BY.values() for name in names} <= BY_NAME.keys()


@pytest.mark.parametrize("wire", WIRES)
def test_every_cell_through_the_gateway(world, wire):
    tries: list[tuple[str, Way, Place, bool]] = []
    for rule in RULES:
        ways = [(name, way) for name, way in THROUGH[rule.operation].items() if name.split()[0] == wire]
        for number, (name, way) in enumerate(ways):
            tries += [(name, way, place, number == 0) for place in world.places(rule, model.cells(rule), **way.made)]

    def try_all(part: list[tuple[str, Way, Place, bool]]) -> list[str | None]:
        bob, root, found = Session(world, "bob"), Session(world, "root"), []
        for name, way, place, is_for_root in part:
            was_done = way.attempt(bob, place)
            found.append(wrong(name, place.rule, place.cell, was_done))
            if is_for_root and not was_done and not way.attempt(root, place):
                found.append(f"{name}: {place.rule.operation}: {place.cell}: refused to uid 0")
        return found

    with ThreadPoolExecutor(THREADS) as pool:
        found = [
            one for part in pool.map(try_all, [tries[number::THREADS] for number in range(THREADS)]) for one in part
        ]
    assert len(found) >= len(tries) > 0
    report(found)


def test_a_root_on_the_way_is_searched_as_any_directory(world):
    found = []
    bob, root, bucket = Session(world, "bob"), world.rest("root"), f"{world.bucket}-way"
    root.insist("PUT", f"/v1/ns/{bucket}?mode=0777&umask=000")
    root.mkdir(bucket, "d")
    tries: dict[str, Callable[[Place], bool]] = {
        "put": lambda p: bob.s3(p, "PUT", "d/o", b"1"),
        "get": lambda p: bob.s3(p, "GET", "d/o"),
        "copy": lambda p: bob.copy(p, "d/o", "d/c"),
        "begin": lambda p: bob.s3(p, "POST", "d/o", query="?uploads"),
        "stat": lambda p: bob.native(p, "GET", "/entries/d/o"),
        "mkdir": lambda p: bob.native(p, "PUT", "/dirs/d/e?parents=true"),
        "list": lambda p: bob.native(p, "GET", "/list/d/"),
        "totals": lambda p: bob.native(p, "GET", "/usage/d/"),
        "metadata": lambda p: bob.native(p, "PATCH", "/entries/d/o", {"user_metadata": {}}),
        "rename": lambda p: bob.rename(p, "d/c", "d/r", overwrite=True),
        "rename of a directory": lambda p: bob.rename(p, "d/e/", "d/f/"),
        "removal": lambda p: bob.native(p, "DELETE", "/dirs/d/f"),
        "delete": lambda p: bob.s3(p, "DELETE", "d/r"),
    }
    for name, bits in [("other", 7), *product(model.CLASSES, range(8))]:
        of = model.of_class(name, bits)
        place = Place(BY_NAME["stat"], Cell(above=of), 0, bucket)
        change = {"owner": of.owner, "group": of.group, "mode": f"{of.mode:04o}"}
        root.insist("PATCH", f"/v1/ns/{bucket}/entries/", change)
        found += [wrong(call, place.rule, place.cell, attempt(place)) for call, attempt in tries.items()]
    report(found)


def test_every_cell_through_the_sql_verbs(world):
    found = []
    for rule in RULES:
        for name, verb in SQL.get(rule.operation, {}).items():
            places = world.places(rule, model.cells(rule), **verb.made)
            codes = verb.call(world, BOB, places)
            assert len(codes) == len(places) and set(codes) <= {None, "MT030"}, (rule.operation, name, set(codes))
            for place, code in zip(places, codes, strict=True):
                # Verbs do not walk: they get the directory's id.
                cell = replace(place.cell, above=OPEN)
                found.append(
                    wrong(f"SQL {name}", replace(verb.checks or rule, operation=rule.operation), cell, code is None)
                )
            refused = [place for place, code in zip(places, codes, strict=True) if code]
            if refused and set(verb.call(world, ROOT, refused)) != {None}:
                found.append(f"SQL {name}: {rule.operation}: refused to uid 0")
    report(found)


def test_sql_functions_that_take_no_caller_are_the_gateways_alone(superuser):
    """They answer whoever may call them, whatever the permissions."""
    names = {name for names in WITHOUT_CALLER.values() for name in names.split()}
    found = superuser.execute(
        "SELECT p.proname, coalesce(p.proargnames::text, '') LIKE '%%p\\_caller%%', array_agg(DISTINCT r.rolname::text)"
        "  FROM pg_proc p CROSS JOIN LATERAL aclexplode(coalesce(p.proacl, acldefault('f', p.proowner))) a"
        "  LEFT JOIN pg_roles r ON r.oid = a.grantee"
        " WHERE p.pronamespace = 'mantle'::regnamespace AND p.proname = ANY (%s) AND a.grantee <> p.proowner"
        " GROUP BY 1, 2",
        (list(names),),
    ).fetchall()
    assert {name: (has_caller, roles) for name, has_caller, roles in found} == {
        name: (False, ["mantle_gateway"]) for name in names
    }


def test_the_page_has_the_table():
    """MANTLE_BLESS=1 renews it."""
    text = Path(PAGE).read_text(encoding="utf-8")
    before, rest = text.split(BEGIN)
    _, after = rest.split(END)
    current = f"{before}{BEGIN}{model.table()}{END}{after}"
    if os.environ.get("MANTLE_BLESS"):
        Path(PAGE).write_text(current, encoding="utf-8")
    assert text == current or os.environ.get("MANTLE_BLESS"), "MANTLE_BLESS=1 renews the table"
