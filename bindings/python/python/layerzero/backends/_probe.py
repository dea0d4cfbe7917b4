"""Whether a library can be imported, found out in a process of its own: one that raises, hangs or crashes takes nothing down.

Answers are kept by version, so that each is found out once. They are also what the matrix of compatibility is made of.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

from layerzero import _native

SECONDS = 20.0


def answers_path() -> Path:
    """Where answers are kept."""
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(cache) / "layerzero" / "probes.json"


def _key(module: str, version: str) -> str:
    return f"{module} {version} {sys.executable} {sys.version_info.major}.{sys.version_info.minor}"


def _answers() -> dict[str, dict[str, Any]]:
    try:
        kept = json.loads(_native.read_text_file(answers_path()))
        return {str(key): value for key, value in kept.items() if isinstance(value, dict)}
    except (OSError, ValueError, AttributeError):
        return {}


class Found(NamedTuple):
    """What importing a library showed."""

    # Empty if it can be imported, else why not.
    problem: str
    # Major versions of the CUDA runtimes that were in the process then.
    cuda: tuple[int, ...] = ()


def known(module: str, version: str) -> Found | None:
    """What was found out before; `None` if nobody asked yet."""
    kept = _answers().get(_key(module, version))
    return None if kept is None else Found(str(kept.get("problem", "")), tuple(kept.get("cuda", ())))


def probe(module: str, version: str, *, again: bool = False, check: str = "", after: str | None = None) -> Found:
    """Whether the module can be imported, after another one if so said and that is there, and `check`, code that may raise, goes well."""
    kept = None if again else known(module, version)
    if kept is not None:
        return kept
    found = _try(module, check, after)
    write(answers_path(), {**_answers(), _key(module, version): found._asdict()})
    return found


def write(path: Path, what: Any, *, replaces: str | None = None) -> bool:
    """Writes JSON so that nobody reads half of it; says whether it did. Nowhere to write is no failure: it is found out again
    next time. With `replaces` a file that is there is replaced only if it is JSON with that key: a setting may name any file
    by mistake.
    """
    try:
        if replaces is not None and path.exists():
            there = json.loads(_native.read_text_file(path))
            if not isinstance(there, dict) or replaces not in there:
                return False
        path.parent.mkdir(parents=True, exist_ok=True)
        beside = path.with_suffix(f".{os.getpid()}")
        beside.write_text(json.dumps(what, indent=1), encoding="utf-8")
        beside.replace(path)
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


def _try(module: str, check: str, after: str | None) -> Found:
    try:
        done = subprocess.run(
            [sys.executable, "-c", _CODE.format(module=module, check=check, after=after)],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=SECONDS,
            env={**os.environ, "LAYERZERO_BACKENDS": "none"},
        )
    except subprocess.TimeoutExpired:
        return Found(f"importing {module} takes longer than {SECONDS:g} s")
    except OSError as error:
        return Found(f"no process could be started to import {module}: {error}")
    if done.returncode == 0:
        told = done.stdout.decode("utf-8", "replace").rsplit("\n", 1)[-1]
        return Found("", tuple(json.loads(told)) if told.startswith("[") else ())
    if done.returncode < 0:
        return Found(f"importing {module} ends the process by {signal.Signals(-done.returncode).name}")
    lines = done.stderr.decode("utf-8", "replace").strip().splitlines()
    return Found(f"importing {module} fails: {lines[-1] if lines else f'exit status {done.returncode}'}")
