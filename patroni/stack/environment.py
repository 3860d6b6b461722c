"""The environment file for users of the stack, and the first commands to try."""

import shlex
from pathlib import Path

from . import secret
from .layout import DATABASE, REGION, Layout
from .load import NAMESPACE, import_environment, shown
from .stack import Stack
from .terminal import say, write_private

# What the roles of PostgreSQL are for; written above their URLs.
MEANING = {
    "DATABASE_URL": "Role operator: reads everything, monitors, moves namespaces. It makes and changes no entry.",
    "MANTLE_POOLER_URL": "The same through PgBouncer.",
    "MANTLE_IMPORT_URL": "Role importer: for `mantle import` alone. It makes entries anywhere, but none with bytes.",
}


def client_variables(layout: Layout, url: str) -> dict[str, str]:
    """The variables of S3 clients and curl. Programs that take a secret as an argument get it by a file: other users of
    the machine see arguments.
    """
    read = lambda name: secret.read(layout, name)
    headers = layout.secrets / "headers"
    write_private(headers, f"Authorization: Bearer {read('token')}\n")
    return {
        "AWS_ENDPOINT_URL": url,
        "AWS_ACCESS_KEY_ID": read("access_key"),
        "AWS_SECRET_ACCESS_KEY": read("secret_key"),
        "AWS_REGION": REGION,
        "MANTLE_URL": url,
        "MANTLE_TOKEN": read("token"),
        "MANTLE_HEADERS": str(headers),
    }


def variables(stack: Stack) -> dict[str, str]:
    """The variables of S3 clients, curl, psql and the command line."""
    layout = stack.layout
    session = lambda role, port: f"postgresql://{role}@127.0.0.1:{port}/{DATABASE}"
    return {
        **client_variables(layout, stack.gateway.url),
        **import_environment(stack),
        "DATABASE_URL": session("operator", layout.postgresql_port),
        "MANTLE_POOLER_URL": session("operator", layout.pgbouncer_port),
        "MANTLE_IMPORT_URL": session("importer", layout.postgresql_port),
        "PGPASSFILE": write_passwords(layout, {"operator": "operator", "importer": "importer"}),
    }


def write_passwords(layout: Layout, roles: dict[str, str]) -> str:
    """Writes libpq's password file, from roles to the names of their secrets; returns its path."""
    path = layout.secrets / "pgpass"
    write_private(path, "".join(f"*:*:*:{role}:{secret.read(layout, name)}\n" for role, name in roles.items()))
    return str(path)


def write(stack: Stack) -> None:
    write_file(stack.layout, variables(stack), {"aws": stack.layout.client / "bin" / "aws"})


def write_file(layout: Layout, variables: dict[str, str], programs: dict[str, Path]) -> None:
    """Writes the file. Programs are linked, so that PATH needs one directory and the client environment's `python` does
    not shadow the caller's.
    """
    for name, program in {**programs, "psql": layout.postgresql_bin / "psql"}.items():
        link = layout.binaries / name
        link.unlink(missing_ok=True)
        link.symlink_to(program)
    lines = []
    for name, value in variables.items():
        lines += [f"# {MEANING[name]}"] if name in MEANING else []
        lines.append(f"export {name}={shlex.quote(value)}")
    lines.append(f'export PATH={shlex.quote(str(layout.binaries))}:"$PATH"')
    write_private(layout.environment_file, "\n".join(lines) + "\n")


def suggest(stack: Stack) -> None:
    say(f"""
Mantle runs at {stack.gateway.url} (S3 and /v1). Try:

  . {shown(stack.given_folder / "env")}

  # a directory of the Debian archive over S3
  aws s3 ls s3://{NAMESPACE}/usr/share/doc/ | tail -n 3

  # rename it, with its tens of thousands of directories: one RPC and one transaction
  curl -sS -X POST "$MANTLE_URL/v1/ns/{NAMESPACE}/rename" -H "@$MANTLE_HEADERS" \\
    -H 'Content-Type: application/json' -d '{{"src": "usr/share/doc/", "dst": "usr/share/documents/"}}'

  # SQL sees it at once
  psql "$DATABASE_URL" -c "SELECT * FROM mantle.du('{NAMESPACE}', 'usr/share/documents/')"
  psql "$DATABASE_URL" -c "SELECT * FROM mantle.ls('{NAMESPACE}', 'usr/share/documents/') LIMIT 5"

make status shows the services; make stop ends them and keeps the data; make clean removes it.""")
