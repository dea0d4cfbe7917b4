"""The native module of the package. Programs use what `layerzero` exports."""

import os
from collections.abc import Callable
from types import ModuleType, TracebackType
from typing import Any, Self, final

from typing_extensions import disjoint_base

__version__: str
BUILT_IN_BACKENDS: list[str]
ops: ModuleType

class LayerZeroError(Exception):
    """Base class of LayerZero's errors; `.reasons` lists the causes."""

    reasons: list[Reason]

class ValidationError(LayerZeroError, ValueError):
    """The arguments of a call are invalid."""

class NoKernelFoundError(LayerZeroError):
    """No kernel can run the call."""

class CudaGraphUnsafeError(LayerZeroError):
    """No kernel is known to be safe inside a CUDA graph capture."""

class KernelExecutionError(LayerZeroError):
    """A kernel ran and failed."""

class ConfigurationError(LayerZeroError, ValueError):
    """A schema, policy or descriptor is invalid."""

@final
class Reason:
    @property
    def code(self) -> str: ...
    @property
    def argument(self) -> str | None: ...
    @property
    def axis(self) -> str | None: ...
    @property
    def required(self) -> str | None: ...
    @property
    def found(self) -> str | None: ...
    @property
    def message(self) -> str: ...

@final
class Tokenizer:
    @staticmethod
    def from_file(path: str | os.PathLike[str], *, whole_texts: bool = False) -> Tokenizer: ...
    @staticmethod
    def from_json(text: str, *, whole_texts: bool = False) -> Tokenizer: ...
    def splitting_special_tokens(self) -> Tokenizer: ...
    @property
    def digest(self) -> str: ...

@disjoint_base
class PlanHandle:
    """One kernel for calls with equal shapes, dtypes and params; made by `lz.ops.<operation>.plan(...)`. `run(...)` takes the same arguments."""

    @property
    def operation(self) -> str: ...
    @property
    def kernel(self) -> str: ...
    def run(self, *arguments: Any, **keywords: Any) -> Any: ...

def tokenizer_of_encoding(name: str) -> Tokenizer: ...
def tokenizer_of_ranks(ranks: list[tuple[bytes, int]], special: list[tuple[str, int]], expression: str) -> Tokenizer: ...
def encoding_names() -> list[str]: ...
def tokenizer_json(tokenizer: Tokenizer) -> bytes: ...
def defined_tokens(tokenizer: Tokenizer, text: str) -> list[int]: ...
def prepare_tokenizer(tokenizer: Tokenizer) -> str | None: ...
def set_validation_rates(initial: float, warmup: float, stable: float) -> None: ...
@final
class Operation:
    @property
    def operation(self) -> str: ...
    @property
    def __name__(self) -> str: ...
    @property
    def __doc__(self) -> str: ...  # type: ignore[override]
    def __call__(self, *arguments: Any, **keywords: Any) -> Any: ...
    def plan(self, *arguments: Any, **keywords: Any) -> PlanHandle: ...

@final
class Explanation:
    def to_dict(self) -> dict[str, Any]: ...

@final
class Scope:
    def __new__(cls, prefer: list[str] = ..., disabled: bool = False, kv_strategy: str | None = None) -> Self: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self, _ty: type[BaseException] | None, _value: BaseException | None, _traceback: TracebackType | None
    ) -> bool: ...

