"""A page for people: decisions, measurements, health and policy of this process, in a browser on this machine."""

from __future__ import annotations

import atexit
import os

from layerzero import _native
from layerzero._numbers import whole


class Server:
    """A running server. It serves until it is closed or the process ends; it is also a context manager."""

    def __init__(self, native: _native.PageServer) -> None:
        self._native = native
        # Also keeps the server alive if the caller does not.
        atexit.register(self.close)

    @property
    def url(self) -> str:
        """The URL of the page. It contains a random token: it is all that a reader needs."""
        return self._native.url

    @property
    def port(self) -> int:
        """The port on 127.0.0.1."""
        return self._native.port

    def close(self) -> None:
        """Stops listening and ends all connections. Closing again has no effect."""
        self._native.close()
        atexit.unregister(self.close)

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        # Without the token, because representations end up in logs.
        return f"<layerzero.Server on 127.0.0.1:{self.port}{'' if self._native.is_open() else ', closed'}>"


def serve(
    port: int = 0,
    *,
    perfdb: str | os.PathLike[str] | None = None,
    lockfiles: tuple[str | os.PathLike[str], ...] = (),
) -> Server:
    """Serves a page about this process on 127.0.0.1 and returns the server; port 0 selects a free one.

    ``print(lz.serve().url)``. `perfdb` shows the measurements of another file, which is not changed; `lockfiles`
    shows the differences between two lockfiles, or between one and the recorded decisions.
    """
    return Server(_native.serve(whole("port", port, 0, 65535), perfdb, list(lockfiles)))
