"""One launcher at a time works on a directory."""

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from .failure import Failure


@contextmanager
def alone_in(folder: Path, shown: Path) -> Iterator[None]:
    """Holds the directory's lock, which ends with the process. Raises Failure, naming `shown`, when another launcher
    holds it.
    """
    with open(folder / "lock", "w", encoding="ascii") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise Failure(f"another launcher is working on {shown}; wait for its end") from None
        yield