def which(operation_name: str, /, *args: Any, **keywords: Any) -> dict[str, Any]: ...
def explain(operation_name: str, /, *args: Any, **keywords: Any) -> Explanation: ...
def list_operations() -> list[str]: ...
def state() -> str: ...
def kernels(operation_name: str | None = None, backend: str | None = None) -> list[dict[str, Any]]: ...
def operations_without_kernel(platform: str) -> list[str]: ...
def backends() -> list[dict[str, Any]]: ...
def circuits() -> list[dict[str, Any]]: ...
def reset_kernel(name: str | None = None) -> int: ...
def check_result(name: str, result: Any, target: Any) -> None: ...
def register_kernel(function: Callable[..., Any], description: dict[str, Any]) -> None: ...
def unregister_backend(backend: str) -> None: ...
def register_descriptor(
    path: str,
    text: str,
    functions: dict[str, Callable[..., Any]],
    compile: Callable[[str, str, dict[str, str]], list[str]] | None = None,
    entry_point: str | None = None,
    reference: bool = False,
) -> list[tuple[str, str]]: ...
def stop_compiling() -> None: ...
def restart_compiling_after_fork() -> None: ...
def wait_for_compilations(seconds: float) -> bool: ...
def compilations() -> str | None: ...
def compile_cold(
    calls: list[tuple[str, tuple[Any, ...], dict[str, Any]]],
    workers: int,
    on_progress: Callable[[int, int, str | None], object] | None = None,
) -> tuple[list[tuple[str, list[str]]], int, list[tuple[str, str]]]: ...
def mark_warm(
    kernel: str, operation_name: str, arguments: tuple[Any, ...], keywords: dict[str, Any]
) -> None: ...
def mark_captured(
    kernel: str, operation_name: str, arguments: tuple[Any, ...], keywords: dict[str, Any]
) -> None: ...
def explain_on(
    preset: str, operation_name: str, arguments: tuple[Any, ...], keywords: dict[str, Any]
) -> str: ...
def disable_backend(backend: str, message: str, code: str = ...) -> None: ...
def kernel_signature(operation_name: str) -> tuple[list[str], list[str], bool]: ...
def dtype_variables(operation_name: str) -> list[str]: ...
def read_operation(path: str, yaml: str) -> Operation: ...
def read_text_file(path: str | os.PathLike[str]) -> str: ...
def operation_template(name: str) -> str: ...
def configure(values: dict[str, Any]) -> None: ...
def load_config(path: str | os.PathLike[str]) -> None: ...
def config() -> list[tuple[str, str, str]]: ...
def lock(operation: str, kernel: str) -> None: ...
def unlock(operation: str) -> None: ...
def tune(
    operation_name: str,
    arguments: tuple[Any, ...],
    keywords: dict[str, Any],
    samples: int,
    on_progress: Callable[[str, float, int, int], object] | None = None,
) -> dict[str, Any]: ...
def solve(
    model: str,
    calls: list[tuple[str, tuple[Any, ...], dict[str, Any]]],
    workloads: list[str],
    ranges: list[tuple[str, int, int]],
    outside_is_error: bool = False,
    compile: bool = False,
    on_progress: Callable[[int, int, str], object] | None = None,
) -> tuple[str, int, list[tuple[str, str]], bool]: ...
def record_decisions(on: bool) -> None: ...
def freeze(calls: list[tuple[str, tuple[Any, ...], dict[str, Any]]] | None = None) -> str: ...
def implement_overload(
    name: str,
    function: Callable[..., Any],
    kinds: str,
    positional: int,
    names: list[str],
    fixed: dict[str, bool],
    outputs: int,
    results: int,
    refuse: Callable[[], str],
) -> bool: ...
def recorded_decisions() -> list[tuple[str, str, str, str]]: ...
def verify_lockfile(path: str | os.PathLike[str]) -> tuple[list[str], list[str], list[str]]: ...
def decision_digest() -> str: ...
def load_dispatch_table(path: str | os.PathLike[str]) -> str: ...
def perfdb_show(
    operation_name: str | None = None, kernel: str | None = None, limit: int = 1000
) -> list[tuple[str, str, str, float, float, int, bool]]: ...
def perfdb_export(path: str | os.PathLike[str]) -> int: ...
def perfdb_import(path: str | os.PathLike[str]) -> int: ...
def perfdb_prune(operation_name: str | None = None, kernel: str | None = None) -> int: ...
def list_workers() -> list[tuple[str, str, int | None, int]]: ...
def load_plugin(path: str | os.PathLike[str]) -> tuple[str, list[str], str | None]: ...
def serve_worker(load: Callable[[], None], invoke: Callable[..., list[Any]]) -> None: ...
def reshape_leading(tensor: Any, first: int, second: int | None = None) -> Any: ...
def torch_flash_prefill(
    q: Any,
    k: Any,
    v: Any,
    mask: Any | None,
    alibi_slopes: Any | None = None,
    *,
    causal: bool,
    causal_offset: Any,
    window_left: Any,
    window_right: Any,
    soft_cap: Any,
    sm_scale: float,
    return_lse: bool,
    layout: str,
) -> Any: ...
def torch_flash_decode(
    q: Any,
    k: Any,
    v: Any,
    kv_lens: Any | None,
    alibi_slopes: Any | None = None,
    *,
    window_left: Any,
    soft_cap: Any,
    sm_scale: float,
    return_lse: bool,
    layout: str,
) -> Any: ...
def torch_cudnn_prefill(
    q: Any,
    k: Any,
    v: Any,
    mask: Any | None,
    alibi_slopes: Any | None = None,
    *,
    causal: bool,
    causal_offset: Any,
    window_left: Any,
    window_right: Any,
    soft_cap: Any,
    sm_scale: float,
    return_lse: bool,
    layout: str,
) -> Any: ...
def torch_cudnn_decode(
    q: Any,
    k: Any,
    v: Any,
    kv_lens: Any | None,
    alibi_slopes: Any | None = None,
    *,
    window_left: Any,
    soft_cap: Any,
    sm_scale: float,
    return_lse: bool,
    layout: str,
) -> Any: ...
def torch_host_prefill(
    q: Any,
    k: Any,
    v: Any,
    mask: Any | None,
    alibi_slopes: Any | None = None,
    *,
    causal: bool,
    causal_offset: Any,
    window_left: Any,
    window_right: Any,
    soft_cap: Any,
    sm_scale: float,
    return_lse: bool,
    layout: str,
) -> Any: ...
def torch_host_decode(
    q: Any,
    k: Any,
    v: Any,
    kv_lens: Any | None,
    alibi_slopes: Any | None = None,
    *,
    window_left: Any,
    soft_cap: Any,
    sm_scale: float,
    return_lse: bool,
    layout: str,
) -> Any: ...
def torch_own_prefill(
    q: Any,
    k: Any,
    v: Any,
    mask: Any | None,
    alibi_slopes: Any | None = None,
    *,
    causal: bool,
    causal_offset: Any,
    window_left: Any,
    window_right: Any,
    soft_cap: Any,
    sm_scale: float,
    return_lse: bool,
    layout: str,
) -> Any: ...
def torch_own_decode(
    q: Any,
    k: Any,
    v: Any,
    kv_lens: Any | None,
    alibi_slopes: Any | None = None,
    *,
    window_left: Any,
    soft_cap: Any,
    sm_scale: float,
    return_lse: bool,
    layout: str,
) -> Any: ...
def torch_own_grouped_prefill(
    q: Any,
    k: Any,
    v: Any,
    mask: Any | None,
    alibi_slopes: Any | None = None,
    *,
    causal: bool,
    causal_offset: Any,
    window_left: Any,
    window_right: Any,
    soft_cap: Any,
    sm_scale: float,
    return_lse: bool,
    layout: str,
) -> Any: ...
def torch_own_grouped_decode(
    q: Any,
    k: Any,
    v: Any,
    kv_lens: Any | None,
    alibi_slopes: Any | None = None,
    *,
    window_left: Any,
    soft_cap: Any,
    sm_scale: float,
    return_lse: bool,
    layout: str,
) -> Any: ...
def torch_rms_norm(x: Any, weight: Any, *, eps: Any, weight_offset: float) -> Any: ...
def private_interfaces() -> bool: ...
def torch_interfaces() -> list[str]: ...
def current_stream(index: int) -> int: ...
