"""How `mantle` ends: every command and every exit code of docs/command-line.md, as text and with `--json`.

With `--json` standard output is one document or empty, and standard error is a document that repeats the code.
"""

import json
import os
import re
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from stack.layout import REPLICAS, REPOSITORY
from stack.poll import wait_until

from .inspection import command_line, leader

NOBODY = "127.0.0.1:1"
# Every command that prints, as it is called when nothing is wrong.
COMMANDS = {
    "status": ("status", "--seconds", "0.1"),
    "members": ("members",),
    "fsck": ("fsck",),
    "namespaces": ("namespaces",),
    "move": ("namespaces", "move", "NS", "1"),
    "import": ("import", "--namespace", "NS", "LISTING"),
}
OF_DATABASE = ("fsck", "namespaces", "move", "import")
OF_INDEX = ("status", "members", "fsck")


def codes() -> dict[str, int]:
    """The exit codes by their kinds, as the page has them."""
    page = (REPOSITORY / "docs" / "command-line.md").read_text(encoding="utf-8")
    return {kind: int(code) for code, kind in re.findall(r"^\| (\d+) \| `(\w+)` \|", page, flags=re.MULTILINE)}


CODES = codes()


def assert_ends(done: subprocess.CompletedProcess[str], kind: str) -> dict:
    """Checks a command that failed with `--json`; returns the error."""
    error = json.loads(done.stderr)["error"]
    assert (done.returncode, error["kind"], error["code"], done.stdout) == (CODES[kind], kind, CODES[kind], "")
    return error


