"""A plan with memory: one call per step, each bound to its tensors."""

from __future__ import annotations

import logging
from collections.abc import Callable, MutableMapping
from functools import partial
from typing import Any, NamedTuple

import torch

from layerzero._compile.aten.base import DTYPES_BY_NAME
from layerzero._compile.device.functions import PRIMITIVES, composition, is_graph_safe
from layerzero._device_worker import taken_inputs
from layerzero._native import GraphImportError

_LOG = logging.getLogger("layerzero.graph")

#: Operations whose FlashInfer kernels are planned on the host from the values of tables: a CUDA graph would keep the plan of its capture.
_PLANNED = (".paged", ".ragged")

# A tensor of a step: memory, its index, sizes, strides, offset in elements, dtype.
Row = tuple[str, int, list[int], list[int], int, str]


class Flipped(NamedTuple):
    """A view with negative strides, which torch does not have: a copy is made when the step runs."""

    view: torch.Tensor
    axes: list[int]


class Step:
    """One step: what it runs, and on which tensors."""

    def __init__(self, about: dict[str, Any], tensor: Callable[[Row], Any]) -> None:
        self.about = about
        self.operation: str = about["operation"]
        self.inputs = [None if row is None else tensor(row) for row in about["inputs"]]
        self.outputs = [tensor(row) for row in about["outputs"] if row is not None]
        if any(isinstance(one, Flipped) for one in (*self.outputs, *(self.inputs[index] for index in about["written"]))):
            raise GraphImportError(f"{about['source']}: {self.operation} writes to a tensor with negative strides")
        self.fallback: str | None = None
        self.kernel, self.is_graph_safe, self.run = self._bind()

    def _bind(self) -> tuple[str, bool, Callable[[], None]]:
        about = self.about
        if self.operation in PRIMITIVES:
            safe = is_graph_safe(self.operation, about["params"])
            return f"torch.{self.operation}", safe, self._call(PRIMITIVES[self.operation], takes_out=True)
        if about["function"] is not None:
            planned = about["kernel"].startswith("flashinfer.") and self.operation.endswith(_PLANNED)
            safe = about["graph_safe"] and not planned
            return about["kernel"], safe, self._call(about["function"], takes_out=about["takes_out"])
        return self._composition()

    def _composition(self) -> tuple[str, bool, Callable[[], None]]:
        function = composition(self.operation)
        if function is None:
            raise GraphImportError(f"{self.about['source']}: {self.operation} has no kernel on the device and no composition of torch functions")
        return f"torch.reference.{self.operation}", True, self._call(function, takes_out=False)

    def _call(self, function: Callable[..., Any], takes_out: bool) -> Callable[[], None]:
        params, inputs, outputs = self.about["params"], self._taken(function), self.outputs
        if any(isinstance(one, Flipped) for one in inputs):
            return partial(self._with_copies, function, takes_out)
        # Kernels of several outputs return them; of one, they write into `out`.
        if takes_out and (len(outputs) == 1 or (outputs and self.operation in PRIMITIVES)):
            return partial(function, *inputs, **params, out=outputs[0] if len(outputs) == 1 else tuple(outputs))
        if not outputs:
            return partial(function, *inputs, **params)
        return partial(_copy_results, partial(function, *inputs, **params), outputs)

    def _taken(self, function: Callable[..., Any]) -> list[Any]:
        if self.operation in PRIMITIVES:
            return self.inputs
        try:
            return taken_inputs(function, self.inputs)
        except NotImplementedError as error:
            raise GraphImportError(f"{self.about['source']}: {self.operation}: {error}") from error

    def _with_copies(self, function: Callable[..., Any], takes_out: bool) -> None:
        dense = [one.view.flip(one.axes) if isinstance(one, Flipped) else one for one in self.inputs]
        original, self.inputs = self.inputs, dense
        try:
            self._call(function, takes_out)()
        finally:
            self.inputs = original

    def fall_back(self, error: Exception) -> None:
        """Runs the composition instead of a kernel that failed, from now on."""
        if self.operation in PRIMITIVES or self.kernel.startswith("torch.reference.") or (
            self.about["written"] and not isinstance(error, NotImplementedError)
        ):
            raise error
        self.fallback = f"{self.kernel} failed: {type(error).__name__}: {error}"
        _LOG.warning("%s (%s): %s; torch's own functions run instead", self.about["source"], self.operation, self.fallback)
        self.kernel, self.is_graph_safe, self.run = self._composition()


def _copy_results(call: Callable[[], Any], outputs: list[torch.Tensor]) -> None:
    results = call()
    for output, result in zip(outputs, results if isinstance(results, tuple) else (results,), strict=True):
        output.copy_(result)


