"""The `torch.compile` backend `layerzero`: what can be imported runs as compiled graphs, everything else in torch around them."""

from __future__ import annotations

import logging
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import torch
from functorch.compile import make_boxed_func
from torch.fx.passes.infra.partitioner import CapabilityBasedPartitioner
from torch.fx.passes.operator_support import create_op_support
from torch.utils import _pytree as pytree

from layerzero._compile import aten
from layerzero._compile.compiled import CompiledModel, NamedInputs
from layerzero._compile.export import _source_line
from layerzero._native import GraphBuilder

_LOG = logging.getLogger("layerzero.torch_compile")
_OPTIONS = {"optimize": True, "disabled_passes": (), "validation": "normal", "nan": "allow", "on_change": "replan"}


@dataclass(frozen=True)
class Fallback:
    """A node that runs in torch, and why."""

    node: str
    operator: str
    source: str
    reason: str

    def __str__(self) -> str:
        place = f" at {self.source}" if self.source else ""
        return f"{self.operator} `{self.node}`{place} runs in torch: {self.reason}"


@dataclass
class TorchGraph:
    """A graph that `torch.compile` gave to the backend."""

    fallbacks: list[Fallback] = field(default_factory=list)
    partitions: list[_Partition] = field(default_factory=list)

    @property
    def compiled(self) -> list[CompiledModel]:
        """The compiled graphs that ran at least once."""
        return [partition.model for partition in self.partitions if partition.model is not None]

    def explain(self) -> str:
        """Which nodes run in torch and why, then every compiled graph, with the kernels of the sizes that ran last."""
        lines = [f"{len(self.partitions)} compiled graphs, {len(self.fallbacks)} nodes in torch"]
        lines += [str(fallback) for fallback in self.fallbacks]
        for index, partition in enumerate(self.partitions):
            lines.append(f"graph {index}: " + ("not called yet" if partition.model is None else partition.explain()))
        return "\n".join(lines)


_GRAPHS: list[TorchGraph] = []
_MAX_GRAPHS = 256


def graphs() -> list[TorchGraph]:
    """The graphs that `torch.compile` gave to the backend, the latest last."""
    return list(_GRAPHS)


def reset() -> None:
    """Forgets the list of graphs. The graphs themselves live as long as torch needs them."""
    _GRAPHS.clear()


def _record() -> TorchGraph:
    graph = TorchGraph()
    _GRAPHS.append(graph)
    del _GRAPHS[:-_MAX_GRAPHS]
    return graph


class _Import:
    """Builds a graph from nodes of an FX graph of ATen operators."""

    def __init__(self, graph: torch.fx.Graph) -> None:
        self.build = GraphBuilder()
        ranges: dict[Any, Any] = {}
        for node in graph.nodes:
            value = node.meta.get("val")
            if isinstance(value, torch.Tensor) and hasattr(value, "fake_mode") and value.fake_mode.shape_env is not None:
                ranges = value.fake_mode.shape_env.var_to_range
                break
        self.sizes = aten.Sizes(self.build, SimpleNamespace(range_constraints=ranges))
        self.values: dict[torch.fx.Node, Any] = {}

    def input(self, name: str, meta: torch.Tensor) -> Any:
        if meta.device.type != "cpu":
            raise aten.Unsupported(f"a tensor on {meta.device}")
        if meta.layout is not torch.strided:
            raise aten.Unsupported(f"a tensor with layout {meta.layout}")
        shape = [self.sizes.of(size) for size in meta.shape]
        return aten.Tensor(self.build.input(name, shape, aten.dtype_name(meta.dtype)))

    def call(self, node: torch.fx.Node) -> Any:
        """The graph's node or nodes of a call."""
        self.build.at(node.name, str(node.target), _source_line(node))
        argument = lambda value: pytree.tree_map(  # noqa: E731
            lambda leaf: self.values[leaf] if isinstance(leaf, torch.fx.Node) else leaf,
            value,
            is_leaf=lambda leaf: isinstance(leaf, torch.fx.Node),
        )
        if node.target is operator.getitem:
            result = argument(node.args[0])[node.args[1]]
        else:
            handler = aten.find(node.target)
            if handler is None:
                raise aten.Unsupported("the operator is not supported")
            call = aten.Call(self.build, self.sizes, node)
            result = handler(call, *(argument(value) for value in node.args), **{
                name: argument(value) for name, value in node.kwargs.items()
            })
        if result is None:
            raise aten.Unsupported("this result is not computed")
        return result


