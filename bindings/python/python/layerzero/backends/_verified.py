"""Which adapters ran with the real library on a device, and whether they have changed since.

A conformance run (`bindings/python/tests/cuda/conform.py`) writes `verified.json`: for each backend and platform the digest of the adapters
that ran. An adapter whose code or descriptor differs from what ran is unverified until it runs again.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

_FOLDER = Path(__file__).parent
RECORDS = _FOLDER / "verified.json"


class Verification(NamedTuple):
    """Whether a recorded run is of the present adapters."""

    is_verified: bool
    # What ran, or why there is no valid record.
    reason: str


def _files(backend: str, platform: str, folder: Path) -> Iterator[Path]:
    """The code and the descriptors of a backend's adapters."""
    module = folder / f"{backend}.py"
    yield from [module] if module.is_file() else sorted((folder / backend).rglob("*.py"))
    for name in (f"{backend}.{platform}.json", f"{backend}.json"):
        if (folder / name).is_file():
            yield folder / name


def digest(backend: str, platform: str = "cuda", folder: Path = _FOLDER) -> str:
    """SHA-256 of the adapters of a backend on a platform: names and contents of their files."""
    found = hashlib.sha256()
    for path in _files(backend, platform, folder):
        content = path.read_bytes().replace(b"\r\n", b"\n")
        found.update(f"{path.relative_to(folder).as_posix()}\0{len(content)}\0".encode())
        found.update(content)
    return found.hexdigest()


def recorded(path: Path = RECORDS) -> dict[str, dict[str, dict[str, Any]]]:
    """The records by backend and platform."""
    records: dict[str, dict[str, dict[str, Any]]] = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    return records


def verification(backend: str, platform: str = "cuda", records: dict[str, dict[str, dict[str, Any]]] | None = None) -> Verification:
    """Compares the record of a backend with its present adapters."""
    record = (recorded() if records is None else records).get(backend, {}).get(platform)
    if record is None:
        return Verification(False, "no recorded run of its adapters")
    ran = f"{record['date']} on {record['device']} with {record['library']}"
    if record["digest"] != digest(backend, platform):
        return Verification(False, f"its adapters have changed since the run of {ran}")
    return Verification(True, f"ran {ran}")
