"""The bench and the soak, each on a new stack that is removed afterwards.

Citus is compared with a plain PostgreSQL on servers without the rest of a stack, versions of PostgreSQL likewise, and
TLS in two stacks. Puts run on one plain server; lookups and the store of objects' bytes need no PostgreSQL. Requests
and puts of objects are also measured at peers, external programs in a folder that the caller names. All write pages of
docs/; none is part of `make test`.
"""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from . import build, citus, debian, environment, load, packages, secret, servers
from .account import make_folder, remove_folder, service_account
from .gateway import SEGMENT_BYTES, Gateway
from .layout import DATABASE, REGION, REPOSITORY
from .poll import wait_until
from .server import Server
from .service import start_each
from .stack import Stack
from .terminal import run, say, step
from .tls_stack import TlsStack

PORT_BASE = 7800
FOLDER = REPOSITORY / ".bench"
TLS_FOLDER = REPOSITORY / ".bench-tls"
PORTS_OF_A_STACK = 100
CITUS_GB = 6.0
CITUS_SETTINGS = {"shared_buffers": "512MB"}  # for each of four servers
PUT_GB = 24.0  # objects of some turns, rows, PostgreSQL indexes and WAL of ten minutes, and the volumes
PUT_SEGMENTS = 16  # 1 GiB, four times what a turn puts
CHURN_SEGMENTS = 32  # 2 GiB: what is deleted in a second is a small part of it
INLINE_GB = 12.0  # small objects of some turns, rows, PostgreSQL indexes and WAL of ten minutes
INLINE_BYTES_MAX = 4096
FILLED_BYTES_PER_S_MIN = 4 << 20
PUTS_GB = 20.0  # measured: rows, PostgreSQL indexes and WAL of three minutes
PUTS_SETTINGS = {"shared_buffers": "2GB", "max_wal_size": "4GB"}
VERSIONS = (servers.DEFAULT, "18")
VERSIONS_GB = 12.0  # of each server: three imports, and the rest with its WAL
# Autovacuum would work in another server's turn.
VERSIONS_SETTINGS = {"shared_buffers": "2GB", "max_wal_size": "4GB", "autovacuum": "off"}
REQUESTS_GB = 8.0  # measured: objects, rows, PostgreSQL indexes and WAL of ten minutes, and the peers' objects
# Counts statements when it is told to; until then it costs next to nothing.
REQUESTS_SETTINGS = {"shared_preload_libraries": "mantle,pg_stat_statements"}
PEERS = ("minio", "garage", "hdfs")
OBJECTS = 10_000_000  # of `volume-size`
OBJECT_BYTES = 1024
EXTENT_HEAD_BYTES = 44  # header and checksum of an object of 1 KiB (docs/formats.md)
BLOCK_BYTES = 4096  # the gateways' default
# The volume grows when 85 % are used. PostgreSQL: a row with its indexes, and the answer to the request.
GROW_SHARE, ROW_BYTES = 0.85, 1000
VOLUME_SIZE_GB = 7.0  # max_wal_size, a step of growth, and the rest
VOLUMES_GB = 8.0  # five volumes of 1 GiB, and the files of one turn
TLS_GB = 6.0  # measured: objects, rows, PostgreSQL indexes and WAL of five minutes
SOAK_GB_PER_MINUTE = 0.5  # measured: rows, PostgreSQL indexes and WAL of 4,000 puts a second, before WAL is recycled
SOAK_GB_MIN = 6.0


def _build() -> None:
    """Builds the measuring program."""
    compile_it = ["cargo", "build", "--release", "--locked", "--package", "mantle-bench"]
    run(compile_it, "cargo build", show=True, cwd=REPOSITORY, env=packages.environment())


def _measure(page: str, *arguments: str | Path, **variables: str) -> None:
    """Runs the measuring program, which writes a page of docs/."""
    command = [packages.target() / "release" / "mantle-bench", *arguments, "--output", REPOSITORY / "docs" / page]
    run([*map(str, command)], "the bench", show=True, env={**os.environ, **variables})


