"""CUDA graphs of programs: captured on a stream of the session, replayed on the caller's."""

from __future__ import annotations

from typing import Any

import torch

from layerzero._compile.device.program import Program


class Capturer:
    """The stream and the memory pool that all captures of a session share. Its programs never run at the same time, so their temporary
    memory may overlap."""

    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.Stream(device)
        self._pool: Any = torch.cuda.graph_pool_handle()

    def warm_up(self, program: Program) -> None:
        """Runs a program on the stream on which it will be captured: kernels compile, and libraries create handles and plans for it."""
        current = torch.cuda.current_stream(self._stream.device)
        self._stream.wait_stream(current)
        with torch.cuda.stream(self._stream):
            program.execute()
        current.wait_stream(self._stream)

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
