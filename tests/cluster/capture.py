"""Writes every frame that the interfaces of a network namespace see to a file, until it is stopped: `capture.py FILE`.

It runs in the namespace of the cluster's switch, and says `ready` on standard output when it has begun.
"""

import socket
import sys
from pathlib import Path

ALL_PROTOCOLS = 0x0003
SO_RCVBUFFORCE = 33
BUFFER_BYTES = 256 << 20
FRAME_BYTES_MAX = 1 << 17


def main(path: Path) -> None:
    with (
        socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ALL_PROTOCOLS)) as frames,
        path.open("wb", buffering=1 << 20) as file,
    ):
        frames.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, BUFFER_BYTES)
        frames.settimeout(0.2)
        print("ready", flush=True)
        while True:
            try:
                file.write(frames.recv(FRAME_BYTES_MAX))
            except TimeoutError:
                file.flush()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
