"""The launcher: a start that cannot succeed gives the reason and leaves nothing running. Only its own processes are
ended.
"""

import json
import os
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from stack import load
from stack.failure import Failure
from stack.process import Process, boot_id, start_ticks
from stack.stack import Stack

from .clients import s3_client

PORT_BASE = 7700


@pytest.fixture
def second(stack) -> Iterator[Stack]:
    """Another stack, with its own directory and ports. Requests `stack` so that the programs are built."""
    with tempfile.TemporaryDirectory(prefix="mantle-", dir="/var/tmp") as parent:
        Path(parent).chmod(0o755)
        second = Stack(Path(parent) / "run", PORT_BASE)
        yield second
        second.remove()


def running(stack: Stack) -> list[str]:
    return [process.name for process in stack.processes() if process.pid() is not None]


@pytest.mark.parametrize("name", ["gateway", "postgresql", "indexnode-2"])
def test_a_port_in_use(second, name):
    port = second.layout.ports()[name]
    with socket.create_server(("127.0.0.1", port)), second.alone(), pytest.raises(Failure) as failure:
        second.start()
    assert f"port {port}, wanted by {name}, is in use by" in str(failure.value)
    assert running(second) == []


def test_a_service_that_does_not_start_takes_the_others_down(second):
    with second.alone():
        second.layout.data.mkdir()
        (second.layout.data / "objects").write_text("a file where the gateway wants its folder", encoding="ascii")
        with pytest.raises((Failure, OSError)):
            second.start()
    assert running(second) == []
    assert not any(second.layout.pids.iterdir())


@pytest.mark.faults
def test_a_stack_with_files_goes_on_with_a_volume(second):
    """As `make run` does: what is in files stays readable, and new bytes go into the volume."""
    with second.alone():
        second.start()
        s3 = s3_client(second)
        s3.create_bucket(Bucket="photos")
        s3.put_object(Bucket="photos", Key="old", Body=b"in a file")
        second.stop()
    again = Stack(second.given_folder, PORT_BASE, volume=True)
    with again.alone():
        again.start()
        before = {path for path in again.gateway.data.rglob("*") if path.is_file()}
        s3.put_object(Bucket="photos", Key="new", Body=b"in the volume")
        assert {path for path in again.gateway.data.rglob("*") if path.is_file()} == before
        (volume,) = again.gateway.volume.glob("volume-*")
        assert b"in the volume" in volume.read_bytes()
        for key, body in {"old": b"in a file", "new": b"in the volume"}.items():
            assert s3.get_object(Bucket="photos", Key=key)["Body"].read() == body


def test_two_launchers_do_not_meet(second):
    again = Stack(second.given_folder, PORT_BASE)
    with second.alone(), pytest.raises(Failure, match="another launcher"), again.alone():
        pass


def test_a_pid_that_belongs_to_somebody_else_by_now_is_not_signalled(stack, tmp_path):
    with subprocess.Popen(["/bin/cat"], stdin=subprocess.PIPE) as bystander:
        process = Process("old", ["/bin/false"], stack.account, tmp_path / "pid", tmp_path / "log")
        note = {"pid": bystander.pid, "ticks": start_ticks(bystander.pid) - 1, "boot": boot_id()}
        process.pid_file.write_text(json.dumps(note), encoding="ascii")
        process.kill()
        assert process.pid() is None
        assert bystander.poll() is None
        bystander.stdin.close()


def test_secrets_are_private(stack):
    for path in [*(stack.layout.secrets).iterdir(), *(stack.layout.config).iterdir()]:
        if path.name.startswith("gateway-of-"):
            continue
        assert path.stat().st_mode & 0o077 == 0, path
    for closed in (stack.layout.data / "postgresql", stack.layout.logs):
        assert closed.stat().st_mode & 0o077 == 0, closed
    for process in stack.processes():
        pid = process.pid()
        owner = Path(f"/proc/{pid}").stat().st_uid
        assert owner != 0 or os.geteuid() != 0
        command = Path(f"/proc/{pid}/cmdline").read_text(encoding="utf-8")
        environment = Path(f"/proc/{pid}/environ").read_text(encoding="utf-8")
        for secret in stack.layout.secrets.iterdir():
            text = secret.read_text(encoding="ascii")
            assert text not in command and text not in environment


def test_a_disk_too_small_is_said_before_anything_is_done(tmp_path):
    """Also for a directory that does not exist yet: its disk is that of its parent."""
    load.check_disk(tmp_path / "new" / "folder", 0.001, "the test")
    with pytest.raises(Failure, match=r"the test needs about 1e\+06 GiB; .* free. Make room"):
        load.check_disk(tmp_path / "new" / "folder", 1e6, "the test")