def _listing(folder: Path, part: str) -> list[str | Path]:
    """Makes a listing; returns the option that names it."""
    listing = folder / f"{part}.list"
    debian.make_listing(part, listing)
    return ["--listing", listing]


@contextmanager
def _running(stack: Stack, need_gb: float, what: str) -> Iterator[None]:
    """A new stack, which runs while the block does."""
    load.check_disk(stack.given_folder, need_gb, what)
    stack.remove()
    try:
        with stack.alone():
            stack.start()
            yield
    finally:
        stack.remove()


@contextmanager
def _stack(
    port_base: int | None, need_gb: float, what: str, settings: dict[str, str] | None = None
) -> Iterator[tuple[Stack, dict[str, str]]]:
    """A new, running stack, and its variables; builds the program. `settings`: more settings of PostgreSQL."""
    _build()
    stack = Stack(FOLDER, port_base or PORT_BASE, postgresql_settings=settings)
    with _running(stack, need_gb, what):
        # It measures what gateways and imports do, and needs a role of its own for neither.
        stack.postgresql.psql("GRANT mantle_gateway, mantle_importer TO operator")
        admin = stack.postgresql.url("postgres", "superuser")
        # The program reads no password file.
        urls = {
            "DATABASE_URL": stack.postgresql.url("operator"), "MANTLE_POOLER_URL": stack.pgbouncer.url("operator"),
            "MANTLE_ADMIN_URL": admin,
        }  # fmt: skip
        yield stack, {**environment.variables(stack), **load.import_environment(stack), **urls}


@contextmanager
def _servers(
    port_base: int | None, need_gb: float, settings: dict[str, dict[str, str]], versions: dict[str, str] | None = None
) -> Iterator[list[Server]]:
    """New, running servers by name, of which the first is plain and the others share a password. Builds the program.
    `versions`: of PostgreSQL by the server's name; the others have the chosen one.
    """
    _build()
    load.check_disk(FOLDER, need_gb, "the bench")
    place = make_folder(FOLDER, service_account())
    made: list[Server] = []
    try:
        for number, (name, of) in enumerate(settings.items()):
            password = made[1].parameters["password"] if number > 1 else None
            port = (port_base or PORT_BASE) + 10 * number
            made.append(Server(place / name, port, of, password, (versions or {}).get(name)))
        with step(f"servers: {', '.join(settings)}"):
            for server in made:
                server.start()
            _make_database(made[0])
        yield made
    finally:
        for server in made:
            server.stop()
        remove_folder(FOLDER)


def _make_database(server: Server) -> None:
    server.postgresql.psql(f"CREATE DATABASE {DATABASE}", database="postgres")
    server.postgresql.psql("CREATE EXTENSION mantle")


def bench(
    part: str,
    port_base: int | None,
    only: str | None,
    *,
    peer: str | None = None,
    peers: Path | None = None,
    objects: int = OBJECTS,
    block_bytes: int = BLOCK_BYTES,
) -> None:
    """Writes docs/bench.md, or with `only` a page for that part. `peer`: an S3 service to measure beside. `peers`: a
    folder of programs to start and measure beside. `objects`, `block_bytes`: of the volume of `volume-size`.
    """
    match only:
        case "lookup":
            return _lookup(part)
        case "puts":
            return _puts(port_base)
        case "versions":
            return _versions(part, port_base)
        case "volumes":
            return _volumes()
        case "volume-size":
            return _volume_size(port_base, objects, block_bytes)
        case "put":
            return _put(part, port_base, peers)
        case "inline":
            return _inline(part, port_base)
        case "tls":
            return _tls(port_base)
        case "requests":
            return _requests(port_base, peers)
    with _stack(port_base, load.DATA_GB[part], "the bench") as (stack, variables):
        stack.start_more_gateways()
        arguments = ["measure", *_listing(stack.layout.folder, part), "--mantle", stack.layout.binaries / "mantle"]
        gathering, *others = (gateway.url for gateway in stack.more_gateways)
        if peer:
            arguments += ["--peer", peer]
        more = {
            "MANTLE_PROCESSES": _processes(stack),
            "MANTLE_MORE_URLS": gathering,
            "MANTLE_NOT_GATHERING_URLS": ",".join(others),
        }
        page = f"bench-{only.replace(',', '-')}.md" if only else "bench.md"
        return _measure(page, *arguments, *(["--only", only] if only else []), **variables, **more)


