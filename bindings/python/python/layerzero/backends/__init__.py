"""Backends whose kernels are Python functions over third-party libraries: which are installed, which work,
and why not.

A backend is a descriptor (JSON, the contract of `schemas/contracts`) and thin adapters. Importing this module
imports no library; a library is imported on the first call of one of its kernels, and only after a probe in a
separate process has imported it successfully. Third parties name a module in the entry-point group
``layerzero.backends``: it has ``DESCRIPTORS``, a list of JSON texts, and ``KERNELS``, a mapping from kernel
ids to functions.
"""

from __future__ import annotations

import atexit
import json
import os
import sys
import warnings
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

from layerzero import _native
from layerzero.backends import _probe, _verified

GROUP = "layerzero.backends"


class Backend(NamedTuple):
    """A built-in backend: the library it needs, and its adapters."""

    name: str
    # The library's import name, its distribution, and the versions that the adapters support.
    module: str
    distribution: str
    oldest: tuple[int, ...]
    before: tuple[int, ...]
    # Descriptor files next to this one, and the platforms on which the tests run its kernels with the real library.
    descriptors: tuple[str, ...]
    tested: tuple[str, ...] = ()
    # Its kernels take this library's tensors, so they are registered only once the program imports it.
    waits: bool = False
    # A module with `compile`, for kernels marked `jit`; imported by the first compilation.
    compiler: str | None = None
    # A library whose tensors its kernels take; imported before this one.
    after: str | None = None
    # Code that raises if the library can be imported but does not work.
    check: str = ""
    # Its kernels are the reference kernels of their platform: those that `disabled` and degraded health select.
    reference: bool = False
    # Platforms besides those of the descriptors on which the same functions run, because they only call torch. Registered
    # where torch has such a device.
    portable: tuple[str, ...] = ()


# xFormers ignores that its extension was built for another torch, and fails only when it is called.
_XFORMERS = "import xformers._cpp_lib as lib; error = lib._cpp_library_load_exception\nif error: raise error"

BACKENDS: tuple[Backend, ...] = (
    Backend("torch", "torch", "torch", (2, 5), (3,), ("torch.cpu.json", "torch.cuda.json"), ("cpu",), waits=True),
    Backend("torch_reference", "torch", "torch", (2, 5), (3,), ("torch_reference.cuda.json",), waits=True, reference=True, portable=("rocm", "xpu", "metal")),
    Backend("tokenizers", "tokenizers", "tokenizers", (0, 20), (1,), ("tokenizers.json",), ("cpu",)),
    Backend("tiktoken", "tiktoken", "tiktoken", (0, 7), (1,), ("tiktoken.json",), ("cpu",)),
    Backend("sentencepiece", "sentencepiece", "sentencepiece", (0, 2), (1,), ("sentencepiece.json",), ("cpu",)),
    Backend(
        "flashinfer", "flashinfer", "flashinfer-python", (0, 6), (0, 7), ("flashinfer.cuda.json",),
        compiler="layerzero.backends.flashinfer._compile", after="torch",
    ),
    Backend("liger", "liger_kernel", "liger-kernel", (0, 8), (0, 9), ("liger.cuda.json",), compiler="layerzero.backends.liger", after="torch"),
    Backend("triton", "triton", "triton", (3,), (4,), ("triton.cuda.json",), compiler="layerzero.backends.triton", after="torch"),
    Backend("flash_attn", "flash_attn", "flash-attn", (2, 1), (3,), ("flash_attn.cuda.json",), after="torch"),
    Backend("flash_attn_3", "flash_attn_interface", "flash-attn-3", (3,), (4,), ("flash_attn_3.cuda.json",), after="torch"),
    Backend("xformers", "xformers", "xformers", (0, 0, 28), (0, 1), ("xformers.cuda.json",), after="torch", check=_XFORMERS),
    Backend("apex", "apex", "apex", (0, 1), (1,), ("apex.cuda.json",), after="torch"),
    Backend("hf_kernels", "kernels", "kernels", (0, 4), (1,), ("hf_kernels.cuda.json",), after="torch"),
)


