"""A collector of OpenTelemetry spans: serves the exporters and keeps what they send."""

import threading
from concurrent.futures import ThreadPoolExecutor

import grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc
from opentelemetry.proto.trace.v1.trace_pb2 import Span


class Collector(trace_service_pb2_grpc.TraceServiceServicer):
    """Listens on a loopback port of its own while the block runs."""

    def __init__(self):
        self._lock = threading.Lock()
        self._spans: list[tuple[str, Span]] = []
        self._server = grpc.server(ThreadPoolExecutor(2))
        trace_service_pb2_grpc.add_TraceServiceServicer_to_server(self, self._server)
        self.endpoint = f"http://127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"

    def __enter__(self) -> "Collector":
        self._server.start()
        return self

    def __exit__(self, *_ignored) -> None:
        self._server.stop(None).wait()

    def Export(self, request, _context):  # the service's name for it
        with self._lock:
            for resource in request.resource_spans:
                service = next(a.value.string_value for a in resource.resource.attributes if a.key == "service.name")
                self._spans += [(service, span) for scope in resource.scope_spans for span in scope.spans]
        return trace_service_pb2.ExportTraceServiceResponse()

    def spans(self, trace: str) -> dict[tuple[str, str], Span]:
        """The spans of one trace, by service and name."""
        with self._lock:
            return {(service, span.name): span for service, span in self._spans if span.trace_id.hex() == trace}

    def traces(self) -> set[str]:
        """The ids of all traces with a span."""
        with self._lock:
            return {span.trace_id.hex() for _, span in self._spans}
