"""Compiled models: how they are made, called, explained, saved and loaded."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, cast

from layerzero._compile import quantization
from layerzero._compile.quantization import Accuracy
from layerzero._native import CompiledGraph, GraphImportError
from layerzero._report import Report, table

if TYPE_CHECKING:
    from layerzero._compile.device import DeviceGraph

Validation = Literal["none", "normal", "strict"]
NanPolicy = Literal["allow", "refuse"]
OnChange = Literal["replan", "refuse"]
Executor = Literal["native", "torch"]
Path = str | os.PathLike[str]


class Finding(NamedTuple):
    """What a validator found after a phase (`import`, `passes`, `plan`, `execution`); severities are `info`, `warning` and `error`."""

    phase: str
    severity: str
    validator: str
    message: str


class NamedInputs:
    """Inputs by position or name, outputs in the order of the graph."""

    def __init__(self, graph: CompiledGraph) -> None:
        self._names = graph.inputs

    def flatten(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
        """The tensors in the order of the graph's inputs."""
        names = ", ".join(self._names)
        if len(args) > len(self._names):
            raise TypeError(f"{len(args)} inputs were given, expected {len(self._names)}: {names}")
        given = dict(zip(self._names, args))
        for name, value in kwargs.items():
            if name not in self._names:
                raise TypeError(f"there is no input `{name}`; expected {names}")
            if name in given:
                raise TypeError(f"the input `{name}` was given by position and by name")
            given[name] = value
        missing = [name for name in self._names if name not in given]
        if missing:
            raise TypeError(f"the input `{missing[0]}` is missing; expected {names}")
        return [given[name] for name in self._names]

    def unflatten(self, outputs: list[Any]) -> Any:
        """The only output, or a tuple of all."""
        return outputs[0] if len(outputs) == 1 else tuple(outputs)


