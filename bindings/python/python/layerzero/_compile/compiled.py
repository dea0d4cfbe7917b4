"""Compiled models: how they are made from a torch module, called and explained."""

from __future__ import annotations

from typing import Any, Literal

from layerzero._compile import quantization
from layerzero._compile.quantization import Accuracy
from layerzero._native import CompiledGraph, GraphImportError

Validation = Literal["none", "normal", "strict"]


class CompiledModel:
    """A model as a graph. Call it as the model; threads may share it."""

    def __init__(self, graph: CompiledGraph, signature: Any) -> None:
        self._graph = graph
        self._signature = signature
        #: How much quantized weights change results; `None` if nothing was quantized.
        self.accuracy: Accuracy | None = None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        inputs = self._signature.flatten(args, kwargs)
        return self._signature.unflatten(self._graph.run(inputs))

    @property
    def graph(self) -> str:
        """The graph, one line per node."""
        return self._graph.text

    @property
    def rewrites(self) -> list[str]:
        """What the passes replaced, in order."""
        return self._graph.rewrites

    @property
    def cached_plans(self) -> int:
        """The number of plans that are kept: one per combination of sizes that ran lately."""
        return self._graph.cached_plans

    def plan(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """The plan for inputs like these: kernels, copies and memory, as data."""
        inputs = self._signature.flatten(args, kwargs)
        return self._graph.plan([list(tensor.shape) for tensor in inputs])

    def explain(self, *args: Any, **kwargs: Any) -> str:
        """The plan for inputs like these as text: one line per step with its kernel and where it came from."""
        plan = self.plan(*args, **kwargs)
        lines = [
            f"{plan['imported_nodes']} nodes imported, {plan['nodes']} computed, {len(plan['steps'])} steps; "
            f"arena {plan['arena_bytes']} bytes (at least {plan['live_bytes']} are live at once), "
            f"constants {plan['constant_bytes']} bytes",
            *(f"pass {rewrite}" for rewrite in self.rewrites),
        ]
        if self.accuracy is not None:
            lines += [f"quantized {line}" for line in str(self.accuracy).splitlines()]
        for step in plan["steps"]:
            copy = f" (copy: {step['copy']})" if step["copy"] else ""
            lines.append(f"{step['node']}  ▸ {step['kernel']}{copy}  from {step['source']}")
        return "\n".join(lines)


class Session:
    """A compiled model with the interface of an inference session."""

    def __init__(self, model: Any, sample_inputs: tuple[Any, ...], validation: Validation = "normal") -> None:
        self.model = compile(model, sample_inputs, validation=validation)

    def run(self, inputs: tuple[Any, ...] | list[Any]) -> Any:
        """Runs the model with these inputs."""
        return self.model(*inputs)


def compile(
    model: Any,
    args: tuple[Any, ...] = (),
    kwargs: dict[str, Any] | None = None,
    *,
    dynamic_shapes: Any = None,
    optimize: bool = True,
    disabled_passes: tuple[str, ...] = (),
    validation: Validation = "normal",
    weights: Literal["int8", "int4"] | None = None,
    group: int | None = None,
    activations: Literal["int8"] | None = None,
    quantize_tied: bool = False,
) -> CompiledModel:
    """Compiles a `torch.nn.Module` or a `torch.export.ExportedProgram` for inference on the host.

    `args` and `kwargs` are sample inputs. `dynamic_shapes` is passed to `torch.export.export`: those sizes stay symbolic, and one
    compiled model serves all of them without recompiling. `optimize=False` runs no passes, `disabled_passes` names those that do
    not run. `validation="strict"` also runs the model and compares the results.
    An operator that cannot be imported raises `GraphImportError`, which names it and its place in the source.

    `weights` stores the weights of linear layers as integers, each `group` of inputs with a scale of its own (by default 128 for int4, all
    inputs of an output feature for int8); `activations="int8"` computes with integers. Weights that are also used elsewhere, such as
    embeddings that are tied to the last layer, are kept unless `quantize_tied`. `accuracy` reports how much results change.
    """
    if validation not in ("none", "normal", "strict"):
        raise ValueError(f"validation is {validation!r}, expected 'none', 'normal' or 'strict'")
    from layerzero._compile.export import import_program

    quantized = quantization.options(weights, group, activations, quantize_tied)
    compiled = import_program(model, args, kwargs or {}, dynamic_shapes, optimize, disabled_passes, quantized)
    if quantized:
        expected, found = _results(model, compiled, args, kwargs or {}) if args or kwargs else ([], [])
        compiled.accuracy = quantization.accuracy(compiled._graph, expected, found)
    elif validation == "strict":
        _compare(model, compiled, args, kwargs or {})
    return compiled


def _results(model: Any, compiled: CompiledModel, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[list[Any], list[Any]]:
    """The tensors that the model and the compiled one return for the sample inputs."""
    import torch
    from torch.utils import _pytree as pytree

    callable_model = model.module() if isinstance(model, torch.export.ExportedProgram) else model
    with torch.no_grad():
        expected = pytree.tree_leaves(callable_model(*args, **kwargs))
    found = pytree.tree_leaves(compiled(*args, **kwargs))
    tensors = [(a, b) for a, b in zip(expected, found, strict=True) if isinstance(a, torch.Tensor)]
    return [a for a, _ in tensors], [b for _, b in tensors]


def _compare(model: Any, compiled: CompiledModel, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Runs the model and the compiled one with the sample inputs, and refuses results that differ."""
    import torch

    for index, (a, b) in enumerate(zip(*_results(model, compiled, args, kwargs), strict=True)):
        tolerance = 2e-2 if a.dtype in (torch.float16, torch.bfloat16) else 1e-4
        if not torch.allclose(a, b, rtol=tolerance, atol=tolerance, equal_nan=True):
            difference = (a.double() - b.double()).abs().max().item()
            raise GraphImportError(
                f"output {index} of the compiled model differs from the model's by up to {difference:.3g}; "
                "compile with optimize=False to find out whether a pass is the cause"
            )
