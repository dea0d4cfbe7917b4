"""Sessions on a device: programs by the sizes of their inputs, kept with their memory and their CUDA graphs."""

from __future__ import annotations

import threading
import weakref
from typing import Any

import torch

from layerzero._compile.aten.base import DTYPES_BY_NAME
from layerzero._compile.device import report, tuning
from layerzero._compile.device.capture import Capturer, refusal
from layerzero._compile.device.constants import Constants
from layerzero._compile.device.memory import Arena, StagingRing
from layerzero._compile.device.program import Program
from layerzero._native import CompiledGraph, GraphImportError, ValidationError

#: Programs that are kept per session: those of the sizes that ran last.
MAX_PROGRAMS = 32
#: Sets of tensors changed in place (caches of generations) whose programs are kept: programs keep that memory.
MAX_CACHES = 4

# Sizes of every input, and its address if it is changed in place.
Key = tuple[tuple[tuple[int, ...], int | None], ...]


def _caches(key: Key) -> tuple[int, ...]:
    return tuple(address for _, address in key if address is not None)


class Prepared:
    """A program with its inputs: tensors that were on the host in its first run come through a staging ring."""

    def __init__(self, session: DeviceGraph, inputs: list[torch.Tensor], generation: int) -> None:
        self.generation = generation
        self.runs = 0
        self.graph: Any = None
        self.not_captured: str | None = None
        types = session.input_types
        self._staged = [
            index for index, tensor in enumerate(inputs) if tensor.device != session.device and not session.mutable[index]
        ]
        staging = [(list(inputs[index].shape), types[index][1]) for index in self._staged]
        self._ring = StagingRing(staging, session.device) if staging else None
        static: list[torch.Tensor] = []
        staged = iter(self._ring.tensors if self._ring is not None else ())
        for index, tensor in enumerate(inputs):
            if session.mutable[index]:
                static.append(tensor)
            elif index in self._staged:
                static.append(next(staged))
            else:
                static.append(torch.empty(tensor.shape, dtype=tensor.dtype, device=session.device))
        self._static = static
        self._copied = [index for index in range(len(inputs)) if not session.mutable[index] and index not in self._staged]
        plan = session.native.device_plan([list(tensor.shape) for tensor in inputs], str(session.device), session.selects)
        arena = session.arena.reserve(max(plan["arena_bytes"], 1))
        self.program = Program(plan, arena, session.constants, static, session.computed)

    def load(self, inputs: list[torch.Tensor]) -> None:
        """Copies inputs to where the program reads them, on the current stream."""
        if self._ring is not None:
            on_host = [inputs[index] for index in self._staged]
            if any(tensor.device.type != "cpu" for tensor in on_host):
                for index in self._staged:
                    self._static[index].copy_(inputs[index])
            else:
                self._ring.upload(on_host)
        for index in self._copied:
            self._static[index].copy_(inputs[index])


