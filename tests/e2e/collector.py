"""A collector of OpenTelemetry spans: serves the exporters and keeps what they send."""

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from stack import terminal


class Collector(trace_service_pb2_grpc.TraceServiceServicer):
    """Listens on a loopback port of its own while the block runs, with TLS. `folder`: for its certificate."""

    def __init__(self, folder: Path):
        self._lock = threading.Lock()
        self._spans: list[tuple[str, Span]] = []
        self._server = grpc.server(ThreadPoolExecutor(2))
        trace_service_pb2_grpc.add_TraceServiceServicer_to_server(self, self._server)
        self.certificate, key = folder / "collector.crt", folder / "collector.key"
        command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-noenc"]
        command += ["-subj", "/CN=collector", "-addext", "subjectAltName=IP:127.0.0.1", "-days", "1"]
        command += [
            "-addext",
            "basicConstraints=critical,CA:FALSE",
        ]  # it is its own authority, and no authority of others
        terminal.run([*command, "-keyout", str(key), "-out", str(self.certificate)], "making a certificate")
        self.certificate.chmod(0o644)  # the services read it
        credentials = grpc.ssl_server_credentials([(key.read_bytes(), self.certificate.read_bytes())])
        self.endpoint = f"https://127.0.0.1:{self._server.add_secure_port('127.0.0.1:0', credentials)}"

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
