"""A gateway that asks a single replica of the index, so its answers show what that replica knows."""

from collections.abc import Iterator
from contextlib import contextmanager

from stack import secret
from stack.gateway import Gateway
from tests.support.rest import Rest

PRIVATE_GATEWAY_OFFSET = 40


@contextmanager
def only_replica(stack, replica: int) -> Iterator[Rest]:
    """The native API, answered by one replica."""
    layout, port = stack.layout, stack.layout.port_base + PRIVATE_GATEWAY_OFFSET + replica
    replicas = [layout.index_addresses[replica - 1]]
    gateway = Gateway(layout, stack.account, f"gateway-of-{replica}", port=port, replicas=replicas)
    gateway.prepare()
    gateway.start()
    try:
        gateway.await_ready()
        yield Rest("127.0.0.1", gateway.port, secret.read(stack.layout, "token"))
    finally:
        gateway.process.stop()
