"""Puts statements before and after a function of the extension, in a test database. The function is renamed, and a new
one with its old name and signature calls it. Failpoints and broken steps are made this way; no release contains them.

The signature is read from pg_proc, so a step may change its parameters. A missing step is an error that names it.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager

import psycopg

SIGNATURES = """
    SELECT p.oid::regprocedure::text, pg_get_function_arguments(p.oid), pg_get_function_result(p.oid),
           p.pronargs, p.proretset,
           ARRAY(SELECT a.name FROM unnest(p.proargnames, p.proargmodes) a (name, mode) WHERE a.mode = 'o')
      FROM pg_proc p WHERE p.pronamespace = 'mantle'::regnamespace AND p.proname = %s
"""


class StepIsGone(Exception):
    """A function that a test wants to wrap does not exist any more."""


def wrap(connection: psycopg.Connection, step: str, why: str, *, before: str = "", after: str = "") -> None:
    """`before` and `after` are plpgsql statements. `after` may read `v_result`, or the parameters that are the results.
    `before` may RETURN.
    """
    found = connection.execute(SIGNATURES, (step,)).fetchall()
    if not found:
        raise StepIsGone(
            f"mantle.{step}, named by {why}, is no function of the extension any more: name its successor there"
        )
    for signature, arguments, result, count, is_set, outs in found:
        if is_set:
            raise StepIsGone(
                f"mantle.{step}, named by {why}, answers rows now: only functions with one row can be wrapped"
            )
        real = _free_name(connection, step)
        given = ", ".join(f"${n}" for n in range(1, count + 1))
        has_result = result != "void" and not outs
        call = f"v_result := mantle.{real}({given});" if has_result else f"PERFORM mantle.{real}({given});"
        if outs:
            call = f"SELECT * INTO {', '.join(outs)} FROM mantle.{real}({given});"
        connection.execute(f"ALTER FUNCTION {signature} RENAME TO {real}")
        connection.execute(
            f"CREATE FUNCTION mantle.{step}({arguments}) RETURNS {result} LANGUAGE plpgsql VOLATILE AS $wrapper$\n"
            f"{f'DECLARE v_result {result};' if has_result else ''}\n"
            f"BEGIN /* {why} */ /* before */ {before} /* call */\n{call}\n{after}\n"
            f"{'RETURN v_result;' if has_result else 'RETURN;'}\nEND $wrapper$"
        )


@contextmanager
def wrapped(
    connection: psycopg.Connection, step: str, why: str, *, before: str = "", after: str = ""
) -> Iterator[None]:
    """Wraps the function while the block runs."""
    ((signature, *_),) = connection.execute(SIGNATURES, (step,)).fetchall()
    real = _free_name(connection, step)
    wrap(connection, step, why, before=before, after=after)
    try:
        yield
    finally:
        with connection.transaction():
            connection.execute(f"DROP FUNCTION {signature}")
            connection.execute(
                f"ALTER FUNCTION {signature.replace(f'mantle.{step}', f'mantle.{real}')} RENAME TO {step}"
            )


def put_before(connection: psycopg.Connection, step: str, why: str, before: str) -> None:
    """Wraps the function; a second call replaces only `before`, so that calls in progress still find the original."""
    (text,) = connection.execute("SELECT pg_get_functiondef(to_regproc(%s)::oid)", (f"mantle.{step}",)).fetchone()
    if f"/* {why} */" not in text:
        wrap(connection, step, why, before=before)
        return
    changed, count = re.subn(
        r"/\* before \*/.*?/\* call \*/", lambda _: f"/* before */ {before} /* call */", text, flags=re.DOTALL
    )
    assert count == 1, text
    connection.execute(changed)


def put_at_beginning(connection: psycopg.Connection, function: str, why: str, statements: str) -> None:
    """Changes the body of a plpgsql function. The function keeps its oid, by which Citus knows the functions that it
    delegates.
    """
    found = connection.execute("SELECT pg_get_functiondef(to_regproc(%s)::oid)", (f"mantle.{function}",)).fetchone()[0]
    if found is None:
        raise StepIsGone(
            f"mantle.{function}, named by {why}, is no function of the extension any more: name its successor there"
        )
    changed, count = re.subn(
        r"^BEGIN$", lambda _: f"BEGIN /* {why} */ {statements}", found, count=1, flags=re.MULTILINE
    )
    assert count == 1, found
    connection.execute(changed)


def _free_name(connection: psycopg.Connection, step: str) -> str:
    """A step may be wrapped twice: a broken step inside, a failpoint around it."""
    number = 1
    while connection.execute(SIGNATURES, (f"{step}_wrapped_{number}",)).fetchone():
        number += 1
    return f"{step}_wrapped_{number}"
