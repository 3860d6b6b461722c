"""Other users of a gateway's machine read no object's bytes, even if its service manager sets no umask."""

import os
from pathlib import Path

from .another_gateway import OFFSET, LimitedGateway, running
from .volume_gateway import make, volume_folder

CARELESS = ("/bin/sh", "-c", 'umask 022; ulimit -Sn 512; exec "$0" "$@"')
OTHERS = 0o007
SIZES = (1, 3 << 20)


def careless(gateway: LimitedGateway) -> LimitedGateway:
    gateway.process.command = [*CARELESS, *gateway.process.command]
    return gateway


def put_each(gateway: LimitedGateway, stack, bucket: str) -> None:
    for size in SIZES:
        gateway.s3(stack).put_object(Bucket=bucket, Key=f"o{size}", Body=os.urandom(size))


def open_to_others(paths: set[Path]) -> list[tuple[Path, str]]:
    modes = [(path, path.stat().st_mode) for path in paths]
    return [(path, oct(mode)) for path, mode in modes if mode & OTHERS]


def test_files_of_objects_are_not_open_to_others(stack, bucket):
    port = stack.layout.port_base + OFFSET
    gateway = careless(LimitedGateway(stack.layout, stack.account, "gateway-careless", port=port))
    here = lambda: {path for path in gateway.data.rglob("*") if path.is_file() or path.is_dir()}
    with running(gateway):
        before = here()
        put_each(gateway, stack, bucket)
        made = here() - before
        assert len([path for path in made if path.is_file()]) == len(SIZES), made
        assert open_to_others(made) == []
        limits = Path(f"/proc/{gateway.process.pid()}/limits").read_text(encoding="ascii")
        soft, hard = next(line for line in limits.splitlines() if line.startswith("Max open files")).split()[3:5]
        assert soft == hard, "as many open files as it may ask for"


def test_a_volume_is_not_open_to_others(stack, bucket):
    with volume_folder(stack) as folder:
        gateway = careless(make(stack, folder=folder))
        with running(gateway):
            put_each(gateway, stack, bucket)
            assert gateway.file().stat().st_size > sum(SIZES)
            assert open_to_others(set(folder.rglob("*"))) == []
