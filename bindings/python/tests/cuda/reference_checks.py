"""Compares results of references by the equivalence that the schema defines."""

import torch

#: Relative and absolute tolerance by operation and output dtype, where it is not the default.
_QUANTIZED_NORM = {
    torch.int8: (0.0, 2.0), torch.float8_e4m3fn: (0.126, 2e-3), torch.float8_e5m2: (0.251, 2e-5), torch.float32: (1e-2, 1e-6),
    torch.float16: (1e-3, 1e-3), torch.bfloat16: (1e-2, 1e-2),
}  # fmt: skip
_USUAL = {torch.float32: (1e-5, 1e-5), torch.float16: (1e-3, 1e-3), torch.bfloat16: (1e-2, 1e-2)}
_TOLERANCE = {
    "mlp.linear": {torch.float32: (1e-4, 1e-4), torch.float16: (2e-3, 2e-3), torch.bfloat16: (1.6e-2, 1.6e-2)},
    "mlp.linear.weight_only": {torch.float32: (1e-4, 1e-3), torch.float16: (2e-3, 2e-3), torch.bfloat16: (1.6e-2, 1.6e-2)},
    "mlp.linear.fp8": {torch.float32: (1e-4, 1e-3), torch.float16: (2e-3, 2e-3), torch.bfloat16: (1.6e-2, 1.6e-2)},
    "mlp.linear.fp4": {torch.float32: (1e-4, 1e-3), torch.float16: (2e-3, 2e-3), torch.bfloat16: (1.6e-2, 1.6e-2)},
    "norm.rms.quantize": _QUANTIZED_NORM,
    "rope.append": {torch.float8_e4m3fn: (0.126, 2e-3), torch.float8_e5m2: (0.251, 2e-5)},
    # Caches, which are read only.
    "attention.gqa.decode.paged.fp8": {torch.float8_e4m3fn: (0.0, 0.0), torch.float8_e5m2: (0.0, 0.0)},
    "attention.gqa.prefill.paged.fp8": {torch.float8_e4m3fn: (0.0, 0.0), torch.float8_e5m2: (0.0, 0.0)},
    "norm.rms.add.quantize": _QUANTIZED_NORM,
    "mlp.linear.int8": {torch.float32: (1e-5, 1e-5), torch.float16: (1e-3, 1e-3), torch.bfloat16: (8e-3, 8e-3)},
    "mlp.fused": {torch.float32: (1e-4, 1e-4), torch.float16: (5e-3, 5e-3), torch.bfloat16: (3e-2, 3e-2)},
    "attention.linear.prefill": {torch.float32: (1e-4, 1e-3), torch.float16: (2e-3, 2e-3), torch.bfloat16: (1.6e-2, 1.6e-2)},
    "attention.linear.decode": {torch.float32: (1e-4, 1e-3), torch.float16: (2e-3, 2e-3), torch.bfloat16: (1.6e-2, 1.6e-2)},
    "ssm.scan": {torch.float32: (1e-4, 1e-3), torch.float16: (2e-3, 2e-3), torch.bfloat16: (1.6e-2, 1.6e-2)},
    "ssm.step": {torch.float32: (1e-4, 1e-3), torch.float16: (2e-3, 2e-3), torch.bfloat16: (1.6e-2, 1.6e-2)},
    "moe.experts": {torch.float32: (1e-4, 1e-4), torch.float16: (5e-3, 5e-3), torch.bfloat16: (3e-2, 3e-2)},
    "moe.experts.quantized": {torch.float32: (1e-4, 1e-4), torch.float16: (5e-3, 5e-3), torch.bfloat16: (3e-2, 3e-2)},
    "embedding.lookup.quantized": {torch.float32: (1e-6, 1e-6), torch.float16: (1e-3, 1e-6), torch.bfloat16: (8e-3, 1e-6)},
    "dequantize": {torch.float32: (1e-6, 1e-6), torch.float16: (1e-3, 1e-6), torch.bfloat16: (8e-3, 1e-6)},
}
#: These are equal bit for bit, except that all NaN are equal.
_EXACT = ("quantize", "embedding.lookup", "kv.append", "kv.compact", "mlp.linear.pack", "sampling.topk", "sampling.topp", "sampling.speculative", "sampling.minp", "sampling.mask")
_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def flat(value):
    """Results as a list."""
    return list(value) if isinstance(value, tuple | list) else [] if value is None else [value]


def bits(tensor):
    """A tensor's memory as integers, contiguous, on the host."""
    tensor = tensor.detach().cpu()
    return tensor.view(torch.uint8) if tensor.dtype == torch.bool else tensor.view(_BITS[tensor.element_size()]).contiguous()


def tolerances(operation):
    """Relative and absolute tolerance by dtype, as in the schema."""
    return _USUAL | _TOLERANCE.get(operation, {})


def same_bits(one, other):
    return one.shape == other.shape and one.dtype == other.dtype and torch.equal(bits(one), bits(other))


def _is_nan(tensor):
    floats = tensor.is_floating_point() and tensor.dtype != getattr(torch, "float4_e2m1fn_x2", None)
    if not floats:
        return torch.zeros(tensor.shape, dtype=torch.bool)
    if tensor.dtype == getattr(torch, "float8_e8m0fnu", None):
        return bits(tensor) == 255
    return tensor.detach().cpu().float().isnan()


def differences(operation, dtype, found, expected):
    """The problem of each result, as text."""
    if len(found) != len(expected):
        return [f"{len(found)} results, not {len(expected)}"]
    wrong = []
    for number, (one, other) in enumerate(zip(found, expected, strict=True)):
        if one.shape != other.shape or one.dtype != other.dtype:
            wrong.append(f"result {number}: {one.dtype} {tuple(one.shape)}, not {other.dtype} {tuple(other.shape)}")
            continue
        nan = _is_nan(other)
        if not torch.equal(_is_nan(one), nan):
            wrong.append(f"result {number}: NaN elsewhere: {one} instead of {other}")
        elif operation in _EXACT or (not one.is_floating_point() and one.dtype not in _TOLERANCE.get(operation, {})):
            if not torch.equal(bits(one)[~nan], bits(other)[~nan]):
                wrong.append(f"result {number}: {bits(one)} instead of {bits(other)}")
        else:
            tolerance = tolerances(operation)
            relative, absolute = tolerance[one.dtype]
            if one.dtype == torch.float32 and dtype != "f32" and number and "quantize" not in operation and operation != "rope.append":
                # The lse of half-precision inputs is computed from their products.
                relative, absolute = tolerance[{"f16": torch.float16, "bf16": torch.bfloat16}[dtype]]
            left, right = (tensor.detach().cpu().to(torch.float64)[~nan] for tensor in (one, other))
            bad = ~((left == right) | ((left - right).abs() <= absolute + relative * right.abs()))
            if bool(bad.any()):
                wrong.append(f"result {number}: {left[bad][:4].tolist()} instead of {right[bad][:4].tolist()}")
    return wrong
