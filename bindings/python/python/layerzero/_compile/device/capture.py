"""CUDA graphs of programs: captured on a stream of the session, replayed on the caller's."""

from __future__ import annotations

from typing import Any

import torch

from layerzero._compile.device.program import Program


class Capturer:
    """The streams and the memory pool that all captures of a session share. Its programs never run at the same time, so their temporary
    memory may overlap.

    Nothing but captures runs on the capturing stream: cuBLAS keeps a workspace per stream, and one that was allocated outside of a capture
    is freed by `torch.compile`, although graphs still use it. The pool is kept by a graph of its own until the session ends.
    """

    def __init__(self, device: torch.device) -> None:
        self._warm = torch.cuda.Stream(device)
        # Streams of this priority are a set of their own, which hardly anything uses.
        self._stream = torch.cuda.Stream(device, priority=-1)
        self._pool: Any = torch.cuda.graph_pool_handle()
        self._keeps_pool = torch.cuda.CUDAGraph()
        count = torch.zeros(1, device=device)
        with torch.cuda.device(device), torch.cuda.graph(self._keeps_pool, pool=self._pool, stream=self._stream):
            count.add_(1)

    def warm_up(self, program: Program) -> None:
        """Runs a program on another stream than the default one, as before every capture: kernels compile, and libraries create handles."""
        current = torch.cuda.current_stream(self._warm.device)
        self._warm.wait_stream(current)
        with torch.cuda.stream(self._warm):
            program.execute()
        current.wait_stream(self._warm)

    def capture(self, program: Program) -> torch.cuda.CUDAGraph:
        """The graph of a program that was warmed up. Nothing runs."""
        graph = torch.cuda.CUDAGraph()
        torch.cuda.current_stream(self._stream.device).synchronize()
        with torch.cuda.graph(graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local"):
            program.capture()
        return graph


def refusal(program: Program) -> str | None:
    """Why a program cannot be captured, or `None`."""
    unsafe = program.unsafe
    if not unsafe:
        return None
    kernels = sorted({step.kernel for step in unsafe})
    return f"{len(unsafe)} steps run kernels that are not declared safe for capture: {', '.join(kernels)}"
