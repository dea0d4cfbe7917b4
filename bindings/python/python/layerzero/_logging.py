"""Delivers the engine's log records to `logging`: loggers `layerzero.<area>`.

The engine queues records on any thread, with or without the interpreter lock. A daemon thread delivers them; it starts when the
engine opens and ends before the interpreter shuts down. Levels are read from the loggers when the engine opens, when the level
of one of our loggers is set after that, and after each delivery. This module is imported when the engine opens.
"""

from __future__ import annotations

import atexit
import logging
import os
import sys
import threading
import time
from typing import Any

from layerzero import _native

#: Numbers of `logging` by the engine's levels: off, error, warn, info, debug, trace.
_LEVELS = (logging.CRITICAL + 1, logging.ERROR, logging.WARNING, logging.INFO, logging.DEBUG, 5)
_ROOT = logging.getLogger("layerzero")
_LOGGERS = {area: logging.getLogger(f"layerzero.{area}") for area in _native.LOG_AREAS}

_thread: threading.Thread | None = None
_stopping = False
# Held while records are taken and delivered, so that `flush` returns after the delivery of records that the thread has taken. A
# handler may call `flush`.
_delivering = threading.RLock()


class _Stderr(logging.Handler):
    """Prints records that `LAYERZERO_LOG` or a setting requests, unless the program has configured `logging`."""

    def emit(self, record: logging.LogRecord) -> None:
        configured = logging.getLogger().handlers or len(_ROOT.handlers) > 1
        if not configured and sys.stderr is not None:
            print(self.format(record), file=sys.stderr)


_STDERR = _Stderr()
_STDERR.setFormatter(logging.Formatter("%(name)s %(levelname)s: %(message)s"))


def _requested() -> dict[str, int]:
    """The engine's level of each area that the environment or a setting requests; 0 if none."""
    environment, settings = _native.requested_log_levels()
    levels = [max(pair) for pair in zip(environment or [0] * len(settings), settings, strict=True)]
    if any(levels) and _STDERR not in _ROOT.handlers:
        _ROOT.addHandler(_STDERR)
    return dict(zip(_native.LOG_AREAS, levels, strict=True))


def _threshold(logger: logging.Logger, requested: int) -> int:
    """The least number of `logging` that is delivered. A level set on one of our loggers overrides the environment."""
    level = logger.getEffectiveLevel()
    if not (logger.level or _ROOT.level):
        level = min(level, _LEVELS[requested])
    return max(level, logger.manager.disable + 1)


def update_levels() -> None:
    """Reads the levels of the loggers, so that the engine records nothing that would not be delivered."""
    requested = _requested()
    levels = []
    for area, logger in _LOGGERS.items():
        threshold = _threshold(logger, requested[area])
        levels.append((area, max((number for number, level in enumerate(_LEVELS) if level >= threshold and number), default=0)))
    _native.set_log_levels(levels)


def _deliver(records: list[tuple[str, int, str, list[tuple[str, str]], float]]) -> None:
    if not records:
        return
    requested = _requested()
    for area, severity, text, fields, seconds in records:
        logger, level = _LOGGERS[area], _LEVELS[severity]
        if level < _threshold(logger, requested[area]):
            continue
        record = logger.makeRecord(logger.name, level, "layerzero", 0, text, (), None, extra={"fields": dict(fields)})
        record.created, record.msecs = seconds, (seconds % 1) * 1000
        logger.handle(record)
    update_levels()


def flush() -> None:
    """Delivers the records that wait for delivery, on this thread."""
    with _delivering:
        _deliver(_native.take_logs())


def _run() -> None:
    # `_stop` may close the queue while this thread delivers and does not wait for it.
    while not _stopping and (more := _native.wait_for_logs(3600.0)) is not False:
        if more:
            flush()


def start() -> None:
    """Starts delivery; called after the engine has opened."""
    global _thread
    update_levels()
    if _thread is None:
        _thread = threading.Thread(target=_run, name="layerzero-log", daemon=True)
        _thread.start()


def _stop() -> None:
    global _thread, _stopping
    _stopping = True
    # A daemon thread that is opening the engine would be ended inside native code.
    deadline = time.monotonic() + 60
    while _native.is_opening() and time.monotonic() < deadline:
        time.sleep(0.001)
    records = _native.stop_logs()
    thread, _thread = _thread, None
    # A thread that waits for the interpreter lock during shutdown would be terminated inside native code.
    if thread is not None and thread is not threading.current_thread():
        thread.join()
    with _delivering:
        _deliver(records)


def _restart() -> None:
    """In a forked child: the thread does not exist, and its locks may be held."""
    global _thread, _delivering
    running, _thread, _delivering = _thread is not None, None, threading.RLock()
    _native.start_logs()
    if running:
        start()


def _follow(logger: logging.Logger) -> None:
    """Reads the levels again when the level of a logger is set."""
    original = logger.setLevel

    def set_level(level: Any) -> None:
        original(level)
        update_levels()

    logger.setLevel = set_level  # type: ignore[method-assign]


def install() -> None:
    """Routes records to `logging`; called before the engine opens."""
    for logger in (_ROOT, *_LOGGERS.values()):
        _follow(logger)
    _native.start_logs()
    update_levels()
    atexit.register(_stop)
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=_restart)