def _processes(stack: Stack) -> str:
    """The names and pids of its processes."""
    return ",".join(f"{process.name}={process.pid()}" for process in stack.processes())


def citus_against_plain(part: str, port_base: int | None) -> None:
    """Writes docs/bench-citus.md. A missed bound is a failure. Without Citus nothing is measured."""
    if not citus.is_installed():
        say(f"{citus.absence()}. Nothing was measured, docs/bench-citus.md is as it was")
        return
    node = CITUS_SETTINGS | citus.SETTINGS | {"citus.enable_stat_counters": "on"}
    settings = {"plain": CITUS_SETTINGS, "coordinator": node, "worker1": node, "worker2": node}
    with _servers(port_base, CITUS_GB + 2 * load.DATA_GB[part], settings) as servers:
        citus.make_databases(servers[1:], DATABASE)
        citus.join(servers[1:], DATABASE)
        plain, *cluster = (server.postgresql.url("postgres", "superuser") for server in servers)
        arguments = [*_listing(FOLDER.resolve(), part), "--mantle", packages.target() / "release" / "mantle"]
        urls = {"MANTLE_PLAIN_URL": plain, "MANTLE_CITUS_URLS": ",".join(cluster)}
        _measure("bench-citus.md", "citus", *arguments, **urls)


def _puts(port_base: int | None) -> None:
    """Writes docs/bench-puts.md."""
    with _servers(port_base, PUTS_GB, {"plain": PUTS_SETTINGS}) as (server,):
        url = server.postgresql.url("postgres", "superuser")
        _measure("bench-puts.md", "puts", MANTLE_PLAIN_URL=url)


def _versions(part: str, port_base: int | None) -> None:
    """Writes docs/bench-versions.md."""
    for version in VERSIONS:
        build.build_extension(version)
    versions = {f"postgresql-{version}": version for version in VERSIONS}
    settings = dict.fromkeys(versions, VERSIONS_SETTINGS)
    with _servers(port_base, VERSIONS_GB * len(VERSIONS), settings, versions) as made:
        for server in made[1:]:
            _make_database(server)
        urls = ",".join(server.postgresql.url("postgres", "superuser") for server in made)
        arguments = [*_listing(FOLDER.resolve(), part), "--mantle", packages.target() / "release" / "mantle"]
        _measure("bench-versions.md", "versions", *arguments, MANTLE_VERSIONS_URLS=urls)


def _put(part: str, port_base: int | None, peers: Path | None) -> None:
    """Writes docs/bench-put.md. A second gateway of the stack keeps the bytes in a volume; two more have volumes that
    cannot grow. A missed bound is a failure. Without peers MinIO is left out.
    """
    with (
        _stack(port_base, PUT_GB, "the bench") as (stack, variables),
        _gateway_with_volume(stack, 2) as gateway,
        _gateway_with_volume(stack, 3, segments=CHURN_SEGMENTS, can_grow=False) as empty,
        _gateway_with_volume(stack, 4, segments=CHURN_SEGMENTS, can_grow=False) as full,
        _stopping(peers),
    ):
        arguments = ["measure", *_listing(stack.layout.folder, part), "--mantle", stack.layout.binaries / "mantle"]
        arguments += ["--peer", f"volume,{gateway.url},{gateway.process.pid()}", "--only", "put"]
        arguments += ["--churn", ";".join(f"{churn.url},{churn.probe}" for churn in (empty, full))]
        processes = f"{_processes(stack)},volume={gateway.process.pid()}"
        variables |= {"MANTLE_PROCESSES": processes} | _peer_keys(stack) | _named(peers)
        _measure("bench-put.md", *arguments, **variables)


