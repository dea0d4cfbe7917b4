"""OpenTelemetry: spans of selections and kernel runs, under the program's own spans.

    from layerzero.integrations import opentelemetry

    with tracer.start_as_current_span("request"), opentelemetry.spans():
        model(inputs)

Needs `opentelemetry-api`, which the extra ``otel`` installs together with an exporter (``pip install layerzero[otel]``). Which spans are
exported, and where to, is configured as for every other library: by the tracer provider or by the variables ``OTEL_*``.
"""

from __future__ import annotations

import contextlib
import json
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from layerzero import _native
from layerzero._telemetry import start_recording, stop_recording


@contextlib.contextmanager
def spans(tracer: Any = None) -> Iterator[None]:
    """Records selections (``lz.select``) and kernel runs (``lz.dispatch``) of all threads inside a `with` block. When it ends they
    become spans of `tracer`, children of the current span. Without a tracer, the tracer ``layerzero`` of the global provider is used.
    """
    from opentelemetry import trace

    tracer = tracer or trace.get_tracer("layerzero", _native.__version__)
    begin = time.time_ns()
    start_recording()
    try:
        yield
    finally:
        for event in _events():
            start = begin + int(event["ts"] * 1000)
            span = tracer.start_span(f"lz.{event['cat']}", start_time=start, attributes=event["args"])
            if "error" in event["args"]:
                span.set_status(trace.Status(trace.StatusCode.ERROR, event["args"]["error"]))
            span.end(start + int(event["dur"] * 1000))


def _events() -> list[dict[str, Any]]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        stop_recording(path)
        events = json.loads(path.read_text(encoding="utf-8"))["traceEvents"]
    return [event for event in events if event["ph"] == "X"]
