"""Spans arrive at an OTLP endpoint on loopback."""

import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import numpy
import pytest

pytest.importorskip("opentelemetry.sdk")
pytest.importorskip("opentelemetry.exporter.otlp.proto.http")

import layerzero as lz
from layerzero.integrations import opentelemetry

ROWS = numpy.ones((2, 4), numpy.float32)


@pytest.fixture
def collector():
    """An OTLP collector: the endpoint and the requests that it received."""
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

    received = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            body = self.rfile.read(int(self.headers["content-length"]))
            received.append((self.path, ExportTraceServiceRequest.FromString(body)))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_):
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/v1/traces", received
    server.shutdown()
    thread.join()
    server.server_close()


def test_spans_are_exported_under_the_current_span(collector):
    from opentelemetry.exporter.otlp.proto.http import Compression
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    endpoint, received = collector
    provider = TracerProvider()
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint=endpoint, compression=Compression.NoCompression)))
    tracer = provider.get_tracer("test")
    lz.ops.norm_rms(ROWS)
    with tracer.start_as_current_span("request"), opentelemetry.spans(tracer):
        lz.ops.norm_rms(ROWS)
    lz.ops.norm_rms(ROWS)
    provider.shutdown()

    ((path, request),) = received
    assert path == "/v1/traces"
    found = {span.name: span for span in request.resource_spans[0].scope_spans[0].spans}
    assert sorted(found) == ["lz.dispatch", "lz.select", "request"]
    kernel = lz.which("norm.rms", ROWS).kernel_id
    attributes = {one.key: one.value.string_value for one in found["lz.dispatch"].attributes}
    assert attributes == {"operation": "norm.rms", "kernel": kernel, "backend": kernel.split(".")[0]}
    request_span = found.pop("request")
    for span in found.values():
        assert span.parent_span_id == request_span.span_id
        assert request_span.start_time_unix_nano <= span.start_time_unix_nano <= span.end_time_unix_nano
