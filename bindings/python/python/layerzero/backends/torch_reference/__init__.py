"""Every operation as a composition of torch functions: the reference on devices that the host reference
cannot reach.

`lz.disabled`, degraded health and fallback use it on the tensors' device. It takes every valid call with any
strides, is deterministic, and needs only torch. Text operations run on the host.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch.nn.functional as F

from layerzero.backends.torch_reference import _attention, _experts, _layers, _quantization, _recurrent, _requests, _sampling

_BY_OPERATION: dict[str, Callable[..., Any]] = {
    "activation.gelu": _layers.gelu,
    "activation.gelu_mul": _layers.gelu_mul,
    "activation.relu": F.relu,
    "activation.relu_squared": _layers.relu_squared,
    "activation.silu": _layers.silu,
    "activation.silu_mul": _layers.silu_mul,
    "attention.cross.decode": _attention.cross,
    "attention.cross.prefill": _attention.cross,
    "attention.gqa.decode": _attention.decode,
    "attention.gqa.decode.paged": _requests.paged_decode,
    "attention.gqa.decode.paged.fp8": _requests.paged_decode_fp8,
    "attention.gqa.prefill": _attention.prefill,
    "attention.gqa.prefill.paged": _requests.paged_prefill,
    "attention.gqa.prefill.paged.fp8": _requests.paged_prefill_fp8,
    "attention.gqa.prefill.ragged": _requests.ragged_prefill,
    "attention.linear.decode": _recurrent.linear_decode,
    "attention.linear.prefill": _recurrent.linear_prefill,
    "attention.mla.decode": _requests.latent,
    "attention.mla.decode.paged": _requests.paged_latent,
    "attention.mla.prefill": _requests.latent,
    "attention.sparse.block": _attention.sparse_block,
    "attention.sparse.topk": _attention.sparse_topk,
    "attention.sparse.variable_block": _attention.sparse_variable_block,
    "attention.standard.decode": _attention.decode,
    "attention.standard.decode.paged": _requests.paged_decode,
    "attention.standard.prefill": _attention.prefill,
    "attention.standard.prefill.paged": _requests.paged_prefill,
    "attention.standard.prefill.ragged": _requests.ragged_prefill,
    "attention.state.merge": _attention.merge,
    "conv.causal1d": _recurrent.causal1d,
    "conv.causal1d.step": _recurrent.causal1d_step,
    "dequantize": _quantization.dequantize,
    "embedding.lookup": _layers.embedding,
    "embedding.lookup.quantized": _quantization.lookup,
    "kv.append": _layers.append,
    "kv.compact": _layers.compact,
    "logits.logprobs": _sampling.logprobs,
    "mlp.fused": _layers.fused,
    "mlp.linear": _layers.linear,
    "mlp.linear.fp4": _layers.linear_fp4,
    "mlp.linear.fp8": _layers.linear_fp8,
    "mlp.linear.int8": _layers.linear_int8,
    "mlp.linear.pack": _layers.pack,
    "mlp.linear.weight_only": _layers.weight_only,
    "moe.experts": _experts.experts,
    "moe.experts.quantized": _experts.experts_quantized,
    "moe.route": _experts.route,
    "norm.ada": _layers.norm_ada,
    "norm.group": _layers.norm_group,
    "norm.layer": _layers.norm_layer,
    "norm.layer.add": _layers.norm_layer_add,
    "norm.rms": _layers.norm_rms,
    "norm.rms.add": _layers.norm_rms_add,
    "norm.rms.add.quantize": _layers.norm_rms_add_quantize,
    "norm.rms.quantize": _layers.norm_rms_quantize,
    "posenc.alibi": _layers.alibi,
    "posenc.rope": _layers.rope,
    "quantize": _quantization.quantize,
    "rope.append": _layers.rope_append,
    "sampling.mask": _sampling.mask,
    "sampling.minp": _sampling.minp,
    "sampling.penalties": _sampling.penalties,
    "sampling.speculative": _sampling.speculative,
    "sampling.topk": _sampling.topk,
    "sampling.topp": _sampling.topp,
    "ssm.scan": _recurrent.ssm_scan,
    "ssm.step": _recurrent.ssm_step,
}

KERNELS: dict[str, Callable[..., Any]] = {f"torch.reference.{operation}": function for operation, function in _BY_OPERATION.items()}