def _verified_platforms(backend: Backend) -> tuple[str, ...]:
    """The platforms on which the tests, or a recorded run of the present adapters, used the real library."""
    on_gpu = any(name.endswith(".cuda.json") for name in backend.descriptors) and _verified.verification(backend.name).is_verified
    return (*backend.tested, "cuda") if on_gpu else backend.tested


class State(NamedTuple):
    """The state of a backend, and how to fix a problem."""

    name: str
    state: str  # ok, waiting, absent, problem
    version: str | None
    reason: str | None
    fix: str | None
    # Platforms for which a run of the present adapters with the real library is recorded.
    verified: tuple[str, ...]
    kernels: tuple[str, ...]


_STATES: dict[str, State] = {}
# Whether forked children restart the threads of background compilation.
_restarts_after_fork = False


def states() -> list[State]:
    """The known states of all backends."""
    return [_STATES[name] for name in sorted(_STATES)]


def described(*, installed: bool) -> list[dict[str, Any]]:
    """Descriptors of built-in backends that are not loaded, for questions about selection: those that are not installed
    and, with `installed`, those that are."""
    is_disabled = os.environ.get("LAYERZERO_BACKENDS") == "none"
    if is_disabled and not installed:
        return []
    found = []
    for backend in BACKENDS:
        known = _STATES.get(backend.name)
        if known is not None and known.state in ("ok", "problem"):
            continue
        is_installed = _version(backend.distribution) is not None and _exists(backend.module)
        if is_installed and not installed:
            continue
        code, missing = "NOT_INSTALLED", None
        if not is_installed:
            missing = f"{backend.name} is not installed: pip install {backend.distribution}"
        elif is_disabled:
            code, missing = "BACKEND_DISABLED", f"LAYERZERO_BACKENDS=none disables {backend.name}"
        for name in backend.descriptors:
            text = (Path(__file__).parent / name).read_text(encoding="utf-8")
            found.append({"path": name, "text": text, "reference": backend.reference, "missing": missing, "code": code})
    return found


def load(*names: str, probe_again: bool = False) -> list[State]:
    """Registers the kernels of installed backends: of those named, or of all, including third-party ones.

    A backend that cannot be used is disabled with a reason; nothing is raised.
    """
    if os.environ.get("LAYERZERO_BACKENDS") == "none":
        return []
    for backend in BACKENDS:
        if not names or backend.name in names:
            _load_built_in(backend, probe_again)
    if not names or not set(names) <= {backend.name for backend in BACKENDS}:
        _load_entry_points(names, probe_again)
    _write_matrix()
    return states()


def load_imported() -> None:
    """Registers backends whose library the program has already imported."""
    for backend in BACKENDS:
        if backend.module in sys.modules and os.environ.get("LAYERZERO_BACKENDS") != "none":
            _load_built_in(backend, False)


def _load_built_in(backend: Backend, probe_again: bool) -> None:
    known = _STATES.get(backend.name)
    if known is not None and known.state == "ok" and not probe_again:
        return
    version = _version(backend.distribution)
    if version is None or not _exists(backend.module):
        _note(backend, "absent", None, "not installed [NOT_INSTALLED]", f"pip install {backend.distribution}")
        return
    if not backend.oldest <= _numbers(version) < backend.before:
        supported = f">={_dotted(backend.oldest)},<{_dotted(backend.before)}"
        reason = f"version {version} is not supported by the adapters ({supported})"
        _disable(backend, version, reason, f"pip install '{backend.distribution}{supported}'", "BACKEND_VERSION_UNSUPPORTED")
        return
    if _disable_in_conflict(backend, version, ()):
        return
    if backend.module not in sys.modules or backend.check:
        found = _probe.probe(backend.module, version, again=probe_again, check=backend.check, after=backend.after)
        if found.problem:
            _disable(backend, version, found.problem, _repair(backend.distribution), found.code)
            return
        if _disable_in_conflict(backend, version, found.cuda):
            return
    if backend.waits and backend.module not in sys.modules:
        reason = f"its kernels are registered when the program imports {backend.module}"
        _STATES[backend.name] = State(backend.name, "waiting", version, reason, None, _verified_platforms(backend), ())
        return
    folder = Path(__file__).parent
    try:
        registered = []
        for name in backend.descriptors:
            description = json.loads((folder / name).read_text(encoding="utf-8"))
            description["backend_version"] = version
            ids = [kernel["kernel_id"] for kernels in description["ops"].values() for kernel in kernels]
            functions = _functions(backend, ids)
            compiler = None if backend.compiler is None else _compiler(backend.compiler)
            text = json.dumps(description, indent=1)
            registered += _native.register_descriptor(name, text, functions, compiler, reference=backend.reference)
            for platform in backend.portable:
                if _torch_has(platform):
                    registered += _register_on(platform, name, description, functions, reference=backend.reference)
    except Exception as error:
        _native.unregister_backend(backend.name)
        _disable(backend, version, _first_lines(error), _repair(backend.distribution), "BACKEND_ERROR")
        return
    _STATES[backend.name] = State(
        backend.name, "ok", version, None, None, _verified_platforms(backend), tuple(sorted({id for id, _ in registered}))
    )


