"""Probes whether a library can be imported, in a separate process: a library that raises, hangs or crashes
does no harm.

Results are cached by version, so that each library is probed once; one that took too long is probed again after
an hour, because the machine may have been busy. The compatibility matrix uses the results too.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

from layerzero import _native

# Importing torch from a cold disk on a busy machine takes more than 20 s.
SECONDS = 60.0
# After this time a library that took too long is probed again.
RETRY_SECONDS = 3600.0


def answers_path() -> Path:
    """The file of cached results."""
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(cache) / "layerzero" / "probes.json"


def _key(module: str, version: str) -> str:
    return f"{module} {version} {sys.executable} {sys.version_info.major}.{sys.version_info.minor}"


def _answers() -> dict[str, dict[str, Any]]:
    try:
        cached = json.loads(_native.read_text_file(answers_path()))
        return {str(key): value for key, value in cached.items() if isinstance(value, dict)}
    except (OSError, ValueError, AttributeError):
        return {}


class ProbeResult(NamedTuple):
    """The result of importing a library."""

    # Empty if it can be imported, else the reason.
    problem: str
    # Major versions of the CUDA runtimes that were loaded in the process.
    cuda: tuple[int, ...] = ()
    # The reason code of the problem.
    code: str = "BACKEND_IMPORT_FAILED"


def known(module: str, version: str) -> ProbeResult | None:
    """The cached result; `None` if the library was not probed yet, or took too long and may be probed again."""
    cached = _answers().get(_key(module, version))
    if cached is None:
        return None
    # Results of older versions have no code and no time.
    code = str(cached.get("code", "BACKEND_IMPORT_FAILED"))
    if code == "BACKEND_TIMEOUT":
        at = cached.get("at")
        if not isinstance(at, (int, float)) or not 0 <= time.time() - at < RETRY_SECONDS:
            return None
    return ProbeResult(str(cached.get("problem", "")), tuple(cached.get("cuda", ())), code)


def probe(module: str, version: str, *, again: bool = False, check: str = "", after: str | None = None) -> ProbeResult:
    """Probes whether the module can be imported (after `after`, if that is given and installed) and whether the code `check` runs without raising."""
    cached = None if again else known(module, version)
    if cached is not None:
        return cached
    found = _try(module, check, after)
    write(answers_path(), {**_answers(), _key(module, version): {**found._asdict(), "at": time.time()}})
    return found


def write(path: Path, what: Any, *, replaces: str | None = None) -> bool:
    """Writes JSON atomically; returns whether it did. A failure to write is no error: the library is probed
    again next time. With `replaces`, an existing file is replaced only if it is JSON with that key, because a
    setting may name any file by mistake.
    """
    try:
        if replaces is not None and path.exists():
            existing = json.loads(_native.read_text_file(path))
            if not isinstance(existing, dict) or replaces not in existing:
                return False
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_suffix(f".{os.getpid()}")
        temporary.write_text(json.dumps(what, indent=1), encoding="utf-8")
        temporary.replace(path)
    except (OSError, ValueError):
        return False
    return True


_CODE = """
import importlib, importlib.util, json, re, sys
after = {after!r}
if after and importlib.util.find_spec(after):
    importlib.import_module(after)
importlib.import_module({module!r})
{check}
try:
    with open("/proc/self/maps") as file:
        cuda = sorted({{int(one) for one in re.findall(r"/libcudart[^/]*?[.]so[.]([0-9]+)", file.read())}})
except OSError:
    cuda = []
sys.stdout.write("\\n" + json.dumps(cuda))
"""


def _try(module: str, check: str, after: str | None) -> ProbeResult:
    try:
        done = subprocess.run(
            [sys.executable, "-c", _CODE.format(module=module, check=check, after=after)],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=SECONDS,
            env={**os.environ, "LAYERZERO_BACKENDS": "none"},
        )
    except subprocess.TimeoutExpired:
        return ProbeResult(f"importing {module} takes longer than {SECONDS:g} s", code="BACKEND_TIMEOUT")
    except OSError as error:
        return ProbeResult(f"cannot start a process to import {module}: {error}")
    if done.returncode == 0:
        last = done.stdout.decode("utf-8", "replace").rsplit("\n", 1)[-1]
        return ProbeResult("", tuple(json.loads(last)) if last.startswith("[") else ())
    if done.returncode < 0:
        return ProbeResult(f"importing {module} terminates the process with {signal.Signals(-done.returncode).name}")
    lines = done.stderr.decode("utf-8", "replace").strip().splitlines()
    return ProbeResult(f"importing {module} fails: {lines[-1] if lines else f'exit status {done.returncode}'}")
