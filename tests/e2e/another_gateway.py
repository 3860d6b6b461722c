"""A second gateway of the stack, with limits of its own, that a test may kill."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType

from stack.gateway import Gateway

from .clients import s3_client

OFFSET = 45


class LimitedGateway(Gateway):
    """A gateway with a section of limits."""

    limits: Mapping[str, int] = MappingProxyType({})

    def settings(self) -> str:
        lines = [f"{name} = {value}" for name, value in self.limits.items()]
        return super().settings() + "\n".join(["", "[limits]", *lines, ""])

    def s3(self, stack):
        return s3_client(stack, endpoint_url=self.url)


@contextmanager
def another_gateway(stack, **limits: int) -> Iterator[LimitedGateway]:
    gateway = LimitedGateway(stack.layout, stack.account, "gateway-beside", port=stack.layout.port_base + OFFSET)
    gateway.limits = limits
    gateway.prepare()
    gateway.start()
    try:
        gateway.await_ready()
        yield gateway
    finally:
        if gateway.process.pid() is not None:
            gateway.process.stop()
