"""Determines the FlashInfer module that a kernel needs for a call, and compiles it in a separate process.

The library is not imported into this process; compiled modules are in the library's own cache, where later
processes find them.
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
#: Modules that are compiled or being compiled; a second request waits for the first.
_COMPILED: dict[str, threading.Event] = {}
_RUNNING: set[Any] = set()


def module_of(kernel: str, call: Mapping[str, str]) -> list[Any]:
    """The module, as the name of its generator and the generator's arguments."""
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
        # The library does not use tensor cores for so few rows per block.
        if int(call["block_rows"]) * group < 4:
            return ["decode", *shape, *flags]
    return ["prefill", backend, *shape, *flags]


def compile(kernel: str, operation: str, call: Mapping[str, str]) -> list[str]:
    """Compiles the module of a kernel, unless it is compiled already, and returns its name."""
    module = json.dumps(module_of(kernel, call))
    if "flashinfer" in sys.modules:
        from layerzero.backends.flashinfer._build import spec_of

        spec = spec_of(module)
        if spec.is_compiled:
            return [spec.name]
    if os.environ.get("FLASHINFER_DISABLE_JIT"):
        raise RuntimeError(f"the FlashInfer module {module} is not compiled, and FLASHINFER_DISABLE_JIT is set")
    with _LOCK:
        done = _COMPILED.get(module)
        is_first = done is None
        if done is None:
            done = _COMPILED[module] = threading.Event()
    if not is_first:
        done.wait()
        if module not in _COMPILED:
            raise RuntimeError(f"compiling the FlashInfer module {module} failed in another thread")
        return [module]
    try:
        code = f"from layerzero.backends.flashinfer._build import build; build({module!r})"
        child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        _RUNNING.add(child)
        try:
            output, errors = child.communicate()
        finally:
            _RUNNING.discard(child)
        if child.returncode != 0:
            lines = errors.decode("utf-8", "replace").strip().splitlines()
            raise RuntimeError(f"compiling the FlashInfer module {module} failed: {' '.join(lines[-3:])[-500:]}")
        return [output.decode().strip().splitlines()[-1]]
    except BaseException:
        with _LOCK:
            del _COMPILED[module]
        raise
    finally:
        done.set()


def stop() -> None:
    """Terminates running compilations at process exit."""
    for child in list(_RUNNING):
        child.terminate()
