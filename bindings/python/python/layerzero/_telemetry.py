"""Metrics of the engine, recordings of what it does, and its log records."""

from __future__ import annotations

import os
from typing import Any

from layerzero import _native


def metrics() -> dict[str, Any]:
    """All metrics of this process as plain data: counters by operation, kernel and backend, and latency histograms."""
    import json

    data: dict[str, Any] = json.loads(_native.metrics())
    return data


def metrics_text() -> str:
    """The same in the OpenMetrics text format, which Prometheus reads."""
    return _native.metrics_text()


def start_recording() -> None:
    """Starts to record selections and kernel runs. A recording in progress is discarded."""
    _native.start_recording()


def stop_recording(path: str | os.PathLike[str]) -> None:
    """Ends the recording and writes it as a trace that Perfetto and ``chrome://tracing`` open."""
    _native.stop_recording(os.fspath(path))


class Recording:
    """A recording of a `with` block."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = path

    def __enter__(self) -> Recording:
        start_recording()
        return self

    def __exit__(self, *error: object) -> None:
        stop_recording(self.path)


def record(path: str | os.PathLike[str]) -> Recording:
    """Records selections and kernel runs of all threads inside a `with` block, and writes them as a trace to `path`."""
    return Recording(path)


def flush_logs() -> None:
    """Delivers the log records that wait for delivery to `logging`, on this thread."""
    # Imported late: `logging` takes longer to import than this package.
    from layerzero import _logging

    _logging.flush()
