"""The launcher's command line, which the Makefile calls: `python3 -m stack COMMAND`."""

import argparse
import sys
from pathlib import Path

from . import environment, load, measure, packages, status
from .command_line import run_command
from .failure import Failure
from .install import build, install
from .layout import REPOSITORY
from .stack import Stack
from .terminal import say

PORT_BASE = 7400
CLIENT_REQUIREMENTS = REPOSITORY / "patroni" / "requirements" / "s3-client.txt"


def run(stack: Stack, part: str) -> None:
    say("Mantle: checking what is installed")
    install()
    say("Mantle: building")
    build()
    if not (stack.layout.marks / f"import-{part}").exists():
        load.check_disk(stack.given_folder, load.DATA_GB[part], "the namespace")
    with stack.alone():
        say(f"Mantle: starting in {load.shown(stack.given_folder)}/")
        stack.start()
        packages.make_venv(stack.layout.client, CLIENT_REQUIREMENTS)
        environment.write(stack)
        if not load.load_debian(stack, part):
            say(f"  namespace `{load.NAMESPACE}` is loaded already")
    environment.suggest(stack)


def stop(stack: Stack) -> None:
    if not stack.layout.folder.exists():
        say("nothing runs")
        return
    with stack.alone():
        stopped = stack.stop()
    say(f"stopped: {', '.join(stopped)}" if stopped else "nothing runs")


def clean(stack: Stack) -> None:
    if stack.given_folder.is_symlink() or stack.given_folder.exists():
        stack.remove()
        say(f"removed {load.shown(stack.given_folder)}")


def at_least_one(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is less than 1")
    return number


def block_size(text: str) -> int:
    number = int(text)
    if number.bit_count() != 1 or not 512 <= number <= 65536:
        raise argparse.ArgumentTypeError(f"{text} is no power of two from 512 to 65,536")
    return number


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="stack", description="Mantle on one machine")
    parser.add_argument("command", choices=["install", "build", "run", "stop", "status", "clean", "bench", "soak"])
    parser.add_argument("--folder", type=Path, default=REPOSITORY / ".run")
    ports = f"first port; by default {PORT_BASE}, or the one the folder was made with"
    parser.add_argument("--port-base", type=int, help=ports)
    full = "load every Contents file, not amd64 alone"
    parser.add_argument("--full", dest="part", action="store_const", const="full", default="amd64", help=full)
    only = "with `bench`: these measurements alone, separated by commas, into docs/bench-….md; `citus` alone"
    parser.add_argument("--only", help=only)
    peer = "with `bench --only s3`: another S3 service to measure beside, name,url,access key,secret key,pid"
    parser.add_argument("--peer", help=peer)
    peers = "with `bench --only requests` or `put`: a folder with MinIO, Garage and HDFS, each with run.sh and stop.sh"
    parser.add_argument("--peers", type=Path, help=peers)
    objects = "with `bench --only volume-size`: how many objects"
    parser.add_argument("--objects", type=at_least_one, default=measure.OBJECTS, help=objects)
    blocks = "with `bench --only volume-size`: bytes of a block, a power of two from 512 to 65,536"
    parser.add_argument("--block-bytes", type=block_size, default=measure.BLOCK_BYTES, help=blocks)
    parser.add_argument("--seconds", type=int, default=600, help="with `soak`: how long")
    return parser.parse_args()


def port_base(folder: Path, wanted: int | None) -> int:
    """A stack keeps the ports of its first start: the Raft group knows its members by address."""
    try:
        kept = int((folder / "port_base").read_text(encoding="ascii"))
    except FileNotFoundError:
        return wanted or PORT_BASE
    if wanted not in (None, kept):
        raise Failure(f"{folder} was made with ports from {kept} on; `make clean` removes it, or leave PORT_BASE away")
    return kept


def main(given: argparse.Namespace) -> int | None:
    match given.command:
        case "install":
            return install()
        case "build":
            packages.check_toolchain()
            return build()
        case "bench" | "soak":
            install()
            build()
            return measured(given)
    stack = Stack(given.folder, port_base(given.folder, given.port_base), volume=True)
    match given.command:
        case "run":
            return run(stack, given.part)
        case "stop":
            return stop(stack)
        case "clean":
            return clean(stack)
    return 0 if status.show(stack) else 1


def measured(given: argparse.Namespace) -> None:
    if given.only == "citus":
        measure.citus_against_plain(given.part, given.port_base)
    elif given.command == "bench":
        more = {name: getattr(given, name) for name in ("peer", "peers", "objects", "block_bytes")}
        measure.bench(given.part, given.port_base, given.only, **more)
    else:
        measure.soak(given.seconds, given.port_base)


if __name__ == "__main__":
    given = arguments()
    sys.exit(run_command(lambda: main(given)))