def _inline(part: str, port_base: int | None) -> None:
    """Writes docs/bench-inline.md. Two more gateways have a volume each; one keeps small objects inside PostgreSQL."""
    with (
        _stack(port_base, INLINE_GB, "the bench") as (stack, variables),
        _gateway_with_volume(stack, 2) as volume,
        _gateway_with_volume(stack, 3, inline_bytes_max=INLINE_BYTES_MAX) as inline,
    ):
        arguments = ["measure", *_listing(stack.layout.folder, part), "--mantle", stack.layout.binaries / "mantle"]
        arguments += ["--peer", f"inline,{inline.url},{inline.process.pid()}", "--only", "inline"]
        more = [f"{name}={gateway.process.pid()}" for name, gateway in (("volume", volume), ("inline", inline))]
        processes = ",".join([_processes(stack), *more])
        variables |= {"MANTLE_PROCESSES": processes, "AWS_ENDPOINT_URL": volume.url} | _peer_keys(stack)
        _measure("bench-inline.md", *arguments, **variables)


@contextmanager
def _gateway_with_volume(
    stack: Stack, number: int, *, segments: int = PUT_SEGMENTS, can_grow: bool = True, inline_bytes_max: int = 0
) -> Iterator[Gateway]:
    """Another gateway of a stack, whose volume has room."""
    name = f"gateway-volume-{number}"
    gateway = Gateway(stack.layout, stack.account, name, port=stack.layout.more_gateway_port(number))
    gateway.volume = stack.layout.data / f"volume-{number}"
    gateway.volume_settings["growth_segments"] = segments
    room = segments * SEGMENT_BYTES
    if not can_grow:
        gateway.volume_settings["bytes_max"] = room
    gateway.inline_bytes_max = inline_bytes_max
    try:
        start_each([gateway])
        # A new segment is filled with zeros, once.
        bound_s = room / FILLED_BYTES_PER_S_MIN
        leased = lambda: gateway.metrics().get('mantle_gateway_volume_bytes{of="leased"}')
        wait_until(lambda: leased() == room, "the room of the volume", bound_s)
        yield gateway
    finally:
        gateway.process.stop()


