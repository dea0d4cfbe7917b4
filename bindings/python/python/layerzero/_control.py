"""Selection policy: settings, kernel locks, and thread-local scopes (`with` blocks)."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from layerzero import _native
from layerzero._report import Report, table

Setting = bool | int | float | str | Sequence[str] | Mapping[str, int | str]


def configure(values: Mapping[str, Setting] | None = None, /, **settings: Setting) -> None:
    """Sets several settings, all or none: ``lz.configure(deterministic=True)``.

    Keys with a dot are passed in a mapping: ``lz.configure({"cache.max_size": 100})``. `lz.config()` lists every key.
    """
    _native.configure({**(values or {}), **settings})


def load_config(path: str | os.PathLike[str]) -> None:
    """Loads a policy file (``layerzero.yaml``). An invalid file changes nothing, and the error reports what is wrong and where."""
    _native.load_config(os.fspath(path))


class Entry(NamedTuple):
    """A setting and its source."""

    key: str
    value: str
    source: str


class Config(Report):
    """Every setting and its source."""

    @property
    def entries(self) -> list[Entry]:
        """The settings in order."""
        return [Entry(**entry) for entry in self.data["entries"]]

    def __getitem__(self, key: str) -> Entry:
        for entry in self.entries:
            if entry.key == key:
                return entry
        raise KeyError(key)


def config() -> Config:
    """Every setting as this thread sees it, and its source: the defaults, a file, the environment or a call."""
    entries = [{"key": key, "value": value, "source": source} for key, value, source in _native.config()]
    rows = [(entry["key"], entry["value"], entry["source"]) for entry in entries]
    return Config((table("configuration", ("key", "value", "from"), rows),), {"entries": entries})


def lock(operation: str, kernel: str) -> None:
    """Always runs `operation` (or every operation of an alias) with `kernel`; a call that it cannot run raises an error."""
    _native.lock(operation, kernel)


def unlock(operation: str) -> None:
    """Removes a lock, whatever its source."""
    _native.unlock(operation)


def prefer(*kernels: str) -> _native.Scope:
    """Prefers kernels or backends inside a `with` block, for calls of this thread."""
    return _native.Scope(prefer=list(kernels))


def disabled() -> _native.Scope:
    """Runs only reference kernels inside a `with` block, for calls of this thread."""
    return _native.Scope(disabled=True)
