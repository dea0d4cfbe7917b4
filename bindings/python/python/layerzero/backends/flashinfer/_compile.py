"""Which module of FlashInfer's a kernel needs for a call, and having it compiled in a process of its own.

Nothing here imports the library into a process that has not; what was compiled lies in the library's own cache, where the next
process finds it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Mapping
from typing import Any

_DTYPES = {"f16": "float16", "bf16": "bfloat16"}
_LOCK = threading.Lock()
#: Modules that are there or being made; the second who wants one waits for the first.
_MADE: dict[str, threading.Event] = {}
_RUNNING: set[Any] = set()


def module_of(kernel: str, call: Mapping[str, str]) -> list[Any]:
    """The module as the name of its generator and the arguments of that."""
    for word in ("norm", "posenc.rope", "sampling", "attention.state.merge"):
        if kernel.startswith(f"flashinfer.{word}"):
            return [{"norm": "norm", "posenc.rope": "rope", "sampling": "sampling", "attention.state.merge": "cascade"}[word]]
    dtype = _DTYPES[call["T"]]
    backend = "fa3" if ".fa3." in kernel else "fa2"
    if ".mla." in kernel:
        return ["mla", backend, dtype, int(call["dim_ckv"]), int(call["dim_kpe"])]
    head_dim = int(call["head_dim"])
    shape = [dtype, head_dim, int(call.get("head_dim_v", head_dim))]
    flags = [int(call.get("window_left", "-1")) >= 0, float(call.get("soft_cap", "0")) > 0]
    if ".cuda_cores." in kernel:
        return ["decode", *shape, *flags]
    if ".single." in kernel:
        return ["single", backend, *shape, *flags]
    if ".sparse.block" in kernel:
        group = int(call["heads"]) // max(int(call["kv_heads"]), 1)
        # So few rows a block are not worth tensor cores to the library.
        if int(call["block_rows"]) * group < 4:
            return ["decode", *shape, *flags]
    return ["prefill", backend, *shape, *flags]


def compile(kernel: str, operation: str, call: Mapping[str, str]) -> list[str]:
    """Has the module of a kernel compiled, unless it is there, and gives its name."""
    wanted = json.dumps(module_of(kernel, call))
    if "flashinfer" in sys.modules:
        from layerzero.backends.flashinfer._build import spec_of

        spec = spec_of(wanted)
        if spec.is_compiled:
            return [spec.name]
    if os.environ.get("FLASHINFER_DISABLE_JIT"):
        raise RuntimeError(f"{wanted} is not compiled, and FLASHINFER_DISABLE_JIT is set")
    with _LOCK:
        made = _MADE.get(wanted)
        mine = made is None
        if made is None:
            made = _MADE[wanted] = threading.Event()
    if not mine:
        made.wait()
        if wanted not in _MADE:
            raise RuntimeError(f"the compilation of {wanted} failed")
        return [wanted]
    try:
        code = f"from layerzero.backends.flashinfer._build import build; build({wanted!r})"
        child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        _RUNNING.add(child)
        try:
            output, errors = child.communicate()
        finally:
            _RUNNING.discard(child)
        if child.returncode != 0:
            lines = errors.decode("utf-8", "replace").strip().splitlines()
            raise RuntimeError(f"compiling {wanted} failed: {' '.join(lines[-3:])[-500:]}")
        return [output.decode().strip().splitlines()[-1]]
    except BaseException:
        with _LOCK:
            del _MADE[wanted]
        raise
    finally:
        made.set()


def stop() -> None:
    """Ends compilations that run, for a process that ends itself."""
    for child in list(_RUNNING):
        child.terminate()