@pytest.fixture
def mantle(stack, bucket, tmp_path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs a command of `COMMANDS` as the documented role, unless `environment` says otherwise."""
    listing = tmp_path / "listing"
    listing.write_text("a/b\t1\na/c\t2\na/c\t3\n", encoding="utf-8")
    words = {"NS": bucket, "LISTING": str(listing)}

    def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """`DATABASE_URL` is the URL that the command reads."""
        is_import = arguments[0] == "import"
        url = environment.pop("DATABASE_URL", stack.postgresql.url("importer" if is_import else "operator"))
        environment["MANTLE_IMPORT_URL" if is_import else "DATABASE_URL"] = url
        return command_line(stack, *(words.get(word, word) for word in arguments), **environment)

    return run


def test_the_page_and_the_help_have_every_code(mantle):
    assert sorted(CODES.values()) == [0, 1, 2, 3, 4, 5, 130]
    done = mantle("--help")
    assert done.returncode == 0
    assert [int(code) for code in re.findall(r"^  (\d+) ", done.stdout, flags=re.MULTILINE)] == sorted(CODES.values())


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_that_succeeds_prints_one_document(mantle, rest, bucket, command):
    """As the role of the documented URL: `operator`, or `importer`."""
    rest.mkdir(bucket, "told")
    done = mantle(*COMMANDS[command], "--json")
    assert done.returncode == CODES["fine"], done.stderr
    answer = json.loads(done.stdout)
    match command:
        case "status":
            assert answer["problems"] == []
            assert {replica["state"]["ready"] for replica in answer["replicas"]} == {True}
        case "members":
            assert [member["role"] for member in answer["members"]].count("leader") == 1
            assert not any(member["down"] for member in answer["members"])
        case "fsck":
            assert answer["sound"] and {replica["error"] for replica in answer["replicas"]} == {None}
            assert sum(replica["compared"] for replica in answer["replicas"]) > 0
        case "namespaces":
            assert {"name": bucket, "group": 1, "other_group": None, "phase": None} in answer["namespaces"]
        case "move":
            assert answer == {"name": bucket, "phases": ["done"]}
        case "import":
            assert (answer["lines"], answer["objects"]["inserted"], answer["refused"]) == (3, 2, 1)
            assert [finding["code"] for finding in answer["findings"]] == ["duplicate"]
    text = mantle(*COMMANDS[command])
    assert (text.returncode, text.stdout.startswith("{")) == (CODES["fine"], False)


def test_an_abort_of_what_does_not_move_is_done(mantle, bucket):
    done = mantle("namespaces", "abort", "NS", "--json")
    assert (done.returncode, json.loads(done.stdout)) == (CODES["fine"], {"name": bucket, "phases": ["done"]})


def test_fault_a_difference(mantle, rest, bucket, superuser):
    id = rest.mkdir(bucket, "told").body["id"]
    change = "UPDATE mantle.meta SET mode = mode # 1 WHERE id = %s AND explicit IS NOT NULL"
    superuser.execute(change, (id,))  # as if its message had been lost
    try:
        done = mantle("fsck", "--index-only", "--group", "1", "--json")
    finally:
        superuser.execute(change, (id,))
    assert (done.returncode, done.stderr) == (CODES["fault"], "")
    answer = json.loads(done.stdout)
    assert not answer["sound"]
    for replica in answer["replicas"]:
        (found,) = replica["differences"]
        assert (found["id"], found["index"]["mode"], found["postgresql"]["mode"]) == (id, "700", "701")


@pytest.mark.faults
def test_fault_a_replica_that_is_down(stack, mantle, rest, bucket):
    """`status` names it and says so by its code. `members` says how long the leader has not heard from it. `fsck` could
    not ask it, which is no difference.
    """
    rest.mkdir(bucket, "told")
    first = leader(stack)
    number = next(number for number in REPLICAS if number != first)
    address = stack.layout.index_addresses[number - 1]
    stack.indexnodes[number].process.stop()
    try:
        status = mantle("status", "--group", "1", "--json")
        known = lambda: {
            member["address"]: member for member in json.loads(mantle("members", "--json").stdout)["members"]
        }[address]
        silent = wait_until(lambda: known() if known()["down"] else None, "the leader to miss the replica", 30)
        shown = mantle("members")
        compared = mantle("fsck", "--index-only", "--group", "1", "--json")
    finally:
        stack.indexnodes[number].process.start()
        stack.indexnodes[number].await_ready()
    assert (status.returncode, status.stderr) == (CODES["fault"], "")
    problems = json.loads(status.stdout)["problems"]
    assert len(problems) == 1 and problems[0].startswith(f"group 1 {address} does not answer")
    assert silent["heard_ms"] is None or silent["heard_ms"] >= 1000
    row = next(line for line in shown.stdout.splitlines() if address in line)
    assert shown.returncode == CODES["fine"] and "down, " in row
    assert compared.returncode == CODES["away"]
    assert [r["address"] for r in json.loads(compared.stdout)["replicas"] if r["error"]] == [address]


@pytest.mark.parametrize(
    "arguments",
    [
        ("nonsense",),
        ("status", "--seconds", "-1"),
        ("status", "--group", "99"),
        ("members", "promote", NOBODY),
        ("members", "--group", "99"),
        ("fsck", "--index-only", "--group", "99"),
        ("fsck", "--database", "nonsense"),
        ("fsck", "--database", "postgresql://operator@127.0.0.1:PORT/mantle"),  # without its password
        ("fsck", "--database", "postgresql://operator:PASSWORD@127.0.0.1:PORT/nonsense"),
        ("namespaces", "move", "no-such-namespace", "1"),
        ("namespaces", "move", "NS", "99"),
        ("namespaces", "abort", "no-such-namespace"),
        ("import", "--namespace", "no-such-namespace", "LISTING"),
        ("import", "--namespace", "NS", "/no/such/listing"),
        ("import", "--namespace", "NS", "LISTING", "--report", "/no/such/folder/report"),
    ],
    ids=" ".join,
)
@pytest.mark.allows("postgresql", r"database .nonsense. does not exist|there is no (namespace|index group)|client lost")
def test_usage(stack, mantle, arguments):
    password = (stack.layout.secrets / "operator").read_text(encoding="utf-8").strip()
    place = lambda word: word.replace("PORT", str(stack.layout.postgresql_port)).replace("PASSWORD", password)
    assert_ends(mantle(*map(place, arguments), "--json"), "usage")


@pytest.mark.parametrize("command", OF_INDEX)
def test_usage_without_a_replica(mantle, command):
    assert "MANTLE_INDEX" in assert_ends(mantle(*COMMANDS[command], "--json", MANTLE_INDEX=""), "usage")["message"]


@pytest.mark.parametrize("command", OF_INDEX)
def test_usage_without_certificates_for_another_machine(mantle, command):
    done = mantle(*COMMANDS[command], "--json", MANTLE_INDEX=f"{NOBODY},198.51.100.1:7410")
    assert "certificates" in assert_ends(done, "usage")["message"]


# Each lacks a part of what the command needs; none is in mantle_monitor.
@pytest.mark.parametrize(
    ("command", "role"),
    [("fsck", "gateway"), ("fsck", "analyst"), ("fsck", "index"), ("namespaces", "gateway"), ("move", "gateway"),
     ("import", "operator"), ("import", "analyst")],
)  # fmt: skip
@pytest.mark.allows("postgresql", "permission denied for|connection to client lost")
def test_permission(stack, mantle, command, role):
    error = assert_ends(mantle(*COMMANDS[command], "--json", DATABASE_URL=stack.postgresql.url(role)), "permission")
    if command == "fsck":
        assert "mantle_analyst" in error["message"], "the message says what is needed"


def test_permission_of_an_analyst_with_some_namespaces(stack, mantle, bucket, superuser):
    """Row-level security would hide directories, and each would look like a difference."""
    superuser.execute("CREATE ROLE partial LOGIN PASSWORD 'partial' IN ROLE mantle_gateway, mantle_analyst")
    superuser.execute("GRANT CONNECT ON DATABASE mantle TO partial")
    superuser.execute("SELECT mantle.grant_namespace(%s, 'partial')", (bucket,))
    try:
        url = f"postgresql://partial:partial@127.0.0.1:{stack.layout.postgresql_port}/mantle"
        error = assert_ends(mantle("fsck", "--json", DATABASE_URL=url), "permission")
    finally:
        superuser.execute("SELECT mantle.revoke_namespace(%s, 'partial')", (bucket,))
        superuser.execute("REVOKE CONNECT ON DATABASE mantle FROM partial")
        superuser.execute("DROP ROLE partial")
    assert "grant on all namespaces" in error["message"]


@pytest.mark.allows("postgresql", 'password authentication failed for user "operator"')
@pytest.mark.parametrize("command", OF_DATABASE)
def test_permission_with_a_wrong_password(stack, mantle, command):
    url = stack.postgresql.url("operator", password="analyst")
    assert_ends(mantle(*COMMANDS[command], "--json", DATABASE_URL=url), "permission")


@pytest.mark.parametrize("command", OF_DATABASE)
def test_away_postgresql(mantle, command):
    url = f"postgresql://operator:x@{NOBODY}/mantle"
    assert_ends(mantle(*COMMANDS[command], "--json", DATABASE_URL=url), "away")


@pytest.mark.parametrize("command", OF_INDEX)
def test_away_index(mantle, command):
    done = mantle(*COMMANDS[command], "--json", MANTLE_INDEX=NOBODY)
    if command != "status":
        assert_ends(done, "away")
        return
    # It answers what it could see.
    (replica,) = json.loads(done.stdout)["replicas"]
    assert (done.returncode, replica["address"], replica["state"]) == (CODES["away"], NOBODY, None)


@pytest.mark.allows("postgresql", 'schema "mantle" does not exist')
@pytest.mark.parametrize("command", OF_DATABASE)
def test_other(stack, mantle, command):
    """A database without the extension."""
    url = stack.postgresql.url("postgres", "superuser").replace("/mantle", "/postgres")
    assert_ends(mantle(*COMMANDS[command], "--json", DATABASE_URL=url), "other")


def test_interrupted(stack, bucket):
    """Ctrl-C while the listing is read from a pipe that never ends."""
    reading, writing = os.pipe()
    process = subprocess.Popen(
        [str(stack.layout.binaries / "mantle"), "import", "--namespace", bucket, "-", "--json"],
        env={"MANTLE_IMPORT_URL": stack.postgresql.url("importer")},
        stdin=reading, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        catches = lambda: _catches(process.pid, signal.SIGINT)
        wait_until(catches, "the command to listen for Ctrl-C", 30)
        process.send_signal(signal.SIGINT)
        output, error = process.communicate(timeout=30)
    finally:
        os.close(reading)
        os.close(writing)
        process.kill()
    assert (process.returncode, output) == (CODES["interrupted"], "")
    assert json.loads(error[error.index("{") :])["error"]["kind"] == "interrupted"


def _catches(pid: int, number: signal.Signals) -> bool:
    status = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    caught = int(re.search(r"^SigCgt:\s*(\w+)$", status, flags=re.MULTILINE)[1], 16)
    return bool(caught >> (number - 1) & 1)


def test_without_json_a_failure_is_one_line(mantle):
    done = mantle("members", MANTLE_INDEX=NOBODY)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (CODES["away"], "", 1)
    assert done.stderr.startswith("mantle: ")
