"""Backends whose kernels are Python functions over somebody else's library: what is there, what works, what does not and why.

A backend is a descriptor (JSON, the contract of `schemas/contracts`) and thin adapters. Nothing is imported with this module;
a library is imported once a kernel of it is called, and only after a process of its own showed that this ends well.
Third parties name a module in the entry-point group ``layerzero.backends``: it has ``DESCRIPTORS``, a list of JSON texts, and
``KERNELS``, a mapping from kernel ids to functions.
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
from layerzero.backends import _probe

GROUP = "layerzero.backends"


class Backend(NamedTuple):
    """A backend of ours: which library it needs, and where its adapters are."""

    name: str
    # The library's import name, the distribution that has it, and the versions that the adapters are written for.
    module: str
    distribution: str
    oldest: tuple[int, ...]
    before: tuple[int, ...]
    # Files beside this one, and on which platforms a run against the real library is checked in.
    descriptors: tuple[str, ...]
    verified: tuple[str, ...]
    # Its kernels take tensors of this library, so that there is nothing for them to do before a program imports it.
    waits: bool = False
    # A module with `compile`, for kernels that say `jit`; it is imported by the first compilation.
    compiler: str | None = None
    # A library whose tensors its kernels take.
    after: str | None = None
    # Code that raises where the library can be imported and cannot work all the same.
    check: str = ""
    # Its kernels are the references of their platform: what `disabled` and degradation use there.
    reference: bool = False


# It swallows that its extension was built for another torch, and only fails once it is called.
_XFORMERS = "import xformers._cpp_lib as lib; error = lib._cpp_library_load_exception\nif error: raise error"

BACKENDS: tuple[Backend, ...] = (
    Backend("torch", "torch", "torch", (2, 5), (3,), ("torch.cpu.json", "torch.cuda.json"), ("cpu", "cuda"), waits=True),
    Backend("torch_reference", "torch", "torch", (2, 5), (3,), ("torch_reference.cuda.json",), ("cuda",), waits=True, reference=True),
    Backend("tokenizers", "tokenizers", "tokenizers", (0, 20), (1,), ("tokenizers.json",), ("cpu",)),
    Backend("tiktoken", "tiktoken", "tiktoken", (0, 7), (1,), ("tiktoken.json",), ("cpu",)),
    Backend("sentencepiece", "sentencepiece", "sentencepiece", (0, 2), (1,), ("sentencepiece.json",), ("cpu",)),
    Backend(
        "flashinfer", "flashinfer", "flashinfer-python", (0, 6), (0, 7), ("flashinfer.cuda.json",), ("cuda",),
        compiler="layerzero.backends.flashinfer._compile", after="torch",
    ),
    Backend("liger", "liger_kernel", "liger-kernel", (0, 8), (0, 9), ("liger.cuda.json",), ("cuda",), compiler="layerzero.backends.liger", after="torch"),
    Backend("triton", "triton", "triton", (3,), (4,), ("triton.cuda.json",), ("cuda",), compiler="layerzero.backends.triton", after="torch"),
    Backend("flash_attn", "flash_attn", "flash-attn", (2, 1), (3,), ("flash_attn.cuda.json",), (), after="torch"),
    Backend("flash_attn_3", "flash_attn_interface", "flash-attn-3", (3,), (4,), ("flash_attn_3.cuda.json",), (), after="torch"),
    Backend("xformers", "xformers", "xformers", (0, 0, 28), (0, 1), ("xformers.cuda.json",), (), after="torch", check=_XFORMERS),
    Backend("apex", "apex", "apex", (0, 1), (1,), ("apex.cuda.json",), (), after="torch"),
    Backend("hf_kernels", "kernels", "kernels", (0, 4), (1,), ("hf_kernels.cuda.json",), (), after="torch"),
)


class State(NamedTuple):
    """How a backend is, and what can be done about it."""

    name: str
    state: str  # ok, waiting, absent, problem
    version: str | None
    reason: str | None
    fix: str | None
    # Platforms whose adapters have a checked-in run against the real library.
    verified: tuple[str, ...]
    kernels: tuple[str, ...]


_STATES: dict[str, State] = {}
# Whether a forked child starts the threads of the background compilation anew.
_restarts_after_fork = False


def states() -> list[State]:
    """What is known of every backend."""
    return [_STATES[name] for name in sorted(_STATES)]


def load(*names: str, probe_again: bool = False) -> list[State]:
    """Registers the kernels of backends that are installed: of those that are named, or of all, third parties' included.

    One that cannot be used is disabled with its reason; nothing is raised for it.
    """
    if os.environ.get("LAYERZERO_BACKENDS") == "none":
        return []
    for backend in BACKENDS:
        if not names or backend.name in names:
            _load_ours(backend, probe_again)
    if not names or not set(names) <= {backend.name for backend in BACKENDS}:
        _load_entry_points(names, probe_again)
    _keep_matrix()
    return states()


def load_imported() -> None:
    """Registers what needs no import: backends whose library the program brought itself."""
    for backend in BACKENDS:
        if backend.module in sys.modules and os.environ.get("LAYERZERO_BACKENDS") != "none":
            _load_ours(backend, False)


def _load_ours(backend: Backend, probe_again: bool) -> None:
    known = _STATES.get(backend.name)
    if known is not None and known.state == "ok" and not probe_again:
        return
    version = _version(backend.distribution)
    if version is None or not _exists(backend.module):
        _note(backend, "absent", None, "it is not installed", f"pip install {backend.distribution}")
        return
    if not backend.oldest <= _numbers(version) < backend.before:
        wanted = f">={_dotted(backend.oldest)},<{_dotted(backend.before)}"
        reason = f"version {version} is not one that the adapters are written for ({wanted})"
        _disable(backend, version, reason, f"pip install '{backend.distribution}{wanted}'", "BACKEND_VERSION_UNSUPPORTED")
        return
    if _disable_in_conflict(backend, version, ()):
        return
    if backend.module not in sys.modules or backend.check:
        found = _probe.probe(backend.module, version, again=probe_again, check=backend.check, after=backend.after)
        if found.problem:
            _disable(backend, version, found.problem, _repair(backend.distribution))
            return
        if _disable_in_conflict(backend, version, found.cuda):
            return
    if backend.waits and backend.module not in sys.modules:
        reason = f"its kernels come with import {backend.module}"
        _STATES[backend.name] = State(backend.name, "waiting", version, reason, None, backend.verified, ())
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
    except Exception as error:
        _native.unregister_backend(backend.name)
        _disable(backend, version, _first_lines(error), _repair(backend.distribution))
        return
    _STATES[backend.name] = State(
        backend.name, "ok", version, None, None, backend.verified, tuple(sorted({id for id, _ in registered}))
    )


def cuda_of(version: str) -> int | None:
    """The major version of CUDA that a distribution was built for, where its version says so: `2.8.3+cu12torch2.9` → 12."""
    import re

    found = re.search(r"\+.*?cu(?:da)?(\d{2})", version)
    return int(found[1]) if found else None


def _cuda_conflict(version: str, probed: tuple[int, ...] = ()) -> str:
    """Empty, or why a build cannot live in one process with torch: a CUDA runtime comes with each, and majors do not mix.

    What a build says of itself counts, and what was seen in the process that imported it.
    """
    theirs, ours = cuda_of(version), _cuda_of_torch()
    if theirs is not None and ours is not None and theirs != ours:
        return f"it is built for CUDA {theirs}, and torch in the same process for CUDA {ours}"
    if len(probed) > 1:
        return f"importing it brings CUDA {' and '.join(map(str, probed))} into one process"
    return ""


def _disable_in_conflict(backend: Backend, version: str, probed: tuple[int, ...]) -> bool:
    """Whether the backend stays off because of torch's CUDA; the operator may want it all the same."""
    conflict = _cuda_conflict(version, probed)
    if not conflict or not (_is_set("check_at_load") and _is_set("fail_on_incompatible")):
        return False
    _disable(backend, version, conflict, f"install a build of {backend.distribution} for the CUDA of torch", "BACKEND_ABI_MISMATCH")
    return True


