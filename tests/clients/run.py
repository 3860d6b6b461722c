"""`make clients`: each S3 client, in an environment of its own, does its work against a stack of its own. The table of
client × operation goes into `docs/clients.md`. `ONLY=regex` chooses clients and writes no page.
"""

import argparse
import re
import sys
import time
import uuid
from pathlib import Path

from stack import secret
from stack.layout import REPOSITORY
from stack.stack import Stack
from tests.e2e.clients import s3_client

from .client import Client, Endpoint, Failed
from .clients import CLIENTS
from .operations import OPERATIONS, Run, make_files

FOLDER = REPOSITORY / ".clients"
PAGE = REPOSITORY / "docs" / "clients.md"
PORT_BASE = 8400
# In us-east-1, and only there, botocore still presigns by version 2 of the signature, which is refused.
REGION = "eu-central-1"
HEAD = """# Clients

Written by `make clients` ({date}). Each client was installed from a package registry into an environment of its own.
It got endpoint, region (`{region}`), keys and, if it needs that, path style; nothing else was set. boto3 checked what
the client did. `–`: the client has no such command, or the run does not use it. *Its own work*: the client is a
library or program that writes tables or repositories; `tests/clients/programs/` has the programs that ran.

In the region `us-east-1`, and only there, botocore still presigns URLs by version 2 of the signature, which a gateway
refuses. Give the gateway another region, or set `signature_version = s3v4`.

"""


def play(client: Client, endpoint: Endpoint, s3, data: Path) -> dict[str, str]:
    """The outcome of each operation: `yes`, `–`, or what failed."""
    folder = FOLDER / "installed" / re.sub(r"\W+", "-", client.name)
    client.prepare(folder)
    bucket = f"c-{uuid.uuid4().hex[:10]}"
    s3.create_bucket(Bucket=bucket)
    run = Run(client, endpoint, s3, folder, FOLDER / "files", bucket, data)
    outcomes = {}
    for name, (needs, check) in OPERATIONS.items():
        if not run.has(needs):
            outcomes[name] = "–"
            continue
        begun = time.monotonic()
        try:
            check(run)
            outcomes[name] = "yes"
        except Failed as error:
            outcomes[name] = str(error)
        except Exception as error:
            outcomes[name] = f"{type(error).__name__}: {error}"
        print(f"  {name:20} {time.monotonic() - begun:6.1f} s  {outcomes[name][:300]}", flush=True)
    return outcomes


def version(client: Client, endpoint: Endpoint) -> str:
    if not client.version:
        return ""
    folder = FOLDER / "installed" / re.sub(r"\W+", "-", client.name)
    said = client.run(client.version, endpoint, folder, bucket="")
    first = said.strip().splitlines()[0] if said.strip() else ""
    found = re.search(r"RELEASE\.[\w-]+", first) or re.search(r"\d+\.\d+(\.\d+)*", first)
    return found.group() if found else ""


def page(table: dict[str, dict[str, str]], versions: dict[str, str]) -> str:
    names = list(OPERATIONS)
    lines = ["| client | " + " | ".join(names) + " |", "|---" * (len(names) + 1) + "|"]
    notes = []
    for client, outcomes in table.items():
        cells = []
        for name in names:
            outcome = outcomes[name]
            if outcome not in ("yes", "–"):
                notes.append(f"{len(notes) + 1}. {client}, {name}: `{outcome[:300]}`")
                outcome = f"no ({len(notes)})"
            cells.append(outcome)
        lines.append(f"| {client} {versions[client]}".rstrip() + " | " + " | ".join(cells) + " |")
    return (
        HEAD.format(date=time.strftime("%Y-%m-%d"), region=REGION)
        + "\n".join(lines)
        + "\n"
        + ("\n" + "\n".join(notes) + "\n" if notes else "")
    )


def main() -> int:
    parser = argparse.ArgumentParser(prog="clients", description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--only", help="clients whose names match")
    given = parser.parse_args()
    chosen = [client for client in CLIENTS if not given.only or re.search(given.only, client.name)]
    make_files(FOLDER / "files")
    stack = Stack(FOLDER / "stack", PORT_BASE)
    stack.gateway.region = REGION
    with stack.alone():
        stack.start()
    table, versions = {}, {}
    try:
        read = lambda name: secret.read(stack.layout, name)
        endpoint = Endpoint(stack.gateway.url, REGION, read("access_key"), read("secret_key"))
        for client in chosen:
            print(client.name, flush=True)
            try:
                table[client.name] = play(client, endpoint, s3_client(stack, region_name=REGION), stack.gateway.data)
                versions[client.name] = version(client, endpoint)
            except Exception as error:
                table[client.name] = dict.fromkeys(OPERATIONS, f"not installed: {error}")
                versions.setdefault(client.name, "")
                print(f"  not installed: {error}", flush=True)
    finally:
        stack.stop()
    if not given.only:
        PAGE.write_text(page(table, versions), encoding="utf-8")
    failed = sum(outcome not in ("yes", "–") for outcomes in table.values() for outcome in outcomes.values())
    done = sum(outcome == "yes" for outcomes in table.values() for outcome in outcomes.values())
    print(f"{len(table)} clients: {done} operations done, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
