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
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from stack.layout import REPOSITORY
from tests.support import permission_model as model
from tests.support.permission_model import BY_NAME, OPEN, RULES, Cell, Rule

from .clients import connect_as
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
