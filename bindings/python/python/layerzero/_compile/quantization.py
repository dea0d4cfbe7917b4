"""Quantized weights: the options of `lz.compile`, and how much results differ."""

from __future__ import annotations

from typing import Any, NamedTuple

from layerzero._native import CompiledGraph

_FORMATS = ("int8", "int4")


class QuantizedLayer(NamedTuple):
    """A linear layer: bytes of its weights before and after, and the norm of their change relative to their norm."""

    name: str
    shape: tuple[int, int]
    bytes_before: int
    bytes_after: int
    error: float | None
    kept: str | None

    def __str__(self) -> str:
        head = f"{self.name} {list(self.shape)}"
        if self.error is None:
            return f"{head}: kept, {self.kept}"
        return f"{head}: {self.bytes_before} to {self.bytes_after} bytes, error {self.error:.2e}"


class Accuracy(NamedTuple):
    """The layers, and per output of the sample inputs the norm of its change relative to its norm."""

    layers: list[QuantizedLayer]
    outputs: list[float]

    @property
    def bytes_before(self) -> int:
        """Bytes of all weights of linear layers without quantization."""
        return sum(layer.bytes_before for layer in self.layers)

    @property
    def bytes_after(self) -> int:
        """Bytes of all weights of linear layers."""
        return sum(layer.bytes_after for layer in self.layers)

    def __str__(self) -> str:
        total = f"{len(self.layers)} linear layers, {self.bytes_before} to {self.bytes_after} bytes"
        outputs = [f"output {index}: error {error:.2e}" for index, error in enumerate(self.outputs)]
        return "\n".join([total, *outputs, *map(str, self.layers)])


def options(weights: str | None, group: int | None, activations: str | None, tied: bool) -> dict[str, Any] | None:
    """The argument `quantization` of `GraphBuilder.finish`."""
    if weights is None:
        if group is not None or activations is not None:
            raise ValueError("group and activations need weights='int8' or 'int4'")
        return None
    if weights not in _FORMATS:
        raise ValueError(f"weights is {weights!r}, expected one of {', '.join(_FORMATS)}")
    if activations not in (None, "int8"):
        raise ValueError(f"activations is {activations!r}, expected 'int8' or None")
    if group is None:
        # A scale per output feature is accurate enough for eight bits, not for four.
        group = 128 if weights == "int4" else 0
    return {"weights": weights, "group": group, "int8_activations": activations == "int8", "tied": tied, "panels": True}


def for_executor(options: dict[str, Any] | None, is_native: bool) -> dict[str, Any] | None:
    """The same options for an executor: kernels of devices read weights in rows, native ones in panels."""
    return None if options is None else {**options, "panels": is_native}


def accuracy(graph: CompiledGraph, expected: list[Any], found: list[Any]) -> Accuracy:
    """The report of a graph, and of results with and without quantization."""
    layers = [
        QuantizedLayer(name, (shape[0], shape[1]), stored[0], stored[1], error, kept)
        for name, shape, stored, error, kept in graph.quantized_layers
    ]
    return Accuracy(layers, [_relative_error(a, b) for a, b in zip(expected, found, strict=True)])


def _relative_error(expected: Any, found: Any) -> float:
    norm = float(expected.double().norm())
    difference = float((expected.double() - found.double()).norm())
    return difference / norm if norm else difference