def _torch_has(platform: str) -> bool:
    """Whether the imported torch has a device of a platform. Starts no driver."""
    torch = sys.modules.get("torch")
    if torch is None:
        return False
    if platform == "rocm":
        return getattr(torch.version, "hip", None) is not None
    module = {"xpu": "torch.xpu", "metal": "torch.backends.mps"}[platform]
    try:
        return bool(import_module(module).is_available())
    except Exception:  # a torch without the module, or whose driver cannot be loaded
        return False


#: Compositions that compute in f64, which Apple GPUs do not have.
_NEEDS_F64 = frozenset(
    {
        "attention.linear.prefill", "dequantize", "embedding.lookup.quantized", "mlp.linear.fp4", "mlp.linear.int8", "moe.experts.quantized", "moe.route",
        "quantize",
        "sampling.minp", "sampling.speculative", "sampling.topk", "sampling.topp", "ssm.scan",
    }
)  # fmt: skip
#: Optional inputs for which attention is computed in f64.
_SCORE_MOD = ("score_mod", "score_params")


def _for_platform(platform: str, description: Mapping[str, Any]) -> dict[str, Any]:
    """The descriptor of the same functions on another platform of torch, under ids with its name."""

    def portable(operation: str, kernel: Mapping[str, Any]) -> dict[str, Any]:
        kept = {key: value for key, value in kernel.items() if key not in ("min_sm", "max_sm", "is_cuda_graph_safe")}
        if platform == "metal" and "optional_inputs" in kept:
            kept["optional_inputs"] = [name for name in kept["optional_inputs"] if name not in _SCORE_MOD]
        return {**kept, "kernel_id": f"torch.reference.{platform}.{operation}"}

    usable = (operation for operation in description["ops"] if platform != "metal" or operation not in _NEEDS_F64)
    ops = {operation: [portable(operation, kernel) for kernel in description["ops"][operation]] for operation in usable}
    return {**description, "platform": platform, "ops": ops}


def _register_on(
    platform: str, path: str, description: Mapping[str, Any], functions: Mapping[str, Callable[..., Any]], *, reference: bool
) -> list[tuple[str, str]]:
    """Registers the compositions for another platform of torch."""
    other = _for_platform(platform, description)
    by_id = {f"torch.reference.{platform}.{operation}": functions[f"torch.reference.{operation}"] for operation in other["ops"]}
    return list(_native.register_descriptor(path, json.dumps(other, indent=1), by_id, None, reference=reference))


def cuda_of(version: str) -> int | None:
    """The major CUDA version that a distribution was built for, if its version states it: `2.8.3+cu12torch2.9` → 12."""
    import re

    found = re.search(r"\+.*?cu(?:da)?(\d{2})", version)
    return int(found[1]) if found else None


def _cuda_conflict(version: str, probed: tuple[int, ...] = ()) -> str:
    """Empty, or why a build cannot be in one process with torch: each brings a CUDA runtime, and major
    versions do not mix.

    Checks the version that the build states, and the runtimes seen in the process that probed it.
    """
    theirs, ours = cuda_of(version), _cuda_of_torch()
    if theirs is not None and ours is not None and theirs != ours:
        return f"it is built for CUDA {theirs}, but torch for CUDA {ours}: they cannot be in one process"
    if len(probed) > 1:
        return f"importing it loads CUDA {' and '.join(map(str, probed))} into one process"
    return ""


