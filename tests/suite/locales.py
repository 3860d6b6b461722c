"""Databases that compare text by other rules than the stack's own, for pgTAP: ICU's and the C library's German ones.

Only Debian's server is built with ICU. The C library's rules are made from Debian's package `locales`, in the stack's
directory; nothing is installed.
"""

import shutil
from pathlib import Path

from stack import packages, servers
from stack.stack import Stack
from stack.terminal import run

LOCALE = "de_DE.utf8"
SYSTEM = Path("/usr/lib/locale")
# Options of CREATE DATABASE, by what they are.
DATABASES = {
    "ICU's German rules": "TEMPLATE template0 LOCALE_PROVIDER icu ICU_LOCALE 'de-u-co-phonebk'",
    "the C library's German rules": f"TEMPLATE template0 LOCALE '{LOCALE}'",
}


def databases() -> dict[str, str]:
    """What the chosen server can have."""
    return DATABASES if servers.chosen() == servers.DEFAULT else {}


def give(stack: Stack) -> None:
    """Makes them known to the stack's PostgreSQL, which reads the variable when it starts."""
    if not databases():
        return
    folder = stack.layout.folder / "locales"
    if not (folder / LOCALE).is_dir():
        sources = packages.unpacked("locales") / "usr" / "share" / "i18n"
        folder.mkdir(exist_ok=True)
        new = folder / f"{LOCALE}.new"
        command = ["localedef", "--no-archive", "--inputfile=de_DE", "--charmap=UTF-8", str(new)]
        run(command, "localedef", env={"PATH": "/usr/bin:/bin", "I18NPATH": str(sources)})
        for known in SYSTEM.iterdir():  # the variable replaces the system's directory
            if known.is_dir():
                shutil.copytree(known, folder / known.name, symlinks=True, dirs_exist_ok=True)
        new.rename(folder / LOCALE)
    stack.postgresql.process.environment["LOCPATH"] = str(folder)
