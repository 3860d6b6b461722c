"""A gateway that asks a single replica of the index, so its answers show what that replica knows."""

from collections.abc import Iterator
from contextlib import contextmanager

from stack import secret
from stack.gateway import Gateway
from stack.layout import Layout
from tests.support.rest import Rest

PRIVATE_GATEWAY_OFFSET = 40


class OneReplicaGateway(Gateway):
    def __init__(self, stack, replica: int):
        layout = stack.layout
        super().__init__(Layout(layout.folder, layout.port_base), stack.account)
        port = layout.port_base + PRIVATE_GATEWAY_OFFSET + replica
        name = f"gateway-of-{replica}"
        self.port = port
        self.url = f"http://127.0.0.1:{port}"
        self.config = layout.config / f"{name}.toml"
        self.process.name = name
        self.process.pid_file = layout.pids / name
        self.process.log_file = layout.logs / f"{name}.log"
        self.process.command = [self.process.command[0], "--config", str(self.config)]
        ordinary = (layout.config / "gateway.toml").read_text(encoding="utf-8")
        every = ", ".join(f'"{address}"' for address in layout.index_addresses)
        text = ordinary.replace(f"127.0.0.1:{layout.gateway_port}", f"127.0.0.1:{port}", 1)
        text = text.replace(every, f'"127.0.0.1:{layout.grpc_port(replica)}"')
        assert text != ordinary
        self.config.write_text(text, encoding="utf-8")
        stack.account.own(self.config)


@contextmanager
def only_replica(stack, replica: int) -> Iterator[Rest]:
    """The native API, answered by one replica."""
    gateway = OneReplicaGateway(stack, replica)
    gateway.start()
    try:
        gateway.await_ready()
        yield Rest("127.0.0.1", gateway.port, secret.read(stack.layout, "token"))
    finally:
        gateway.process.stop()