def _disable_in_conflict(backend: Backend, version: str, probed: tuple[int, ...]) -> bool:
    """Disables the backend if its CUDA conflicts with torch's and the settings check for it; returns whether it did."""
    conflict = _cuda_conflict(version, probed)
    if not conflict or not (_is_set("check_at_load") and _is_set("fail_on_incompatible")):
        return False
    # Two runtimes in one process are an ABI conflict; before that, the version that the build states decides.
    code = "BACKEND_ABI_MISMATCH" if len(probed) > 1 else "RUNTIME_VERSION_UNSUPPORTED"
    _disable(backend, version, conflict, f"install a build of {backend.distribution} for the CUDA of torch", code)
    return True


def _cuda_of_torch() -> int | None:
    version = _version("torch")
    stated = cuda_of(version) if version else None
    if stated is None and "torch" in sys.modules:
        known = getattr(sys.modules["torch"], "version", None)
        text = getattr(known, "cuda", None)
        stated = int(text.split(".")[0]) if text else None
    return stated


def _settings() -> dict[str, str]:
    prefix = "backend_compatibility."
    return {key.removeprefix(prefix): value for key, value, _ in _native.config() if key.startswith(prefix)}


def _is_set(name: str) -> bool:
    return _settings().get(name) != "false"


def matrix() -> list[dict[str, Any]]:
    """The compatibility matrix: which backends can be in this process, what each is built and written for, and conflicts."""
    rows = []
    for backend in BACKENDS:
        version = _version(backend.distribution)
        known = _STATES.get(backend.name)
        probed = _probe.known(backend.module, version) if version else None
        stated = cuda_of(version) if version else None
        rows.append(
            {
                "backend": backend.name,
                "distribution": backend.distribution,
                "written_for": f">={_dotted(backend.oldest)},<{_dotted(backend.before)}",
                "version": version,
                # What the build states, else what was seen in the process that probed it.
                "cuda": [stated] if stated is not None else list(probed.cuda) if probed else [],
                "conflict": _cuda_conflict(version, probed.cuda if probed else ()) or None if version else None,
                "state": known.state if known else "absent" if version is None else "not loaded",
                "reason": known.reason if known else None,
                "verified": list(_verified_platforms(backend)),
            }
        )
    return rows


def _write_matrix() -> None:
    """Writes the compatibility matrix to `backend_compatibility.matrix_path`."""
    path = _settings().get("matrix_path", "").strip('"')
    if path:
        about = {"python": sys.version.split()[0], "executable": sys.executable, "torch": _version("torch"), "cuda": _cuda_of_torch()}
        file = Path(path).expanduser()
        if not _probe.write(file, {**about, "backends": matrix()}, replaces="backends") and file.exists():
            warnings.warn(
                f"backend_compatibility.matrix_path: {file} was not written: it exists and is not a compatibility matrix, or is not writable",
                RuntimeWarning,
                stacklevel=2,
            )


def _functions(backend: Backend, ids: list[str]) -> dict[str, Callable[..., Any]]:
    """The kernels by id. If the library is not imported yet, the first call imports it."""
    module = f"layerzero.backends.{backend.name}"
    if backend.module in sys.modules and (backend.after is None or backend.after in sys.modules):
        kernels: dict[str, Callable[..., Any]] = import_module(module).KERNELS
        return kernels
    return {id: LazyKernel(module, id) for id in ids}


def _compiler(module: str) -> Callable[[str, str, Mapping[str, str]], list[str]]:
    """The compile function, which imports its module on first use. At exit the process does not wait for it."""
    global _restarts_after_fork
    atexit.unregister(_stop_compiling)
    atexit.register(_stop_compiling)
    if not _restarts_after_fork:
        os.register_at_fork(after_in_child=_native.restart_compiling_after_fork)
        _restarts_after_fork = True

    def compile(kernel: str, operation: str, call: Mapping[str, str]) -> list[str]:
        artifacts: list[str] = import_module(module).compile(kernel, operation, call)
        return artifacts

    return compile


