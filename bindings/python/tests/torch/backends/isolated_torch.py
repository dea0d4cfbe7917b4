"""An example backend that uses torch, whose kernel misbehaves for certain values of `eps`."""

import time

import torch

import layerzero as lz

#: Special values of `eps`, which no model uses.
WORK_LONG, HANG, EAT_MEMORY, CRASH, RAISE = 101.0, 102.0, 103.0, 104.0, 105.0


@lz.register_kernel(operation="norm.rms", id="isolated.norm.rms", backend="isolated", dtypes=["float32"], priority=99)
def rms(x, weight, *, eps, weight_offset):
    if eps == WORK_LONG:
        # Real work, during which the process can be killed.
        for _ in range(100_000):
            torch.matmul(torch.ones(256, 256), torch.ones(256, 256))
    if eps == HANG:
        time.sleep(3600)
    if eps == EAT_MEMORY:
        kept = []
        while True:
            kept.append(torch.ones(4 << 20))
    if eps == CRASH:
        import ctypes

        ctypes.string_at(8)
    if eps == RAISE:
        raise RuntimeError("it fails on request")
    normed = torch.nn.functional.rms_norm(x, x.shape[-1:], eps=eps)
    return normed if weight is None else normed * (weight + weight_offset)