class DeviceGraph:
    """A compiled graph whose steps torch runs on a device. It has the interface of `CompiledGraph`.

    Threads may share it: their runs follow each other. On CUDA a run is enqueued on the current stream, and the host does not wait.
    """

    def __init__(
        self, native: CompiledGraph, constants: Constants, *, nan: str = "allow", on_change: str = "replan", takes_host_inputs: bool = False
    ) -> None:
        self.native = native
        self.device = constants.device
        # On the host the engine would select native kernels, which torch does not run.
        self.selects = self.device.type == "cuda"
        self.constants = constants.tensors(native)
        self.input_types = native.input_types
        self.mutable = native.mutable_inputs
        self.arena = Arena(self.device)
        #: Results of steps that only read constants, kept as long as a program uses them.
        self.computed: weakref.WeakValueDictionary[Any, torch.Tensor] = weakref.WeakValueDictionary()
        self._dtypes = [DTYPES_BY_NAME[dtype] for _, dtype, _ in self.input_types]
        self._nan, self._on_change, self._takes_host_inputs = nan, on_change, takes_host_inputs
        self._prepared: dict[Key, Prepared] = {}
        self._capturer = Capturer(self.device) if self.device.type == "cuda" else None
        # A finalizer of caches may run while the lock is held.
        self._lock = threading.RLock()
        self._stream: Any = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self.native, name)

    def _sizes(self) -> list[list[list[int]]]:
        """The shapes of the inputs of all programs that are kept."""
        sizes = [[list(shape) for shape, _ in key] for key in self._prepared]
        return [one for index, one in enumerate(sizes) if one not in sizes[:index]]

    def freeze(self) -> str:
        """The decisions of all programs that are kept, as the text of a lockfile."""
        with self._lock:
            return self.native.device_freeze(self._sizes(), str(self.device), self.selects)

    def verify_decisions(self, text: str) -> list[str]:
        """How the decisions of all programs that are kept differ from the text of a lockfile."""
        with self._lock:
            return self.native.device_verify(text, self._sizes(), str(self.device), self.selects)

    def save(self, path: str) -> None:
        """Writes the graph, copies of its constants and the decisions of all programs that are kept into one file."""
        with self._lock:
            rows = self.native.constants
            copies = {index: self.constants[index].cpu() for index, (*_, is_on_host) in enumerate(rows) if not is_on_host}
            self.native.device_save(path, copies, self._sizes(), str(self.device), self.selects)

    def tune(self, shapes: list[list[int]], samples: int = 20) -> list[dict[str, Any]]:
        """Measures the kernels of every different step for which the engine selects one, with the tensors of the program."""
        with self._lock, torch.no_grad():
            return tuning.tune(self._like(shapes).program, samples)

    @property
    def cached_plans(self) -> int:
        """The number of programs that are kept."""
        return len(self._prepared)

    @property
    def captured(self) -> int:
        """The number of programs that are CUDA graphs."""
        return sum(prepared.graph is not None for prepared in self._prepared.values())

    @property
    def fallbacks(self) -> list[str]:
        """Steps whose kernel failed, so that torch's own functions run instead, and why."""
        steps = (step for prepared in self._prepared.values() for step in prepared.program.steps)
        return sorted({f"{step.about['source']}: {step.fallback}" for step in steps if step.fallback})

    def run(self, inputs: list[torch.Tensor]) -> list[torch.Tensor]:
        """Runs the graph. Outputs are new tensors of the device."""
        self._check(inputs)
        with self._lock, torch.no_grad():
            self._follow_stream()
            prepared = self._find(inputs)
            prepared.load(inputs)
            self._execute(prepared)
            outputs = [output.clone() for output in prepared.program.outputs]
        if self._nan == "refuse":
            self._refuse_nan(outputs, self.native.outputs, "contains NaN although no input does")
        return outputs

    def _check(self, inputs: list[torch.Tensor]) -> None:
        if len(inputs) != len(self._dtypes):
            raise ValidationError(f"{len(inputs)} inputs were given, expected {len(self._dtypes)}: {', '.join(self.native.inputs)}")
        for index, (tensor, dtype) in enumerate(zip(inputs, self._dtypes)):
            name = self.input_types[index][0]
            if tensor.dtype is not dtype:
                raise ValidationError(f"input `{name}`: dtype is {tensor.dtype}, expected {dtype}")
            if tensor.device != self.device and (self.mutable[index] or not self._takes_host_inputs):
                raise ValidationError(f"input `{name}` is on {tensor.device}, but the model is on {self.device}")
            if self.mutable[index] and not tensor.is_contiguous():
                raise ValidationError(f"input `{name}` is changed in place and must be dense")
        if self._nan == "refuse":
            self._refuse_nan(inputs, self.native.inputs, "contains NaN, which the NaN policy refuses")

    def _refuse_nan(self, tensors: list[torch.Tensor], names: list[str], message: str) -> None:
        for tensor, name in zip(tensors, names, strict=True):
            if tensor.is_floating_point() and bool(tensor.isnan().any()):
                raise ValidationError(f"`{name}` {message}")

    def _follow_stream(self) -> None:
        """Programs share memory: a run on another stream waits for the one before."""
        if self.device.type != "cuda":
            return
        current = torch.cuda.current_stream(self.device)
        if self._stream is not None and self._stream != current:
            current.wait_stream(self._stream)
        self._stream = current

    def _find(self, inputs: list[torch.Tensor]) -> Prepared:
        """The program for inputs like these. It refers to tensors that it changes in place by address."""
        key = tuple((tuple(tensor.shape), tensor.data_ptr() if mutable else None) for tensor, mutable in zip(inputs, self.mutable))
        generation = self.native.generation
        found = self._prepared.pop(key, None)
        if found is None or found.generation != generation:
            found = self._replace(found, inputs, generation)
        # The most recent one is last.
        self._prepared[key] = found
        if len(self._prepared) > MAX_PROGRAMS:
            del self._prepared[next(iter(self._prepared))]
        recent = list(dict.fromkeys(_caches(one) for one in reversed(self._prepared)))
        for caches in recent[MAX_CACHES:]:
            self._drop(caches)
        return found

    def _drop(self, caches: tuple[int, ...]) -> None:
        self._prepared = {key: prepared for key, prepared in self._prepared.items() if _caches(key) != caches}

    def forget(self, tensors: list[torch.Tensor]) -> None:
        """Drops the programs that change these tensors in place, and so their memory."""
        with self._lock:
            self._drop(tuple(tensor.data_ptr() for tensor in tensors))

    def _replace(self, stale: Prepared | None, inputs: list[torch.Tensor], generation: int) -> Prepared:
        """A program for the engine's state: the stale one if all kernels are still selected."""
        made = Prepared(self, inputs, self.native.generation)
        if stale is None:
            return made
        planned = [step.about["kernel"] for step in made.program.steps]
        before = [step.about["kernel"] for step in stale.program.steps]
        if planned == before:
            stale.generation = generation
            return stale
        if self._on_change == "refuse":
            changed = [f"{old} was selected, now {new}" for old, new in zip(before, planned) if old != new]
            raise GraphImportError(
                f"the engine's state changed after the model was planned: {'; '.join(changed) or 'the plan has other steps'}; "
                "restore it, or compile the model again"
            )
        return made

    def _execute(self, prepared: Prepared) -> None:
        prepared.runs += 1
        if self._capturer is None or torch.cuda.is_current_stream_capturing():
            prepared.program.execute()
            return
        with torch.cuda.device(self.device):
            if prepared.graph is None and prepared.not_captured is None and prepared.runs > 1:
                self._capture(self._capturer, prepared)
            if prepared.graph is not None:
                prepared.graph.replay()
            elif prepared.not_captured is None:
                self._capturer.warm_up(prepared.program)
            else:
                prepared.program.execute()

    def _capture(self, capturer: Capturer, prepared: Prepared) -> None:
        prepared.not_captured = refusal(prepared.program)
        if prepared.not_captured is None:
            try:
                prepared.graph = capturer.capture(prepared.program)
            except Exception as error:
                prepared.not_captured = f"the capture failed: {type(error).__name__}: {error}"

    def _like(self, shapes: list[list[int]]) -> Prepared:
        """The program for inputs of these shapes; mutable inputs are stand-ins if it did not run yet."""
        for key, prepared in reversed(self._prepared.items()):
            if [list(shape) for shape, _ in key] == shapes:
                return prepared
        inputs = [torch.zeros(shape, dtype=dtype, device=self.device) for shape, dtype in zip(shapes, self._dtypes, strict=True)]
        return Prepared(self, inputs, self.native.generation)

    def plan(self, shapes: list[list[int]]) -> dict[str, Any]:
        """The program for inputs of these shapes, as data."""
        return report.as_data(self, self._like(shapes))

    def explain(self, shapes: list[list[int]]) -> str:
        """Everything about the model for inputs of these shapes, as text."""
        return report.as_text(self, self._like(shapes))
