"""Liger's kernels, forward only. Norms use the Gemma variant, in float32 throughout, as the operations define."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from liger_kernel.ops.geglu import geglu_forward
from liger_kernel.ops.layer_norm import layer_norm_forward
from liger_kernel.ops.rms_norm import rms_norm_forward
from liger_kernel.ops.swiglu import swiglu_forward


def _norm_rms(x: Any, weight: Any, *, eps: float, weight_offset: float) -> Any:
    return rms_norm_forward(x, weight, eps, weight_offset, "gemma", None)[0]


def _norm_layer(x: Any, weight: Any, bias: Any, *, eps: float, return_stats: bool) -> Any:
    output, _, mean, inverse, *_ = layer_norm_forward(x, weight, bias, eps)
    return (output, mean.view(x.shape[:-1]), inverse.view(x.shape[:-1])) if return_stats else output


def _silu_mul(gate: Any, up: Any) -> Any:
    return swiglu_forward(gate, up)[2]


def _gelu_mul(gate: Any, up: Any, *, approximate: str) -> Any:
    return geglu_forward(gate, up)[2]


#: Kernels by id.
KERNELS: dict[str, Callable[..., Any]] = {
    "liger.norm.rms": _norm_rms,
    "liger.norm.layer": _norm_layer,
    "liger.activation.silu_mul": _silu_mul,
    "liger.activation.gelu_mul": _gelu_mul,
}

_DTYPES = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}


def compile(kernel: str, operation: str, call: Mapping[str, str]) -> list[str]:
    """Compiles a kernel by running it once on a separate stream, with as many columns as the call."""
    dtype = _DTYPES[call["T"]]
    columns = int(call["hidden"]) if "hidden" in call else 4096
    with torch.cuda.stream(torch.cuda.Stream()):
        x = torch.zeros((1, columns), dtype=dtype, device="cuda")
        weight = torch.zeros(columns, dtype=_DTYPES.get(call.get("W", ""), dtype), device="cuda")
        if operation == "norm.rms":
            _norm_rms(x, weight, eps=1e-6, weight_offset=0.0)
        elif operation == "norm.layer":
            _norm_layer(x, weight, weight, eps=1e-6, return_stats=False)
        else:
            KERNELS[kernel](x, x, **({"approximate": "tanh"} if operation.endswith("gelu_mul") else {}))
        torch.cuda.current_stream().synchronize()
    return [f"{kernel} {call['T']} {columns}"]