def _is_size(node: torch.fx.Node) -> bool:
    return isinstance(node.meta.get("val"), (int, float, bool, torch.SymInt, torch.SymFloat, torch.SymBool))


def _unsupported(module: torch.fx.GraphModule) -> dict[torch.fx.Node, str]:
    """The calls that cannot be imported, and why: an import of all nodes, in which the others' results are inputs."""
    trial = _Import(module.graph)
    reasons: dict[torch.fx.Node, str] = {}

    def as_inputs(node: torch.fx.Node) -> Any:
        make = lambda value: trial.input(node.name, value) if isinstance(value, torch.Tensor) else value  # noqa: E731
        try:
            return pytree.tree_map(make, node.meta.get("val"))
        except Exception:
            return None

    for node in module.graph.nodes:
        if node.op == "call_function" and not _is_size(node):
            try:
                trial.values[node] = trial.call(node)
                if any("as_strided" in str(user.target) for user in node.users):
                    raise aten.Unsupported("a later node reads its memory by strides")
                continue
            except Exception as error:
                # An error of a handler's own is a reason as any other: the node runs in torch.
                reasons[node] = str(error) or type(error).__name__
        trial.values[node] = node.meta.get("val") if _is_size(node) else as_inputs(node)
    # A call whose second result is used, but not computed, runs in torch as a whole.
    for node in list(reasons):
        if node.target is operator.getitem:
            reasons.setdefault(node.args[0], "one of its results is not computed")
    for node in module.graph.nodes:
        if node.target is operator.getitem and node.args[0] in reasons:
            reasons.setdefault(node, reasons[node.args[0]])
    return reasons


class _Partition(torch.nn.Module):
    """A part of a graph that runs compiled. It is compiled when it is called first, with the weights of that call.

    Weights become constants. Their versions are compared in every call: after a change the part is compiled again.
    """

    def __init__(self, module: torch.fx.GraphModule, static: list[bool], options: dict[str, Any]) -> None:
        super().__init__()
        object.__setattr__(self, "module", module)
        self.static = static
        self.options = options
        self.model: CompiledModel | None = None
        self.compilations = 0
        self._weights: list[int] = []
        self._versions: list[tuple[int, int]] = []
        self._inputs: list[tuple[int, bool]] = []
        self._single = False
        self._shapes: list[list[int]] = []

    def forward(self, *args: Any) -> Any:
        if self.model is None or self._versions != self._weight_versions(args):
            self._build_model(args)
        inputs = [
            torch.empty(args[index] if index >= 0 else 0, dtype=torch.bool) if is_size else args[index].detach()
            for index, is_size in self._inputs
        ]
        self._shapes = [list(tensor.shape) for tensor in inputs]
        outputs = self.model._graph.run(inputs)  # type: ignore[union-attr]
        return outputs[0] if self._single else tuple(outputs)

    def explain(self) -> str:
        """The compiled graph for the sizes that ran last."""
        return self.model._graph.explain(self._shapes) if self.model is not None else ""

    def _weight_versions(self, args: Sequence[Any]) -> list[tuple[int, int]]:
        return [(args[index].data_ptr(), args[index]._version) for index in self._weights]

    def _build_model(self, args: Sequence[Any]) -> None:
        graph = self.module.graph
        build = _Import(graph)
        placeholders = [node for node in graph.nodes if node.op == "placeholder"]
        weights, inputs = [], []
        for index, node in enumerate(placeholders):
            meta = node.meta.get("val")
            if not isinstance(meta, torch.Tensor):
                build.values[node] = meta
            elif self.static[index] and not args[index].is_inference():
                build.values[node] = aten.Tensor(build.build.constant(node.name, args[index].detach()))
                weights.append(index)
            else:
                build.values[node] = build.input(node.name, meta)
                inputs.append((index, False))
        # A size that no tensor has is carried by an input without content.
        known = {size.node.expr for index, _ in inputs for size in placeholders[index].meta["val"].shape if isinstance(size, torch.SymInt)}
        for index, node in enumerate(placeholders):
            meta = node.meta.get("val")
            if isinstance(meta, torch.SymInt) and meta.node.expr not in known and meta.node.expr.is_Symbol:
                build.build.input(node.name, [build.sizes.of(meta)], "bool")
                inputs.append((index, True))
                known.add(meta.node.expr)
        if not inputs:
            # Results are tensors of the library of the first input.
            build.build.input("empty", [0], "bool")
            inputs.append((-1, True))
        for node in graph.nodes:
            if node.op == "call_function":
                build.values[node] = node.meta["val"] if _is_size(node) else build.call(node)
            elif node.op == "get_attr":
                build.values[node] = aten.Tensor(build.build.constant(node.name, getattr(self.module, node.target).detach()))
            elif node.op == "output":
                results = node.args[0]
                single = isinstance(results, torch.fx.Node)
                for result in [results] if single else results:
                    build.build.output(result.name, build.values[result].node)
        compiled = build.build.finish(
            self.options["optimize"], list(self.options["disabled_passes"]), self.options["validation"],
            self.options["nan"], self.options["on_change"],
        )
        self.model = CompiledModel(compiled, NamedInputs(compiled))
        self.compilations += 1
        self._weights, self._inputs, self._single = weights, inputs, single
        self._versions = self._weight_versions(args)


