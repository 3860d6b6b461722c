"""Decides the shape of a new cluster by what this machine permits."""

from stack import citus
from stack.terminal import say

from . import network
from .layout import Shape

LOOPBACK = "127.77.0"


def new_shape(workers: int, standbys: int, *, plain: bool = False) -> Shape:
    """The shape that this machine permits; prints what it does not. `plain`: without Citus, even if it is installed."""
    has_namespaces = network.is_permitted()
    if not has_namespaces:
        say("  network namespaces are not permitted here: the hosts are loopback addresses, and cannot be cut off")
    is_citus = citus.is_installed() and not plain
    if not is_citus:
        reason = "without Citus, as asked" if plain else citus.absence()
        say(f"  {reason}. One PostgreSQL group, not distributed")
    return Shape(network.free_network() if has_namespaces else LOOPBACK, has_namespaces, is_citus, workers, standbys)