def _cuda_of_torch() -> int | None:
    version = _version("torch")
    said = cuda_of(version) if version else None
    if said is None and "torch" in sys.modules:
        known = getattr(sys.modules["torch"], "version", None)
        text = getattr(known, "cuda", None)
        said = int(text.split(".")[0]) if text else None
    return said


def _settings() -> dict[str, str]:
    prefix = "backend_compatibility."
    return {key.removeprefix(prefix): value for key, value, _ in _native.config() if key.startswith(prefix)}


def _is_set(name: str) -> bool:
    return _settings().get(name) != "false"


def matrix() -> list[dict[str, Any]]:
    """Which backends can live together in this process: what each is built for and written for, and what is in the way."""
    rows = []
    for backend in BACKENDS:
        version = _version(backend.distribution)
        known = _STATES.get(backend.name)
        probed = _probe.known(backend.module, version) if version else None
        said = cuda_of(version) if version else None
        rows.append(
            {
                "backend": backend.name,
                "distribution": backend.distribution,
                "written_for": f">={_dotted(backend.oldest)},<{_dotted(backend.before)}",
                "version": version,
                # What the build says, else what was seen in the process that imported it.
                "cuda": [said] if said is not None else list(probed.cuda) if probed else [],
                "conflict": _cuda_conflict(version, probed.cuda if probed else ()) or None if version else None,
                "state": known.state if known else "absent" if version is None else "not asked for",
                "reason": known.reason if known else None,
                "verified": list(backend.verified),
            }
        )
    return rows


