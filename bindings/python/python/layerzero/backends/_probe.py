"""Whether a library can be imported, found out in a process of its own: one that raises, hangs or crashes takes nothing down.

Answers are kept by version, so that each is found out once.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

SECONDS = 20.0


def answers_path() -> Path:
    """Where answers are kept."""
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(cache) / "layerzero" / "probes.json"


def _key(module: str, version: str) -> str:
    return f"{module} {version} {sys.executable} {sys.version_info.major}.{sys.version_info.minor}"


def _answers() -> dict[str, str]:
    try:
        kept = json.loads(answers_path().read_text(encoding="utf-8"))
        return {str(key): str(value) for key, value in kept.items()}
    except (OSError, ValueError, AttributeError):
        return {}


def known(module: str, version: str) -> str | None:
    """What was found out before: empty if it can be imported, else why not; `None` if nobody asked yet."""
    return _answers().get(_key(module, version))


def probe(module: str, version: str, *, again: bool = False, check: str = "") -> str:
    """Empty if the module can be imported and `check`, code that may raise, goes well; else why not."""
    kept = None if again else known(module, version)
    if kept is not None:
        return kept
    answer = _try(module, check) if check else _try(module)
    answers = {**_answers(), _key(module, version): answer}
    path = answers_path()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        beside = path.with_suffix(f".{os.getpid()}")
        beside.write_text(json.dumps(answers, indent=1), encoding="utf-8")
        beside.replace(path)
    except OSError:
        # Nowhere to write: it is found out again next time.
        pass
    return answer


def _try(module: str, check: str = "") -> str:
    code = f"import importlib; importlib.import_module({module!r})\n{check}"
    try:
        done = subprocess.run(
            [sys.executable, "-c", code],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            timeout=SECONDS,
            env={**os.environ, "LAYERZERO_BACKENDS": "none"},
        )
    except subprocess.TimeoutExpired:
        return f"importing {module} takes longer than {SECONDS:g} s"
    except OSError as error:
        return f"no process could be started to import {module}: {error}"
    if done.returncode == 0:
        return ""
    if done.returncode < 0:
        return f"importing {module} ends the process by {signal.Signals(-done.returncode).name}"
    lines = done.stderr.decode("utf-8", "replace").strip().splitlines()
    return f"importing {module} fails: {lines[-1] if lines else f'exit status {done.returncode}'}"
