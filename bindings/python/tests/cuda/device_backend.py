"""A backend for `lz.isolate_backend`: imported by worker processes only, which may lack LayerZero. Certain values of `eps` make it misbehave."""

import ctypes
import json
import os
import time

import torch

#: Special values of `eps`, which no model uses.
HANG, CRASH, RAISE, DECLINE, EXIT, WRONG_SHAPE, OUT_OF_BOUNDS = 102.0, 104.0, 105.0, 106.0, 107.0, 108.0, 109.0


def rms(x, weight, *, eps, weight_offset):
    if eps == HANG:
        time.sleep(3600)
    if eps == CRASH:
        ctypes.string_at(8)
    if eps == RAISE:
        raise RuntimeError("it fails on request")
    if eps == DECLINE:
        raise NotImplementedError("it declines on request")
    if eps == EXIT:
        os._exit(7)
    if eps == WRONG_SHAPE:
        return x[..., :-1]
    if eps == OUT_OF_BOUNDS:
        # An illegal access, after which the device context of this process is unusable.
        torch.zeros(8, device=x.device)[torch.full((8,), 1 << 40, device=x.device)].sum().item()
    normed = torch.nn.functional.rms_norm(x, x.shape[-1:], eps=eps)
    return normed if weight is None else normed * (weight + weight_offset)


def rms_add(x, residual, weight, *, eps, weight_offset, out=None):
    residual += x
    result = rms(residual, weight, eps=eps, weight_offset=weight_offset)
    return result if out is None else out.copy_(result)


def silu_mul(gate, up, *, out=None):
    return torch.mul(torch.nn.functional.silu(gate), up, out=out)


KERNELS = {}
DESCRIPTORS = []
for _platform in ("cpu", "cuda"):
    _common = {"dtypes": ["f32", "bf16"], "requires_layouts": ["any"], "priority": 99, "requires_contiguous": False, "requires_last_dim_stride1": False}
    if _platform == "cuda":
        _common |= {"is_cuda_graph_safe": True, "min_sm": 75}
    _norm = {**_common, "params": ["eps", "weight_offset"], "optional_inputs": ["weight"]}
    _ops = {
        "norm.rms": [{"kernel_id": f"legacy.{_platform}.norm.rms", **_norm}],
        "norm.rms.add": [{"kernel_id": f"legacy.{_platform}.norm.rms.add", **_norm}],
        "activation.silu_mul": [{"kernel_id": f"legacy.{_platform}.silu_mul", **_common}],
    }
    if _platform == "cpu":
        # It would change its input, which host memory in a worker cannot.
        del _ops["norm.rms.add"]
    KERNELS |= {f"legacy.{_platform}.norm.rms": rms, f"legacy.{_platform}.norm.rms.add": rms_add, f"legacy.{_platform}.silu_mul": silu_mul}
    DESCRIPTORS.append(json.dumps({"schema_version": "1.0", "backend": "legacy", "backend_version": "1", "platform": _platform, "ops": _ops}))