def _inference(module: torch.fx.GraphModule, options: dict[str, Any]) -> Callable[..., Any]:
    """Partitions a graph of ATen operators."""
    record = _record()
    reasons = _unsupported(module)
    for node, reason in reasons.items():
        if node.target is not operator.getitem:
            record.fallbacks.append(Fallback(node.name, str(node.target), _source_line(node), reason))
    for fallback in record.fallbacks:
        _LOG.info("%s", fallback)
    context = torch._guards.TracingContext.try_get()
    indices = context.fw_metadata.static_input_indices if context is not None and context.fw_metadata is not None else []
    placeholders = [node for node in module.graph.nodes if node.op == "placeholder"]
    # By name, because partitioning may copy nodes.
    static = {placeholders[index].target for index in indices if index < len(placeholders)}
    support = create_op_support(
        lambda _, node: node.op == "call_function" and node not in reasons and not _is_size(node)
    )
    partitioner = CapabilityBasedPartitioner(module, support, allows_single_node_partition=True)
    fused = partitioner.fuse_partitions(partitioner.propose_partitions())
    for node in list(fused.graph.nodes):
        if node.op == "call_module" and isinstance(getattr(fused, node.target), torch.fx.GraphModule):
            part = getattr(fused, node.target)
            is_static = [argument.op == "placeholder" and argument.target in static for argument in node.args]
            partition = _Partition(part, is_static, options)
            setattr(fused, node.target, partition)
            record.partitions.append(partition)
    fused.recompile()
    return make_boxed_func(fused.forward)


def _training(module: torch.fx.GraphModule, _inputs: Sequence[Any]) -> Callable[..., Any]:
    """A graph that computes gradients runs in torch."""
    reason = "the graph computes gradients; compiled graphs are for inference, under torch.no_grad()"
    record = _record()
    for node in module.graph.nodes:
        if node.op == "call_function":
            record.fallbacks.append(Fallback(node.name, str(node.target), _source_line(node), reason))
    _LOG.warning("a graph of %d nodes runs in torch: %s", len(record.fallbacks), reason)
    return make_boxed_func(module.forward)


def backend(module: torch.fx.GraphModule, inputs: Sequence[Any], *, options: dict[str, Any] | None = None, **_: Any) -> Any:
    """`torch.compile(model, backend="layerzero", options={...})`; options are those of `lz.compile`."""
    from torch._dynamo.backends.common import aot_autograd

    unknown = sorted(set(options or {}) - set(_OPTIONS))
    if unknown:
        raise ValueError(f"unknown option {unknown[0]!r}; expected one of {', '.join(_OPTIONS)}")
    chosen = _OPTIONS | (options or {})
    compile_graph = aot_autograd(
        fw_compiler=_training,
        bw_compiler=_training,
        inference_compiler=lambda module, _inputs: _inference(module, chosen),
    )
    return compile_graph(module, inputs)
