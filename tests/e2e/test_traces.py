"""One request's spans: from the client's trace through the gateway to the IndexNode that acknowledges the change."""

import secrets
import tempfile
from pathlib import Path

import pytest

from stack.poll import wait_until

from .collector import Collector

pytestmark = pytest.mark.faults

BOUND_S = 30
GATEWAY, INDEXNODE = "mantle-gateway", "mantle-indexnode"


@pytest.fixture
def collector(stack, whole):
    """The services send the spans of requests whose client asks OpenTelemetry's sampler for it."""
    processes = [stack.gateway.process, *(replica.process for replica in stack.indexnodes.values())]
    before = [process.environment for process in processes]
    with tempfile.TemporaryDirectory() as folder, Collector(Path(folder)) as collector:
        Path(folder).chmod(0o755)
        asked = {
            "OTEL_EXPORTER_OTLP_ENDPOINT": collector.endpoint,
            "OTEL_EXPORTER_OTLP_CERTIFICATE": str(collector.certificate),
            "OTEL_TRACES_SAMPLER": "parentbased_always_off",
            "OTEL_BSP_SCHEDULE_DELAY": "100",  # milliseconds
        }
        restart(stack, processes, [{**one, **asked} for one in before])
        yield collector
        restart(stack, processes, before)


def restart(stack, processes, environments) -> None:
    for process, environment in zip(processes, environments, strict=True):
        process.stop()
        process.environment = environment
        process.start()
    for part in (*stack.indexnodes.values(), stack.gateway):
        part.await_ready()


def numbers(span) -> dict[str, int]:
    return {attribute.key: attribute.value.int_value for attribute in span.attributes}


def test_a_change_is_followed_from_the_client_to_the_index(collector, rest, bucket):
    trace, parent = secrets.token_hex(16), secrets.token_hex(8)
    untraced = rest.call("PUT", f"/v1/ns/{bucket}/dirs/b")
    traced = rest.call("PUT", f"/v1/ns/{bucket}/dirs/a", headers={"traceparent": f"00-{trace}-{parent}-01"})
    assert (untraced.status, traced.status) == (201, 201)
    wanted = {
        (INDEXNODE, "Await"),
        *((GATEWAY, name) for name in ("mkdir", "resolve", "batched statement", "await_request")),
    }
    spans = wait_until(
        lambda: wanted <= collector.spans(trace).keys() and collector.spans(trace), "the request's spans", BOUND_S
    )
    request = spans[GATEWAY, "mkdir"]
    assert request.parent_span_id.hex() == parent
    for name in ("resolve", "batched statement", "await_request"):
        assert spans[GATEWAY, name].parent_span_id == request.span_id
    assert spans[INDEXNODE, "Await"].parent_span_id == spans[GATEWAY, "await_request"].span_id
    assert numbers(request)["http.response.status_code"] == 201
    assert numbers(spans[INDEXNODE, "Await"])["applied_index"] > 0
    assert collector.traces() == {trace}, "nobody asked for another"
