"""The stack's generated passwords and keys.

Invariant: each is made once, from the system's random source, and stored in a file of mode 0600 that the service
account owns. No secret appears in the repository, a command line or a log.
"""

import secrets
import string

from .account import Account
from .layout import Layout

PASSWORD_BYTES = 24
ROLES = ("superuser", "gateway", "index", "operator", "importer", "analyst")
NAMES = (*ROLES, "access_key", "secret_key", "token", "pgbouncer")


def _make(name: str) -> str:
    if name.endswith("access_key"):  # the format of an AWS key: 20 capitals and digits
        return "MNTL" + "".join(secrets.choice(string.ascii_uppercase + string.digits) for _ in range(16))
    return secrets.token_urlsafe(PASSWORD_BYTES)


def make_missing(layout: Layout, account: Account, names: tuple[str, ...] = NAMES) -> None:
    account.own_folder(layout.secrets, 0o700)
    for name in names:
        path = layout.secrets / name
        if not path.exists():
            account.write(path, _make(name))


def read(layout: Layout, name: str) -> str:
    return (layout.secrets / name).read_text(encoding="ascii").strip()
