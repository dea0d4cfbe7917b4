"""Compiles one FlashInfer module into the library's cache, in the current process."""

from __future__ import annotations

import json
from typing import Any


def spec_of(module: str) -> Any:
    """The library's JIT spec of a module that `_compile.module_of` named."""
    import torch
    from flashinfer.jit import cascade, norm, rope, sampling
    from flashinfer.jit.attention import modules

    kind, *arguments = json.loads(module)
    index = torch.int32
    if kind == "norm":
        return norm.gen_norm_module()
    if kind == "rope":
        return rope.gen_rope_module()
    if kind == "sampling":
        return sampling.gen_sampling_module()
    if kind == "cascade":
        return cascade.gen_cascade_module()
    if kind == "mla":
        backend, name, ckv, kpe = arguments
        dtype = getattr(torch, name)
        return modules.gen_batch_mla_module(backend, dtype, dtype, dtype, index, ckv, kpe, False)
    if kind == "decode":
        name, qk, vo, window, cap = arguments
        dtype = getattr(torch, name)
        return modules.gen_batch_decode_module(dtype, dtype, dtype, index, qk, vo, 0, window, cap)
    backend, name, qk, vo, window, cap = arguments
    dtype = getattr(torch, name)
    if kind == "single":
        return modules.gen_single_prefill_module(backend, dtype, dtype, dtype, qk, vo, 0, window, cap, False)
    return modules.gen_batch_prefill_module(backend, dtype, dtype, dtype, index, qk, vo, 0, window, cap, False)


def build(module: str) -> None:
    """Compiles the module, unless it is compiled already, and prints its name."""
    spec = spec_of(module)
    if not spec.is_aot:
        spec.build(verbose=False)
    print(spec.name)
