"""LayerZero: which kernel runs this operation, on this hardware, for these tensors, right now, and why."""

from typing import TYPE_CHECKING

from layerzero import _watch, ops
from layerzero._blocks import (
    BlockPlan,
    BlockRun,
    FormatChoice,
    SpeculativePair,
    choose_format,
    plan_block,
    run_block,
    speculative_pair,
    speculative_tokens,
)
from layerzero._compile import Accuracy, CompiledModel, QuantizedLayer, Session, compile, load
from layerzero._control import Config, config, configure, disabled, load_config, lock, prefer, unlock
from layerzero._decisions import freeze, record_decisions, solve, verify_lockfile
from layerzero._definitions import import_definition
from layerzero._functions import (
    attention,
    dequantize,
    layer_norm,
    paged_attention,
    quantize,
    rms_norm,
    rope,
    sample_topk,
    sample_topp,
)
from layerzero._generate import GenerationSession, Generator, generate
from layerzero._graphs import prepare_capture, verify_capture
from layerzero._inspect import (
    Explanation,
    Plan,
    Report,
    doctor,
    explain,
    list_circuits,
    list_kernels,
    list_operations,
    readiness_check,
    reset_kernel,
    statistics,
    validate,
    which,
)
from layerzero._isolation import IsolatedBackend, Plugin, Worker, isolate_backend, load_plugin, workers
from layerzero._kv import KvCache, kv_cache
from layerzero._native import (
    ConfigurationError,
    CudaGraphUnsafeError,
    GraphImportError,
    KernelExecutionError,
    LayerZeroError,
    NoKernelFoundError,
    Operation,
    PlanHandle,
    Reason,
    TextStream,
    Tokenizer,
    UnknownOperationError,
    ValidationError,
    __version__,
)
from layerzero._override import Overridden, override_torch
from layerzero._prepare import dry_run, load_dispatch_table, tune, warmup
from layerzero._register import (
    load_backends,
    register_kernel,
    register_operation,
    unregister_backend,
    unregister_kernel,
    unregister_operation,
)
from layerzero._reload import (
    ConfigWatch,
    PluginReload,
    canaries,
    promote_version,
    reload_plugin,
    roll_back_version,
    watch_config,
)
from layerzero._serve import Server, serve
from layerzero._telemetry import flush_logs, metrics, metrics_text, record, start_recording, stop_recording
from layerzero._tokenize import (
    FlatTokens,
    TokenBatch,
    count_tokens,
    detokenize,
    register_tokenizer,
    tokenize,
    tokenize_batch,
    tokenizer_cache,
)
from layerzero._verify import repro, wait_for_verification

__all__ = [
    "Accuracy",
    "BlockPlan",
    "BlockRun",
    "CompiledModel",
    "Config",
    "ConfigWatch",
    "ConfigurationError",
    "CudaGraphUnsafeError",
    "Explanation",
    "FlatTokens",
    "FormatChoice",
    "GenerationSession",
    "Generator",
    "GraphImportError",
    "IsolatedBackend",
    "KernelExecutionError",
    "KvCache",
    "LayerZeroError",
    "NoKernelFoundError",
    "Operation",
    "Overridden",
    "Plan",
    "PlanHandle",
    "Plugin",
    "PluginReload",
    "QuantizedLayer",
    "Reason",
    "Report",
    "Server",
    "Session",
    "SpeculativePair",
    "TextStream",
    "TokenBatch",
    "Tokenizer",
    "UnknownOperationError",
    "ValidationError",
    "Worker",
    "__version__",
    "attention",
    "canaries",
    "choose_format",
    "compile",
    "config",
    "configure",
    "count_tokens",
    "dequantize",
    "detokenize",
    "disabled",
    "doctor",
    "dry_run",
    "explain",
    "flush_logs",
    "freeze",
    "generate",
    "import_definition",
    "isolate_backend",
    "kv_cache",
    "layer_norm",
    "list_circuits",
    "list_kernels",
    "list_operations",
    "load",
    "load_backends",
    "load_config",
    "load_dispatch_table",
    "load_plugin",
    "lock",
    "metrics",
    "metrics_text",
    "ops",
    "override_torch",
    "paged_attention",
    "plan_block",
    "prefer",
    "prepare_capture",
    "promote_version",
    "quantize",
    "readiness_check",
    "record",
    "record_decisions",
    "register_kernel",
    "register_operation",
    "register_tokenizer",
    "reload_plugin",
    "repro",
    "reset_kernel",
    "rms_norm",
    "roll_back_version",
    "rope",
    "run_block",
    "sample_topk",
    "sample_topp",
    "serve",
    "solve",
    "speculative_pair",
    "speculative_tokens",
    "start_recording",
    "statistics",
    "stop_recording",
    "tokenize",
    "tokenize_batch",
    "tokenizer_cache",
    "tune",
    "unlock",
    "unregister_backend",
    "unregister_kernel",
    "unregister_operation",
    "validate",
    "verify_capture",
    "verify_lockfile",
    "wait_for_verification",
    "warmup",
    "watch_config",
    "which",
    "workers",
]

if TYPE_CHECKING:
    from layerzero import backends, distributed, integrations, perfdb
else:

    def __getattr__(name):
        """Imports optional modules on first access."""
        if name in ("backends", "distributed", "integrations", "perfdb"):
            from importlib import import_module

            return import_module(f"layerzero.{name}")
        raise AttributeError(f"module 'layerzero' has no attribute {name!r}")


_watch.install()
del _watch, TYPE_CHECKING
