"""What is wanted of selection: settings, locks, and what holds for a `with` block."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from layerzero import _native
from layerzero._report import Report, table

Setting = bool | int | float | str | Sequence[str]


def configure(values: Mapping[str, Setting] | None = None, /, **settings: Setting) -> None:
    """Sets values by their keys, all or none of them: ``lz.configure(deterministic=True)``.

    A key with a dot goes into a mapping: ``lz.configure({"cache.max_size": 100})``. `lz.config()` lists every key.
    """
    _native.configure({**(values or {}), **settings})


def load_config(path: str | os.PathLike[str]) -> None:
    """Reads a policy file (``layerzero.yaml``). A wrong one changes nothing, and the error shows what is wrong where."""
    _native.load_config(os.fspath(path))


class Entry(NamedTuple):
    """A value of the configuration, and where it came from."""

    key: str
    value: str
    source: str


class Config(Report):
    """Every value of the configuration with where it came from."""

    @property
    def entries(self) -> list[Entry]:
        """The values in order."""
        return [Entry(**entry) for entry in self.data["entries"]]

    def __getitem__(self, key: str) -> Entry:
        for entry in self.entries:
            if entry.key == key:
                return entry
        raise KeyError(key)


def config() -> Config:
    """Every value as this thread sees it, and where it came from: the defaults, a file, the environment, a call."""
    entries = [{"key": key, "value": value, "source": source} for key, value, source in _native.config()]
    rows = [(entry["key"], entry["value"], entry["source"]) for entry in entries]
    return Config((table("configuration", ("key", "value", "from"), rows),), {"entries": entries})


def lock(operation: str, kernel: str) -> None:
    """Always runs `operation` (or what an alias stands for) with `kernel`; a call that it cannot run is an error."""
    _native.lock(operation, kernel)


def unlock(operation: str) -> None:
    """Ends a lock, whoever made it."""
    _native.unlock(operation)


def prefer(*kernels: str) -> _native.Scope:
    """Prefers kernels or backends inside of a `with` block, for the calls of this thread."""
    return _native.Scope(prefer=list(kernels))


def disabled() -> _native.Scope:
    """Runs references only inside of a `with` block, for the calls of this thread."""
    return _native.Scope(disabled=True)