def _keep_matrix() -> None:
    """Writes the matrix where the operator wants it, for whoever looks after the machine."""
    path = _settings().get("matrix_path", "").strip('"')
    if path:
        about = {"python": sys.version.split()[0], "executable": sys.executable, "torch": _version("torch"), "cuda": _cuda_of_torch()}
        file = Path(path).expanduser()
        if not _probe.write(file, {**about, "backends": matrix()}, replaces="backends") and file.exists():
            warnings.warn(
                f"backend_compatibility.matrix_path: {file} is not a matrix of compatibility, or cannot be written, and is left as it is",
                RuntimeWarning,
                stacklevel=2,
            )


def _functions(backend: Backend, ids: list[str]) -> dict[str, Callable[..., Any]]:
    """The kernels by id. Where the library is not imported yet, it is by the first call."""
    module = f"layerzero.backends.{backend.name}"
    if backend.module in sys.modules and (backend.after is None or backend.after in sys.modules):
        kernels: dict[str, Callable[..., Any]] = import_module(module).KERNELS
        return kernels
    return {id: Later(module, id) for id in ids}


def _compiler(module: str) -> Callable[[str, str, Mapping[str, str]], list[str]]:
    """What compiles, once it is wanted. A process that ends does not wait for it."""
    global _restarts_after_fork
    atexit.unregister(_stop_compiling)
    atexit.register(_stop_compiling)
    if not _restarts_after_fork:
        os.register_at_fork(after_in_child=_native.restart_compiling_after_fork)
        _restarts_after_fork = True

    def compile(kernel: str, operation: str, call: Mapping[str, str]) -> list[str]:
        made: list[str] = import_module(module).compile(kernel, operation, call)
        return made

    return compile


def _stop_compiling() -> None:
    for backend in BACKENDS:
        module = sys.modules.get(backend.compiler or "")
        if module is not None and hasattr(module, "stop"):
            module.stop()
    _native.stop_compiling()


class Later:
    """A kernel whose library is imported by its first call. Calls of the engine find the function once and go to it directly."""

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
    """What went wrong, short enough for a line of a table."""
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
        ours = Backend(entry.name, entry.module, distribution, (), (), (), ())
        if _is_reserved(entry.name):
            # Under a name of its own: what is said of it must not be said of ours.
            shown = f"{entry.name} ({distribution})"
            reason = f"the entry point {entry.name!r} has the name of a backend of LayerZero, which a package cannot take"
            _note(ours._replace(name=shown), "problem", version, reason, f"rename it, or pip uninstall {distribution}")
            continue
        reason = "" if entry.module in sys.modules else _probe.probe(entry.module, version, again=probe_again).problem
        if reason:
            _disable(ours, version, reason, _repair(distribution))
            continue
        try:
            loaded: Any = entry.load()
            kernels: Mapping[str, Callable[..., Any]] = dict(loaded.KERNELS)
            registered = []
            for text in loaded.DESCRIPTORS:
                registered += _native.register_descriptor(f"{entry.name} ({distribution})", text, dict(kernels), entry_point=entry.name)
        except Exception as error:
            _native.unregister_backend(entry.name)
            _disable(ours, version, _first_lines(error), _repair(distribution))
            continue
        verified = tuple(getattr(loaded, "VERIFIED", ()))
        ids = tuple(sorted({id for id, _ in registered}))
        _STATES[entry.name] = State(entry.name, "ok", version, None, None, verified, ids)


def _is_reserved(name: str) -> bool:
    return name.strip().lower() in _native.BUILT_IN_BACKENDS


def _disable(backend: Backend, version: str | None, reason: str, fix: str, code: str = "BACKEND_IMPORT_FAILED") -> None:
    _note(backend, "problem", version, reason, fix)
    _native.disable_backend(backend.name, f"{reason}; to mend it: {fix}", code)


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
