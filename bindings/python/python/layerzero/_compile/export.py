"""The walk over an exported program: placeholders, nodes, outputs."""

from __future__ import annotations

import operator
from contextlib import nullcontext
from typing import Any

import torch
from torch.export.graph_signature import InputKind, OutputKind
from torch.utils import _pytree as pytree

from layerzero._compile import aten
from layerzero._compile.compiled import CompiledModel, Finish
from layerzero._compile.device import Constants, device_of
from layerzero._compile.functional import functional
from layerzero._compile.tracing import AttentionAsOneNode
from layerzero._native import CompiledGraph, GraphBuilder, GraphImportError


class Signature:
    """How arguments become the inputs of a graph, and its outputs the model's results."""

    def __init__(self, program: torch.export.ExportedProgram, inputs: list[int], results: list[Any]) -> None:
        self._in_spec = program.call_spec.in_spec
        self._out_spec = program.call_spec.out_spec
        self._inputs = inputs
        self._results = results
        # Models of tensors only, without keywords, skip the walk over nested arguments, which costs as much as a small model.
        self._plain = _is_flat(self._in_spec) and inputs == list(range(self._in_spec.num_leaves))
        self._single = self._out_spec.is_leaf() and results == [("tensor", 0)]

    def flatten(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[torch.Tensor]:
        """The tensors that the graph takes. Arguments that are no tensors must be those of the samples."""
        if self._plain and not kwargs and len(args) == len(self._inputs):
            if all(isinstance(arg, torch.Tensor) for arg in args):
                return [arg.detach() if arg.requires_grad else arg for arg in args]
        leaves, spec = pytree.tree_flatten((args, kwargs))
        if spec != self._in_spec and set(kwargs) == set(self._in_spec.child(1).context):
            from torch.export._tree_utils import reorder_kwargs

            kwargs = reorder_kwargs(kwargs, self._in_spec)
            leaves, spec = pytree.tree_flatten((args, kwargs))
        if spec != self._in_spec:
            raise TypeError(_difference(spec, self._in_spec))
        tensors = [leaves[index] for index in self._inputs]
        for index, tensor in zip(self._inputs, tensors):
            if not isinstance(tensor, torch.Tensor):
                raise TypeError(f"argument {index} is {type(tensor).__name__}, expected a tensor")
        return [tensor.detach() if tensor.requires_grad else tensor for tensor in tensors]

    def unflatten(self, outputs: list[torch.Tensor]) -> Any:
        """The model's results. Constants that the model returns were recorded when it was compiled."""
        if self._single:
            return outputs[0]
        leaves = [outputs[value] if kind == "tensor" else value for kind, value in self._results]
        return pytree.tree_unflatten(leaves, self._out_spec)


def _difference(found: Any, expected: Any) -> str:
    """Says how arguments differ from those of the samples."""
    described = []
    for spec in (found, expected):
        args, kwargs = spec.child(0), spec.child(1)
        names = "".join(f", `{name}`" for name in kwargs.context)
        described.append(f"{args.num_children} positional argument{'' if args.num_children == 1 else 's'}{names}")
    if described[0] == described[1]:
        described = [f"arguments of the structure {spec}" for spec in (found, expected)]
    return f"the call has {described[0]}, but the model was compiled for {described[1]}"


def _is_flat(spec: Any) -> bool:
    """Whether positional arguments that contain no others are the only ones."""
    if spec.num_children != 2:
        return False
    args, kwargs = spec.child(0), spec.child(1)
    return args.type is tuple and kwargs.num_leaves == 0 and all(child.is_leaf() for child in args.children())


def import_program(
    model: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    dynamic_shapes: Any,
    finish: Finish,
    executor: str | None = None,
    reads_all: bool = False,
) -> CompiledModel:
    """Exports a model and builds its graph. `finish` gets the builder and, if torch runs the steps, the constants; with `reads_all` their
    elements can be read on the host."""
    if isinstance(model, torch.export.ExportedProgram):
        program = model
    elif isinstance(model, torch.nn.Module):
        if model.training:
            raise GraphImportError("the model is in training mode; call model.eval() first")
        on_device = executor == "torch" or device_of([*model.parameters(), *model.buffers()]) is not None
        with torch.no_grad(), AttentionAsOneNode() if on_device else nullcontext():
            program = torch.export.export(
                model, args, kwargs, dynamic_shapes=dynamic_shapes, strict=False
            )
    else:
        raise TypeError(f"cannot compile {type(model).__name__}; expected a torch module or an exported program")
    program = functional(program)
    return _Walk(program, constants=constants_of(program, executor, reads_all)).run(finish)


def constants_of(program: torch.export.ExportedProgram, executor: str | None, reads_all: bool = False) -> Constants | None:
    """The constants of a program whose steps torch runs: on a device, or on the host if that is requested."""
    inputs = (node.meta.get("val") for node in program.graph.nodes if node.op == "placeholder")
    device = device_of([*program.state_dict.values(), *program.constants.values(), *inputs])
    if device is None:
        return Constants(torch.device("cpu"), reads_all) if executor == "torch" else None
    if executor == "native":
        raise GraphImportError(f"the model is on {device}; the native executor runs on the host")
    return Constants(device, reads_all)


def import_with_cache(
    program: torch.export.ExportedProgram, state: aten.CacheInputs, constants: Constants | None = None, **options: Any
) -> CompiledGraph:
    """The graph of a program whose attention reads and writes a KV cache; `state` describes the inputs that follow the program's own."""
    walk = _Walk(functional(program), state, constants)
    walk.walk()
    return walk.build.finish(**options)


class _Walk:
    """One pass over the nodes of a program; `values` has the graph's node, size or constant per torch node."""

    def __init__(
        self, program: torch.export.ExportedProgram, state: aten.CacheInputs | None = None, constants: Constants | None = None
    ) -> None:
        self.program = program
        self.state = state
        self.constants = constants
        self.build = GraphBuilder()
        self.sizes = aten.Sizes(self.build, program)
        self.values: dict[torch.fx.Node, Any] = {}
        self.inputs: list[int] = []

    def run(self, finish: Finish) -> CompiledModel:
        results = self.walk()
        return CompiledModel(finish(self.build, self.constants), Signature(self.program, self.inputs, results))

    def walk(self) -> list[Any]:
        """Builds the graph; returns what the model returns."""
        results: list[Any] = []
        specs = {spec.arg.name: spec for spec in self.program.graph_signature.input_specs}
        leaf = 0
        for node in self.program.graph.nodes:
            if node.op == "placeholder":
                spec = specs[node.name]
                self.values[node] = self._placeholder(node, spec, leaf)
                leaf += spec.kind == InputKind.USER_INPUT
            elif node.op == "call_function":
                self.values[node] = self._call(node)
            elif node.op == "output":
                results = self._outputs(node)
            else:
                raise GraphImportError(f"cannot import {node.op} `{node.name}`: control flow is not supported")
        return results

    def _placeholder(self, node: torch.fx.Node, spec: Any, leaf: int) -> Any:
        if spec.kind in (InputKind.PARAMETER, InputKind.BUFFER, InputKind.CONSTANT_TENSOR):
            source = self.program.state_dict if spec.kind == InputKind.PARAMETER else None
            tensor = None if source is None else source.get(spec.target)
            if tensor is None:
                tensor = self.program.state_dict.get(spec.target)
            if tensor is None:
                tensor = self.program.constants[spec.target]
            if self.constants is not None:
                return aten.Tensor(self.constants.add(self.build, spec.target, tensor))
            return aten.Tensor(self.build.constant(spec.target, _plain(tensor, spec.target)))
        if spec.kind != InputKind.USER_INPUT:
            raise GraphImportError(f"cannot import input `{node.name}` of kind {spec.kind.name}")
        value = node.meta.get("val")
        if not isinstance(value, torch.Tensor):
            # Ints, bools and None are constants of the exported program.
            return value
        self.inputs.append(leaf)
        shape = [self.sizes.of(size) for size in value.shape]
        self.build.at(node.name, "input")
        return aten.Tensor(self.build.input(node.name, shape, aten.dtype_name(value.dtype)))

    def _call(self, node: torch.fx.Node) -> Any:
        self.build.at(node.name, str(node.target), _source_line(node))
        if node.target is operator.getitem:
            return self._argument(node.args[0])[node.args[1]]
        handler = aten.find(node.target)
        if handler is None:
            raise GraphImportError(
                f"cannot import {node.target} `{node.name}` at {_source_line(node) or 'an unknown place'}: "
                "the operator is not supported"
            )
        args = [self._argument(argument) for argument in node.args]
        kwargs = {name: self._argument(argument) for name, argument in node.kwargs.items()}
        call = aten.Call(self.build, self.sizes, node, self.state)
        try:
            return handler(call, *args, **kwargs)
        except aten.Unsupported as error:
            raise GraphImportError(
                f"cannot import {node.target} `{node.name}` at {_source_line(node) or 'an unknown place'}: {error}"
            ) from None

    def _argument(self, argument: Any) -> Any:
        return pytree.tree_map(
            lambda leaf: self.values[leaf] if isinstance(leaf, torch.fx.Node) else leaf,
            argument,
            is_leaf=lambda leaf: isinstance(leaf, torch.fx.Node),
        )

    def _outputs(self, node: torch.fx.Node) -> list[Any]:
        results: list[Any] = []
        count = 0
        for spec, argument in zip(self.program.graph_signature.output_specs, node.args[0]):
            if spec.kind != OutputKind.USER_OUTPUT:
                raise GraphImportError(f"the model changes {spec.target}, which a compiled model cannot do")
            value = self._argument(argument)
            if isinstance(value, aten.Tensor):
                self.build.output(argument.name, value.node)
                results.append(("tensor", count))
                count += 1
            elif value is None or isinstance(value, (int, float, bool, str)):
                results.append(("constant", value))
            else:
                raise GraphImportError(f"the model returns {value!r}, which is no tensor or constant")
        return results


def _plain(tensor: torch.Tensor, name: str) -> torch.Tensor:
    """A parameter as a dense host tensor without gradient."""
    tensor = tensor.detach()
    if tensor.device.type != "cpu":
        raise GraphImportError(f"`{name}` is on {tensor.device}; a compiled model runs on the host")
    return tensor.resolve_neg().resolve_conj()


def _source_line(node: torch.fx.Node) -> str:
    """The innermost line of the user's source that made the node."""
    trace = node.meta.get("stack_trace") or ""
    lines = [line.strip() for line in trace.splitlines() if line.strip().startswith("File ")]
    return lines[-1].removeprefix("File ") if lines else ""
