"""Checks a native plugin in a process of its own: loading it runs its code, which may end the process."""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Sequence
from multiprocessing.connection import Connection
from typing import Any

from layerzero import _native


def run(path: str, allowed: Sequence[str] | None) -> Any:
    """The result of `check_plugin`. Raises what it raises. `allowed` replaces the setting ``plugins.directories``."""
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_check, args=(path, allowed, sender))
    process.start()
    sender.close()
    try:
        result = receiver.recv()
    except EOFError:
        process.join()
        raise ValueError(f"the plugin {path} ended the process that loaded it, with {_end(process.exitcode)}") from None
    process.join()
    if isinstance(result, BaseException):
        raise result
    return result


def _check(path: str, allowed: Sequence[str] | None, sender: Connection) -> None:
    result: Any
    try:
        if allowed:
            _native.configure({"plugins.directories": list(allowed)})
        result = _native.check_plugin(path)
    except Exception as error:
        result = error
    sender.send(result)


def _end(exit_code: int | None) -> str:
    if exit_code is not None and exit_code < 0:
        return f"signal {signal.Signals(-exit_code).name}"
    return f"exit code {exit_code}"