def _stop_compiling() -> None:
    for backend in BACKENDS:
        module = sys.modules.get(backend.compiler or "")
        if module is not None and hasattr(module, "stop"):
            module.stop()
    _native.stop_compiling()


class LazyKernel:
    """A kernel whose library is imported by its first call. The engine resolves the function once and calls it directly."""

    __slots__ = ("id", "module")

    def __init__(self, module: str, id: str) -> None:
        self.module, self.id = module, id

    def find_kernel(self) -> Callable[..., Any]:
        """The function itself."""
        found: Callable[..., Any] = import_module(self.module).KERNELS[self.id]
        return found

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        return self.find_kernel()(*arguments, **keywords)


def _first_lines(error: Exception) -> str:
    """An error message, short enough for a table row."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {' '.join(lines[:2])[:300]}"


def _load_entry_points(names: tuple[str, ...], probe_again: bool) -> None:
    from importlib import metadata

    for entry in metadata.entry_points(group=GROUP):
        known = _STATES.get(entry.name)
        if (names and entry.name not in names) or (known is not None and known.state == "ok"):
            continue
        distribution = entry.dist.name if entry.dist is not None else entry.module
        version = entry.dist.version if entry.dist is not None else "0"
        described = Backend(entry.name, entry.module, distribution, (), (), (), ())
        if _is_reserved(entry.name):
            # Noted under another name, because the state of the built-in backend must not change.
            shown = f"{entry.name} ({distribution})"
            reason = f"the entry point {entry.name!r} has the reserved name of a LayerZero backend"
            _note(described._replace(name=shown), "problem", version, reason, f"rename it, or pip uninstall {distribution}")
            continue
        found = _probe.ProbeResult("") if entry.module in sys.modules else _probe.probe(entry.module, version, again=probe_again)
        if found.problem:
            _disable(described, version, found.problem, _repair(distribution), found.code)
            continue
        try:
            loaded: Any = entry.load()
            kernels: Mapping[str, Callable[..., Any]] = dict(loaded.KERNELS)
            registered = []
            for text in loaded.DESCRIPTORS:
                registered += _native.register_descriptor(f"{entry.name} ({distribution})", text, dict(kernels), entry_point=entry.name)
        except Exception as error:
            _native.unregister_backend(entry.name)
            _disable(described, version, _first_lines(error), _repair(distribution), "BACKEND_ERROR")
            continue
        verified = tuple(getattr(loaded, "VERIFIED", ()))
        ids = tuple(sorted({id for id, _ in registered}))
        _STATES[entry.name] = State(entry.name, "ok", version, None, None, verified, ids)


def _is_reserved(name: str) -> bool:
    return name.strip().lower() in _native.BUILT_IN_BACKENDS


def _disable(backend: Backend, version: str | None, reason: str, fix: str, code: str = "BACKEND_IMPORT_FAILED") -> None:
    _note(backend, "problem", version, reason, fix)
    _native.disable_backend(backend.name, f"{reason}; to fix it: {fix}", code)


def _note(backend: Backend, state: str, version: str | None, reason: str, fix: str) -> None:
    _STATES[backend.name] = State(backend.name, state, version, reason, fix, (), ())


def _repair(distribution: str) -> str:
    return f"pip install --force-reinstall {distribution}, then lz doctor --probe; or pip uninstall {distribution}"


def _exists(module: str) -> bool:
    from importlib.util import find_spec

    try:
        return module in sys.modules or find_spec(module) is not None
    except (ImportError, ValueError):
        return False


def _version(distribution: str) -> str | None:
    from importlib import metadata

    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def _numbers(version: str) -> tuple[int, ...]:
    """`2.15.0+cu132` → (2, 15, 0)."""
    parts = []
    for part in version.split("+")[0].split("."):
        digits = ""
        for letter in part:
            if not letter.isdigit():
                break
            digits += letter
        if not digits:
            break
        parts.append(int(digits))
    return tuple(parts)


def _dotted(numbers: tuple[int, ...]) -> str:
    return ".".join(map(str, numbers))
