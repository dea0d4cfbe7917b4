"""Measurements of several machines: comparing and merging databases, and exchanging them through a URL.

An upgrade is checked by comparing the measurements of two environments:

    lz.perfdb.diff("before.sqlite", "after.sqlite", threshold=0.05)

Machines publish their measurements, signed, and use those that were merged:

    lz.perfdb.push("s3://bucket/machine-1.sqlite", key="fleet.key")       # on each machine
    lz.perfdb.merge("all.sqlite", "machine-1.sqlite", "machine-2.sqlite")  # in one place
    lz.perfdb.pull("s3://bucket/all.sqlite", keys=["d75a98…07511a"])        # on each machine
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from layerzero import _native
from layerzero._control import config
from layerzero._report import Report, table

FilePath = str | os.PathLike[str]

# The limit of a database file, as for local ones.
_MAX_BYTES = 1 << 30
_SIGNATURE_BYTES = 64


def diff(
    before: FilePath,
    after: FilePath,
    *,
    threshold: float = 0.05,
    deviations: float = 3.0,
    fail_on: Literal["regression", "change"] = "regression",
) -> Report:
    """Compares the measurements of two environments: which calls got slower or faster, and which kernel is the fastest now.

    Each side is a database file, or the part of one that was measured with certain versions:
    ``perfdb.sqlite@torch=2.14,driver=580.1`` (fields: device, driver, toolkit, torch, layerzero). A difference counts if it exceeds
    `threshold` (0.05 for 5 percent) and `deviations` standard errors. ``passed`` in the result is false if the fastest kernel of a
    call is slower than the fastest one before, or, with ``fail_on="change"``, if a decision or the time of any kernel changed.
    Raises `ValueError` if no call was measured on both sides.
    """
    data: dict[str, Any] = json.loads(_native.perfdb_diff(os.fspath(before), os.fspath(after), threshold, deviations))
    if not data["compared"]:
        raise ValueError(
            f"nothing to compare: no call was measured both in {os.fspath(before)} ({data['only_before']} calls) "
            f"and in {os.fspath(after)} ({data['only_after']} calls) on the same device"
        )
    data["threshold"] = threshold
    data["passed"] = not data["slower"] if fail_on == "regression" else not data["calls"]
    rows = []
    for call in data["calls"]:
        for kernel in call["kernels"]:
            old, new = kernel["before"], kernel["after"]
            marks = [name for name in ("before", "after") if call[name] == kernel["kernel"]]
            rows.append(
                (
                    call["operation"],
                    call["shape"] or call["bucket"],
                    call["dtypes"],
                    kernel["kernel"],
                    old and round(old["median_ns"] / 1e3, 3),
                    new and round(new["median_ns"] / 1e3, 3),
                    kernel["ratio"] and round(kernel["ratio"], 3),
                    "" if kernel["change"] == "none" else kernel["change"],
                    old and old["samples"],
                    new and new["samples"],
                    "fastest " + " and ".join(marks) if marks else "",
                )
            )
    columns = (
        "operation", "sizes", "dtypes", "kernel", "before µs", "after µs", "ratio", "change", "samples before", "samples after", "",
    )  # fmt: skip
    title = (
        f"{data['compared']} calls compared: {data['slower']} slower, {data['faster']} faster by more than {threshold:.3g}, "
        f"{data['decisions_changed']} with another fastest kernel"
    )
    versions = [(one["name"], ", ".join(one["before"]), ", ".join(one["after"])) for one in data["versions"]]
    tables = [table(title, columns, rows)]
    if versions:
        tables.append(table("versions", ("name", "before", "after"), versions))
    return Report(tuple(tables), data)


def merge(into: FilePath, *files: FilePath) -> Report:
    """Merges databases of several machines into `into`, which is created or, if it exists, also merged.

    Nothing is lost: statistics of the same kernel in the same environment are combined, everything else is kept. A file that is merged
    again counts once; its later state replaces the earlier one.
    """
    measurements, combined, health = _native.perfdb_merge(into, files)
    data = {"path": os.fspath(into), "measurements": measurements, "combined": combined, "health": health}
    columns = ("measurements", "of several files", "health rows")
    return Report((table(os.fspath(into), columns, [(measurements, combined, health)]),), data)


def keygen(path: FilePath) -> str:
    """Creates a private key in a new file, for `push`, and writes the public key to ``<path>.pub``. Returns the public key, which the
    other machines trust."""
    public = _native.create_signing_key(path)
    Path(f"{os.fspath(path)}.pub").write_text(public + "\n", encoding="utf-8")
    return public


def push(url: str, *, key: FilePath, file: FilePath | None = None) -> Report:
    """Publishes measurements at a URL of fsspec (``s3://…``, ``gs://…``, ``file://…``), and their signature at ``<url>.sig``.

    Publishes `file`, or the measurements of this machine, under the types of their devices instead of their serial numbers. `key` is
    the file of a private key, see `keygen`.
    """
    public = _native.public_signing_key(key)
    content, count = snapshot(file)
    _write(url, content)
    _write(url + ".sig", _native.sign(content, key))
    data = {"url": url, "measurements": count, "bytes": len(content), "key": public}
    return Report((table("published", ("url", "measurements", "bytes", "signed by"), [tuple(data.values())]),), data)


def pull(url: str, *, keys: Sequence[str] = (), to: FilePath | None = None) -> Report:
    """Fetches measurements that were published with `push`, verifies their signature, and uses them from now on, in all processes of
    this machine that start later.

    `keys` are the trusted public keys, or files with one; the default is ``plugins.keys``. A file that none of them signed raises `PermissionError` and is
    not used. The measurements are kept in a file of their own (``perfdb.fleet.sqlite`` next to ``perfdb.path``), which each pull
    replaces; measurements of this machine take precedence. With `to`, they are only written to that file.
    """
    trusted = [_public_key(key) for key in keys] or _trusted_keys()
    try:
        content = _fetch(url, trusted)
    except PermissionError:
        # A publisher may have replaced the file between the two reads.
        content = _fetch(url, trusted)
    target = Path(_native.perfdb_fleet_file() if to is None else to)
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".pull-") as folder:
        fetched = Path(folder) / "fetched.sqlite"
        fetched.write_bytes(content)
        if to is None:
            count: int | None = _native.perfdb_use_fleet(fetched)
        else:
            count = None
            fetched.replace(target)
    data = {"url": url, "path": str(target), "measurements": count, "bytes": len(content)}
    return Report((table("fetched", ("url", "file", "measurements", "bytes"), [tuple(data.values())]),), data)


def snapshot(file: FilePath | None = None) -> tuple[bytes, int]:
    """The measurements of a database, by default of this machine, as one file, and their number. The write-ahead log of a database that
    is in use is a file of its own, so that its bytes alone are not complete."""
    with tempfile.TemporaryDirectory(prefix="layerzero-") as folder:
        path = Path(folder) / "snapshot.sqlite"
        count, _, _ = _native.perfdb_publish(path) if file is None else _native.perfdb_merge(path, [file])
        return path.read_bytes(), count


def _public_key(text: str) -> str:
    return Path(text).read_text(encoding="utf-8").strip() if os.path.isfile(text) else text


def _trusted_keys() -> list[str]:
    text = config()["plugins.keys"].value
    return [key for key in (one.strip(" '\"") for one in text.strip("[]").split(",")) if key]


def _fetch(url: str, keys: Sequence[str]) -> bytes:
    """The content of a URL, if it is signed by one of these keys."""
    content = _read(url, _MAX_BYTES)
    try:
        signature = _read(url + ".sig", _SIGNATURE_BYTES)
    except FileNotFoundError:
        raise PermissionError(f"{url} is not signed: {url}.sig does not exist") from None
    try:
        _native.verify_signature(content, signature, keys)
    except PermissionError as error:
        raise PermissionError(f"{url}: {error}") from None
    return content


def _read(url: str, limit: int) -> bytes:
    with _fsspec().open(url, "rb") as file:
        content: bytes = file.read(limit + 1)
    if len(content) > limit:
        raise ValueError(f"{url} has more than {limit} bytes")
    return content


def _write(url: str, content: bytes) -> None:
    with _fsspec().open(url, "wb") as file:
        file.write(content)


def _fsspec() -> Any:
    try:
        import fsspec
    except ImportError:
        raise ImportError("`push` and `pull` need fsspec: pip install 'layerzero[fleet]'") from None
    return fsspec