class CompiledModel:
    """A model as a graph. Call it as the model; threads may share it.

    A model from an ONNX file or a saved one takes its inputs by position or by name and returns its only output, or a
    tuple of them.
    """

    def __init__(self, graph: CompiledGraph | DeviceGraph, signature: Any) -> None:
        # A graph of a device has the same interface.
        self._graph = cast(CompiledGraph, graph)
        self._signature = signature
        #: The shapes of the sample inputs that the model was compiled with; `None` for a model from a file.
        self.compiled_shapes: list[list[int]] | None = None
        #: How much quantized weights change results; `None` if nothing was quantized.
        self.accuracy: Accuracy | None = None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        inputs = self._signature.flatten(args, kwargs)
        return self._signature.unflatten(self._graph.run(inputs))

    def __repr__(self) -> str:
        return f"CompiledModel({', '.join(self.inputs)}) -> {', '.join(self.outputs)}"

    @property
    def inputs(self) -> list[str]:
        """The names of the inputs, in order."""
        return self._graph.inputs

    @property
    def outputs(self) -> list[str]:
        """The names of the outputs, in order."""
        return self._graph.outputs

    @property
    def input_types(self) -> list[tuple[str, str, list[Any]]]:
        """Name, dtype and shape of every input, in order; sizes are ints or symbolic."""
        return self._graph.input_types

    def sample_shapes(self, **sizes: int) -> list[list[int]]:
        """The shapes of all inputs for these values of symbolic sizes, by name; the others are 1, or their smallest value."""
        return self._graph.shapes_for(sizes)

    @property
    def graph(self) -> str:
        """The graph, one line per node."""
        return self._graph.text

    @property
    def rewrites(self) -> list[str]:
        """What the passes replaced, in order."""
        return self._graph.rewrites

    @property
    def findings(self) -> list[Finding]:
        """What validators found when the model was compiled or loaded."""
        return [Finding(*finding) for finding in self._graph.findings]

    @property
    def cached_plans(self) -> int:
        """The number of plans that are kept: one per combination of sizes that ran lately."""
        return self._graph.cached_plans

    @property
    def fallbacks(self) -> list[str]:
        """Steps on a device whose kernel failed, so that torch's own functions run instead, and why."""
        return getattr(self._graph, "fallbacks", [])

    def measure_accuracy(self, expected: list[Any], found: list[Any]) -> None:
        """Sets `accuracy`, from tensors that the model and the compiled model returned for the same inputs."""
        self.accuracy = quantization.accuracy(self._graph, expected, found)

    def _shapes(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[list[int]]:
        """The shapes of these inputs; without any, those of the sample inputs, or the smallest ones."""
        if not args and not kwargs and self.inputs:
            return self.compiled_shapes or self.sample_shapes()
        return [list(tensor.shape) for tensor in self._signature.flatten(args, kwargs)]

    def plan(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """The plan for inputs like these, by default the sample inputs: kernels, copies and memory, as data."""
        return self._graph.plan(self._shapes(args, kwargs))

    def explain(self, *args: Any, **kwargs: Any) -> str:
        """All stages as text for inputs like these, by default the sample inputs: times, passes, findings, memory, and one line per step
        with its kernel, why it was selected, its bytes and where it came from.

        A model from a file has no sample inputs: by default its symbolic sizes are the smallest ones, as in `sample_shapes`.
        """
        return self._graph.explain(self._shapes(args, kwargs))

    def save(self, path: Path) -> None:
        """Writes the graph, its weights and the decisions of the plans so far into one file, for `lz.load`.

        The file is in the safetensors format; weights on a device are copied to it. What the model's results look like (dictionaries, dataclasses) is not
        stored: a loaded model returns its outputs in order.
        """
        self._graph.save(os.fspath(path))

    def freeze(self, path: Path | None = None) -> str:
        """The decisions of all plans so far as a lockfile, written to `path` if it is given. Returns its text."""
        text = self._graph.freeze()
        if path is not None:
            with open(path, "w", encoding="utf-8") as file:
                file.write(text)
        return text

    def tune(self, *args: Any, samples: int = 20, **kwargs: Any) -> Report:
        """Measures every kernel of every different step for inputs like these, by default the sample inputs; the next run plans again with
        the results."""
        steps = self._graph.tune(self._shapes(args, kwargs), samples)
        rows = []
        for step in steps:
            times = {kernel: nanoseconds for kernel, state, nanoseconds in step["kernels"] if state == "measured"}
            best, selected = (times.get(step[name]) for name in ("best", "selected"))
            rows.append((
                step["operation"], step["steps"], step["selected"], None if selected is None else selected / 1e3,
                step["best"], None if best is None else best / 1e3,
            ))
        stored = all(step["kept"] for step in steps)
        columns = ("operation", "steps", "selected", "median µs", "best", "median µs of the best")
        title = f"{len(steps)} different steps measured" + ("" if stored else " (NOT STORED: there is no performance database)")
        return Report((table(title, columns, rows),), {"steps": steps, "kept": stored})

    def verify_lockfile(self, path: Path) -> Report:
        """Compares the decisions of all plans so far with a lockfile."""
        with open(path, encoding="utf-8") as file:
            differing = self._graph.verify_decisions(file.read())
        title = "decisions match the lockfile" if not differing else "decisions differ from the lockfile"
        data = {"agrees": not differing, "differing": differing}
        return Report((table(title, ("differs",), [(one,) for one in differing]),), data)


class Session:
    """A compiled model with the interface of an inference session."""

    def __init__(self, model: Any, sample_inputs: tuple[Any, ...] = (), validation: Validation = "normal") -> None:
        self.model = compile(model, sample_inputs, validation=validation)

    def run(self, inputs: tuple[Any, ...] | list[Any] | dict[str, Any]) -> Any:
        """Runs the model with these inputs."""
        return self.model(**inputs) if isinstance(inputs, dict) else self.model(*inputs)


def compile(
    model: Any,
    args: tuple[Any, ...] = (),
    kwargs: dict[str, Any] | None = None,
    *,
    dynamic_shapes: Any = None,
    optimize: bool = True,
    disabled_passes: tuple[str, ...] = (),
    validation: Validation = "normal",
    nan: NanPolicy = "allow",
    on_change: OnChange = "replan",
    weights: Literal["int8", "int4"] | None = None,
    group: int | None = None,
    activations: Literal["int8"] | None = None,
    quantize_tied: bool = False,
    executor: Executor | None = None,
) -> CompiledModel:
    """Compiles a model for inference, on the host or on the CUDA device of its parameters.

    `model` is a `torch.nn.Module`, a `torch.export.ExportedProgram`, the path of an ONNX file, or the bytes of one. Of
    an ONNX file, external data must be in the folder of the file.

    For a torch model, `args` and `kwargs` are sample inputs, and `dynamic_shapes` is passed to `torch.export.export`:
    those sizes stay symbolic, and one compiled model serves all of them without recompiling.

    `optimize=False` runs no passes, `disabled_passes` names those that do not run. `validation` says which findings stop
    the compilation: errors (`"normal"`), also warnings (`"strict"`), or none (`"none"`); `"strict"` also compares every
    pass with the reference on random inputs, and a torch model with its compiled form. `nan="refuse"` refuses runs whose
    inputs contain NaN, and makes NaN in outputs an error. `on_change` says what the next run does when policy, registry
    or health changed: plan again, or refuse if another kernel would be selected.

    An operator that cannot be imported raises `GraphImportError`, which names it and its place in the source.

    `weights` stores the weights of linear layers as integers, each `group` of inputs with a scale of its own (by default 128 for int4, all
    inputs of an output feature for int8); `activations="int8"` computes with integers. Weights that are also used elsewhere, such as
    embeddings that are tied to the last layer, are kept unless `quantize_tied`. `accuracy` reports how much results change.

    `executor` says who runs the steps: `"native"`, LayerZero's own loop on the host, or `"torch"`, which calls the kernels that are selected
    for the device, and torch functions for primitives. By default it follows from where the parameters are.
    """
    if executor not in (None, "native", "torch"):
        raise ValueError(f"executor is {executor!r}, expected 'native' or 'torch'")
    quantized = quantization.options(weights, group, activations, quantize_tied)
    options = (optimize, list(disabled_passes), validation, nan, on_change, quantized)
    if isinstance(model, (str, bytes, os.PathLike)):
        if args or kwargs or dynamic_shapes is not None:
            raise TypeError("an ONNX model has its inputs and sizes in the file; sample inputs are for torch models")
        if executor == "torch":
            raise ValueError("an ONNX model runs on the host; executor='torch' is for torch models")
        graph = CompiledGraph.from_onnx(model if isinstance(model, bytes) else os.fspath(model), *options)
        compiled = CompiledModel(graph, NamedInputs(graph))
        if quantized is not None:
            compiled.measure_accuracy([], [])
        return compiled
    if validation not in ("none", "normal", "strict"):
        raise ValueError(f"validation is {validation!r}, expected 'none', 'normal' or 'strict'")
    from layerzero._compile.export import import_program

    def finish(build: Any, constants: Any) -> Any:
        graph = build.finish(*options[:-1], quantization.for_executor(quantized, is_native=constants is None))
        if constants is None:
            return graph
        from layerzero._compile.device import DeviceGraph

        return DeviceGraph(graph, constants, nan=nan, on_change=on_change)

    compiled = import_program(model, args, kwargs or {}, dynamic_shapes, finish, executor, reads_all=quantized is not None)
    compiled.compiled_shapes = compiled._shapes(args, kwargs or {})
    if quantized is not None:
        expected, found = _results(model, compiled, args, kwargs or {}) if args or kwargs else ([], [])
        compiled.measure_accuracy(expected, found)
    elif validation == "strict":
        _compare(model, compiled, args, kwargs or {})
    return compiled


def load(
    path: Path,
    *,
    verify: bool = False,
    missing_kernels: Literal["replan", "refuse"] = "replan",
    nan: NanPolicy = "allow",
    on_change: OnChange = "replan",
    device: Any = None,
) -> CompiledModel:
    """Loads a model that `CompiledModel.save` wrote. Needs no torch, unless `device` is given.

    Weights stay in the file, which is mapped: the file must not be changed while the model is used. Sizes, the header and
    the hash of the graph are always checked; `verify=True` also compares the hash of every weight, which reads the whole
    file. An artifact of another format or of operations that this release does not have is refused. `missing_kernels`
    says what happens if kernels of the artifact's decisions do not exist here: others are selected, or it is refused.

    With `device` (`"cuda"`, `"cuda:1"`) weights are copied to that device, where torch runs the steps, as for a model that was compiled there;
    `"cpu"` lets torch run them on the host.
    """
    graph = CompiledGraph.load(os.fspath(path), verify, missing_kernels, nan, on_change)
    if device is None:
        return CompiledModel(graph, NamedInputs(graph))
    from layerzero._compile.device import DeviceGraph, constants_on

    return CompiledModel(DeviceGraph(graph, constants_on(device), nan=nan, on_change=on_change), NamedInputs(graph))


# From a builder, and the constants if torch runs the steps.
Finish = Callable[[Any, Any], Any]


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
