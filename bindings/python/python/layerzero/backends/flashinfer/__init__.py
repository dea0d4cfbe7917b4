"""FlashInfer's kernels. They are JIT compiled; `layerzero.backends.flashinfer._compile` compiles them ahead of calls."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from layerzero.backends.flashinfer import _attention, _rest
from layerzero.backends.flashinfer._plans import forget, with_plan

__all__ = ["KERNELS", "forget"]

#: Kernels by id.
KERNELS: dict[str, Callable[..., Any]] = {
    "flashinfer.norm.rms.f16": _rest.norm_rms,
    "flashinfer.norm.rms.bf16": _rest.norm_rms,
    "flashinfer.norm.rms.add.f16": _rest.norm_rms_add,
    "flashinfer.norm.rms.add.bf16": _rest.norm_rms_add,
    "flashinfer.norm.layer": _rest.norm_layer,
    "flashinfer.posenc.rope": _rest.rope,
    "flashinfer.attention.state.merge": _rest.merge,
    "flashinfer.sampling.topk": _rest.sample_topk,
    "flashinfer.sampling.topp": _rest.sample_topp,
    "flashinfer.sampling.speculative": _rest.sample_speculative,
}
for _backend in ("fa2", "fa3"):
    for _family in ("standard", "gqa"):
        KERNELS[f"flashinfer.{_backend}.single.{_family}.prefill"] = partial(_attention.single_prefill, _backend)
        KERNELS[f"flashinfer.{_backend}.{_family}.prefill"] = partial(_attention.dense_prefill, _backend)
        KERNELS[f"flashinfer.{_backend}.{_family}.prefill.ragged"] = partial(_attention.ragged_prefill, _backend)
        KERNELS[f"flashinfer.{_backend}.{_family}.prefill.paged"] = partial(_attention.paged_prefill, _backend)
    KERNELS[f"flashinfer.{_backend}.mla.decode.paged"] = partial(_attention.paged_latent, _backend)
    KERNELS[f"flashinfer.{_backend}.mla.decode"] = partial(_attention.latent, _backend)
    KERNELS[f"flashinfer.{_backend}.mla.prefill"] = partial(_attention.latent, _backend)
    KERNELS[f"flashinfer.{_backend}.sparse.block"] = partial(_attention.block_sparse, _backend)
    KERNELS[f"flashinfer.{_backend}.sparse.variable_block"] = partial(_attention.variable_block_sparse, _backend)
for _cores, _with_tensor_cores in (("cuda_cores", False), ("tensor_cores", True)):
    for _family in ("standard", "gqa"):
        KERNELS[f"flashinfer.{_cores}.{_family}.decode.paged"] = partial(_attention.paged_decode, _with_tensor_cores)
        KERNELS[f"flashinfer.{_cores}.{_family}.decode"] = partial(_attention.dense_decode, _with_tensor_cores)
for _kernel in KERNELS.values():
    if isinstance(_kernel, partial) and _kernel.func is not _attention.single_prefill:
        with_plan(_kernel)
