"""A second gateway of the stack, with limits of its own, that a test may kill."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType

from stack.gateway import Gateway

from .clients import s3_client

OFFSET = 45


class LimitedGateway(Gateway):
    """A gateway with a section of limits, and domains below which buckets are hosts."""

    limits: Mapping[str, int] = MappingProxyType({})
    domains: tuple[str, ...] = ()

    def settings(self) -> str:
        domains = ", ".join(f'"{domain}"' for domain in self.domains)
        lines = [f"{name} = {value}" for name, value in self.limits.items()]
        return f"domains = [{domains}]\n" + super().settings() + "\n".join(["", "[limits]", *lines, ""])

    def s3(self, stack):
        return s3_client(stack, endpoint_url=self.url)


@contextmanager
def running(gateway: LimitedGateway) -> Iterator[None]:
    """The gateway while it runs; a test may kill it."""
    gateway.prepare()
    gateway.start()
    try:
        gateway.await_ready()
        yield
    finally:
        if gateway.process.pid() is not None:
            gateway.process.stop()


@contextmanager
def another_gateway(stack, domains: tuple[str, ...] = (), **limits: int) -> Iterator[LimitedGateway]:
    gateway = LimitedGateway(stack.layout, stack.account, "gateway-beside", port=stack.layout.port_base + OFFSET)
    gateway.limits, gateway.domains = limits, domains
    with running(gateway):
        yield gateway