def _volume_size(port_base: int | None, objects: int, block_bytes: int) -> None:
    """Writes docs/bench-volume-size.md. Two gateways take turns with one volume; the program starts and ends them."""
    occupied = -(-(OBJECT_BYTES + EXTENT_HEAD_BYTES) // block_bytes) * block_bytes
    need_gb = objects * (occupied / GROW_SHARE + ROW_BYTES) / 2**30 + VOLUME_SIZE_GB
    what = f"the bench with OBJECTS={objects} and BLOCK_BYTES={block_bytes}"
    with _stack(port_base, round(need_gb, 1), what) as (stack, variables):
        gateways = [_gateway_of_volume(stack, number, block_bytes) for number in (2, 3)]
        folder, account = gateways[0].volume, stack.account
        arguments = ["volume-size", "--objects", str(objects), "--folder", folder]
        for gateway in gateways:
            gateway.prepare()
            arguments += ["--gateway", f"{gateway.config},{gateway.url},{gateway.probe}"]
        arguments += ["--programs", stack.layout.binaries, "--log", stack.layout.logs / "gateways-with-volume.log"]
        if account.switch:
            arguments += ["--account", f"{account.uid}:{account.gid}"]
        _measure("bench-volume-size.md", *arguments, **variables, MANTLE_PROCESSES=_processes(stack))


def _gateway_of_volume(stack: Stack, number: int, block_bytes: int) -> Gateway:
    """One of several gateways with the same folder, and a volume with the settings as shipped but for its blocks."""
    name = f"gateway-volume-{number}"
    gateway = Gateway(stack.layout, stack.account, name, port=stack.layout.more_gateway_port(number))
    gateway.volume, gateway.volume_settings = stack.layout.data / "volume", {"block_bytes": block_bytes}
    return gateway


def _peer_keys(stack: Stack) -> dict[str, str]:
    """Variables with the keys of a peer that has those of the stack."""
    return {f"MANTLE_PEER_{name.upper()}": secret.read(stack.layout, name) for name in ("access_key", "secret_key")}


def _lookup(part: str) -> None:
    """Writes docs/bench-lookup.md. Measures the index alone: replicas without PostgreSQL, so no stack."""
    _build()
    with tempfile.TemporaryDirectory() as folder:
        _measure("bench-lookup.md", "lookup", *_listing(Path(folder), part))


def _volumes() -> None:
    """Writes docs/bench-volumes.md. Measures the store of objects' bytes alone, so no stack. A missed bound fails."""
    _build()
    load.check_disk(FOLDER, VOLUMES_GB, "the bench")
    place = make_folder(FOLDER, service_account())
    try:
        _measure("bench-volumes.md", "volumes", "--folder", place / "volumes")
    finally:
        remove_folder(FOLDER)


def _requests(port_base: int | None, peers: Path | None) -> None:
    """Writes docs/bench-requests.md. A missed bound is a failure. Without peers the page keeps their last figures."""
    with _stack(port_base, REQUESTS_GB, "the bench", REQUESTS_SETTINGS) as (stack, variables), _stopping(peers):
        stack.postgresql.psql("ALTER SYSTEM SET pg_stat_statements.track = none; SELECT pg_reload_conf()")
        more = {"MANTLE_PROCESSES": _processes(stack)} | _named(peers)
        _measure("bench-requests.md", "requests", **variables, **more)


def _named(peers: Path | None) -> dict[str, str]:
    """The variable that names the folder of peers."""
    return {"PEERS": str(peers.absolute())} if peers else {}


@contextmanager
def _stopping(peers: Path | None) -> Iterator[None]:
    """Stops peers at the end: the program stops what it starts, unless it is ended itself."""
    try:
        yield
    finally:
        for peer in PEERS if peers else ():
            if list((peers / peer / "run").glob("*pid")):
                run([peers / peer / "stop.sh", "clean"], f"the end of {peer}")


def _tls(port_base: int | None) -> None:
    """Writes docs/bench-tls.md. A missed bound is a failure."""
    _build()
    first = port_base or PORT_BASE
    plain, encrypted = stacks = Stack(FOLDER, first), TlsStack(TLS_FOLDER, first + PORTS_OF_A_STACK)
    with _running(plain, TLS_GB, "the bench"), _running(encrypted, TLS_GB, "the bench"):
        encrypted.check_encryption()
        each = lambda name: ",".join(secret.read(stack.layout, name) for stack in stacks)
        variables = {
            "MANTLE_URLS": ",".join(stack.gateway.url for stack in stacks), "MANTLE_TOKENS": each("token"),
            "MANTLE_ACCESS_KEYS": each("access_key"), "MANTLE_SECRET_KEYS": each("secret_key"), "AWS_REGION": REGION,
            "MANTLE_PLAIN_PROCESSES": _processes(plain), "MANTLE_TLS_PROCESSES": _processes(encrypted),
            "MANTLE_ADMIN_URL": plain.postgresql.url("postgres", "superuser"), "MANTLE_TLS_CA": encrypted.authority,
        }  # fmt: skip
        _measure("bench-tls.md", "tls", **variables)
        encrypted.check_encryption()


def soak(seconds: int, port_base: int | None) -> None:
    """Writes docs/soak.md. A missed bound is a failure."""
    with _stack(port_base, SOAK_GB_MIN + SOAK_GB_PER_MINUTE * seconds / 60, "the soak") as (_, variables):
        _measure("soak.md", "soak", "--seconds", str(seconds), **variables)
