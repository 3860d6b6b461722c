"""Processes on a host.

Invariant: a process runs in its host's namespace as the unprivileged account. `nsenter` and `setpriv` exec the program,
so the recorded pid is the program's own.
"""

from stack.account import Account
from stack.process import Process

from .layout import ClusterLayout, Host


def command_on(host: Host, account: Account, command: list[str]) -> tuple[list[str], Account]:
    """The command with the prefix that enters the host's namespace and drops privileges."""
    if host.namespace is None:
        return command, account
    become = ["setpriv", f"--reuid={account.uid}", f"--regid={account.gid}", "--clear-groups", "--"]
    enter = ["nsenter", f"--net=/run/netns/{host.namespace}", "--"]
    return [*enter, *become, *command], Account(0, 0, switch=False)


def process_on(host: Host, layout: ClusterLayout, account: Account, name: str, command: list[str], **more) -> Process:
    """A service of a host; its name is `host` or `host-service`."""
    entered, runner = command_on(host, account, command)
    return Process.of(layout, runner, name, entered, **more)