class Program:
    """The steps of a plan. Results of steps that only read constants are computed once, and shared by all programs of a session."""

    def __init__(
        self,
        plan: dict[str, Any],
        arena: torch.Tensor,
        constants: list[torch.Tensor],
        inputs: list[torch.Tensor],
        computed: MutableMapping[Any, torch.Tensor],
    ) -> None:
        self.plan = plan
        device = arena.device
        self.outputs = [torch.empty(shape, dtype=DTYPES_BY_NAME[dtype], device=device) for shape, dtype in plan["outputs"]]
        self._arena, self._constants, self._inputs = arena, constants, inputs
        self._tables = [torch.tensor(table, dtype=torch.int64, device=device) for table in plan["tables"]]
        self._computed = self._constant_buffers(computed)
        self.steps = [Step(about, self._tensor) for about in plan["steps"]]
        new = [index for index, is_new in sorted(self._constant_steps.items()) if is_new]
        for index in new:
            self.steps[index].run()
        self._run = [step for index, step in enumerate(self.steps) if index not in self._constant_steps]

    def _constant_buffers(self, computed: MutableMapping[Any, torch.Tensor]) -> dict[int, torch.Tensor]:
        """Memory of buffers that only depend on constants. Sets `_constant_steps`: which steps write them, and whether they must run."""
        self._constant_steps: dict[int, bool] = {}
        found: dict[int, torch.Tensor] = {}
        keys: dict[int, Any] = {}
        for buffer, writers in constant_buffers(self.plan["steps"]).items():
            key = keys[buffer] = tuple(_identity(self.plan["steps"][writer], keys) for writer in writers)
            memory = computed.get(key)
            is_new = memory is None
            if memory is None:
                size = -(-self.plan["buffers"][buffer] // 64) * 64
                memory = computed[key] = torch.empty(size, dtype=torch.uint8, device=self._arena.device)
            found[buffer] = memory
            for writer in writers:
                self._constant_steps[writer] = self._constant_steps.get(writer, False) or is_new
        return found

    def _tensor(self, row: Row) -> Any:
        kind, index, shape, strides, offset, dtype_name = row
        dtype = DTYPES_BY_NAME[dtype_name]
        if kind == "arena":
            memory = self._computed.get(index)
            start = 0 if memory is not None else self.plan["offsets"][index] // dtype.itemsize
            base = (self._arena if memory is None else memory).view(dtype)
        else:
            base = {"input": self._inputs, "constant": self._constants, "sizes": self._tables, "output": self.outputs}[kind][index]
            start = base.storage_offset()
        if 0 in shape:
            return torch.empty(shape, dtype=dtype, device=self._arena.device)
        negative = [axis for axis, stride in enumerate(strides) if stride < 0]
        if not negative:
            return base.as_strided(shape, strides, start + offset)
        first = offset + sum((shape[axis] - 1) * strides[axis] for axis in negative)
        return Flipped(base.as_strided(shape, [abs(stride) for stride in strides], start + first), negative)

    def execute(self) -> None:
        """Runs all steps on the current stream. A kernel that fails is replaced by torch's own functions."""
        for step in self._run:
            try:
                step.run()
            except Exception as error:
                step.fall_back(error)
                step.run()

    def capture(self) -> None:
        """Runs all steps while the current stream is captured: nothing may fail."""
        for step in self._run:
            step.run()

    @property
    def unsafe(self) -> list[Step]:
        """Steps whose kernels a CUDA graph cannot contain."""
        return [step for step in self._run if not step.is_graph_safe]

    @property
    def constant_steps(self) -> int:
        """The number of steps that only read constants."""
        return len(self._constant_steps)


def _identity(step: dict[str, Any], keys: dict[int, Any]) -> Any:
    """What a step computes, for steps that only read constants: equal steps of different plans have equal results."""

    def of(row: Row | None) -> Any:
        if row is None:
            return None
        kind, index, shape, strides, offset, dtype = row
        return (keys.get(index) if kind == "arena" else index, kind, tuple(shape), tuple(strides), offset, dtype)

    outputs = [None if row is None else (tuple(row[2]), tuple(row[3]), row[4], row[5]) for row in step["outputs"]]
    return (step["operation"], tuple(sorted(step["params"].items())), tuple(map(of, step["inputs"])), tuple(outputs))


def constant_buffers(steps: list[dict[str, Any]]) -> dict[int, list[int]]:
    """Buffers of the arena whose values depend on constants only, and the steps that write them."""
    writers: dict[int, list[int]] = {}
    changed: set[int] = set()
    for index, step in enumerate(steps):
        for row in step["outputs"]:
            if row is not None and row[0] == "arena":
                writers.setdefault(row[1], []).append(index)
        for position in step["written"]:
            row = step["inputs"][position]
            if row[0] == "arena":
                changed.add(row[1])
    constant = set(writers) - changed

    def is_constant(step: dict[str, Any]) -> bool:
        outputs = [row for row in step["outputs"] if row is not None]
        reads = [row for row in step["inputs"] if row is not None]
        return (
            not step["written"]
            and all(row[0] == "arena" and row[1] in constant for row in outputs)
            and all(row[0] == "constant" or (row[0] == "arena" and row[1] in constant) for row in reads)
        )

    while True:
        kept = {buffer for buffer in constant if all(is_constant(steps[writer]) for writer in writers[buffer])}
        if kept == constant:
            # In the order in which they are computed.
            return {buffer: writers[buffer] for buffer in sorted(constant, key=lambda one: writers[one])}
        constant = kept
