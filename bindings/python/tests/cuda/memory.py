"""Real out-of-memory on a GPU: which kernel is selected without memory for a workspace, what happens when an
allocation inside a kernel fails, and recovery. The kernels are FlashInfer's paged kernels, which need a
workspace of 128 MiB, and torch's, which need none.
"""

import gc
import time

import torch

import layerzero as lz
from layerzero import _device_memory, _native
from layerzero._bench import shapes

MIB = 1 << 20
#: Time-to-live of the cached size of the largest free block.
PROBE_TTL = 1.0


OPERATION = "attention.gqa.decode.paged"


class _Filled:
    """Allocates all GPU memory except some, in blocks that nothing else uses."""

    def __init__(self, leave):
        self.pieces, size = [], 8 << 30
        while size >= MIB:
            free = torch.cuda.mem_get_info()[0]
            if free - size < leave:
                size //= 2
                continue
            try:
                self.pieces.append(torch.empty(size, dtype=torch.uint8, device="cuda"))
            except torch.OutOfMemoryError:
                size //= 2

    def release(self):
        self.pieces.clear()
        release_workspaces()


def release_workspaces():
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()


def _forget():
    """Releases the workspaces of FlashInfer's adapters, so that they must be allocated again."""
    from layerzero.backends import flashinfer

    flashinfer.forget()
    release_workspaces()


def memory():
    """Each step with the selected kernel before and after a call, its result, and why FlashInfer's kernel was rejected."""
    shape = shapes._paged(4, 32, 8, 512, 128, 16)
    call = shape.arguments
    run = getattr(lz.ops, OPERATION.replace(".", "_"))
    _native.compile_cold([(OPERATION, (), call)], 8)
    expected = shape.by_torch().float()
    lz.configure(**{"memory.probe_ttl_seconds": PROBE_TTL})
    found = {}

    def step(name, more=None):
        time.sleep(0.05)
        line = found[name] = {"free_mib": torch.cuda.mem_get_info()[0] // MIB, "largest_mib": (_device_memory.largest_block(0) or 0) // MIB, **(more or {})}
        try:
            line["chosen before"] = lz.which(OPERATION, **call).kernel_id
            result = run(**call)
            torch.cuda.synchronize()
            line["off"] = float((result.float() - expected).abs().max())
            # The kernels round differently, so the result shows which one ran.
            line["ran"] = [kernel for kernel, made in by.items() if torch.equal(result, made)]
            line["chosen after"] = lz.which(OPERATION, **call).kernel_id
        except lz.LayerZeroError as error:
            line["error"] = f"{type(error).__name__}: {error}"[:400]
            line["codes"] = sorted({reason.code for reason in error.reasons})
        candidates = lz.explain(OPERATION, **call).to_dict()["candidates"]
        line["against it"] = sorted({reason["code"] for one in candidates if one["kernel"] == first for reason in one.get("reasons", [])})

    plan, by = lz.which(OPERATION, **call), {}
    first = plan.kernel_id
    for kernel in (first, *plan.fallbacks):
        lz.lock(OPERATION, kernel)
        by[kernel] = run(**call)
        lz.unlock(OPERATION)
    step("enough memory")
    for name, leave in (
        ("the scratch memory does not fit", 110 * MIB),
        # The workspace fits, but FlashInfer's other allocations do not.
        ("an allocation inside of the library fails", 130 * MIB),
    ):
        _forget()
        filled = _Filled(leave)
        step(name)
        step(f"{name}, the next call")
        filled.release()
        step(f"{name}, released")
        time.sleep(PROBE_TTL + 0.2)
        step(f"{name}, released and looked at again")
    _forget()
    filled = _Filled(leave=40 * MIB)
    lz.lock(OPERATION, first)
    try:
        step("nothing else may run")
    finally:
        lz.unlock(OPERATION)
        filled.release()
    time.sleep(PROBE_TTL + 0.2)
    step("everything released")
    _forget()
    _cut_up(step)
    time.sleep(PROBE_TTL + 0.2)
    step("at last")
    lz.configure(**{"memory.probe_ttl_seconds": 60.0})
    return found


def _cut_up(step):
    """Half a gibibyte is free, but no block is larger than 64 MiB."""
    whole = torch.empty(1024 * MIB, dtype=torch.uint8, device="cuda")
    filled = _Filled(leave=8 * MIB)
    del whole
    pieces = [torch.empty(64 * MIB, dtype=torch.uint8, device="cuda") for _ in range(16)]
    del pieces[::2]
    step("cut up", {"held_back_mib": _device_memory.inactive_bytes(0) // MIB})
    step("cut up, the next call", {"held_back_mib": _device_memory.inactive_bytes(0) // MIB})
    del pieces
    step("whole again, not looked at since")
    time.sleep(PROBE_TTL + 0.2)
    step("whole again")
    filled.release()
