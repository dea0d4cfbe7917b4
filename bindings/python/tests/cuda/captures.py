"""Calls as CUDA graphs."""

import torch


def captured(function, calls=2):
    """A CUDA graph of a call, and the result that each replay writes. On the stream of the capture the function is called before."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(calls):
            function()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        result = function()
    return graph, result
