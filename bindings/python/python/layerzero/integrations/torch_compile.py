"""`torch.compile(model, backend="layerzero")`.

The backend is registered when torch's registry is imported after `layerzero`, and by the wheel's entry point. `graphs()`
returns what `torch.compile` gave to it: each has `fallbacks`, the nodes that run in torch with the reason, `compiled` and
`explain()`. Graphs that compute gradients run in torch as a whole.
"""

from layerzero._compile.dynamo import Fallback, TorchGraph, backend, graphs, reset

__all__ = ["Fallback", "TorchGraph", "backend", "graphs", "reset"]
