"""Parameters and buffers of a model as constants of a graph whose steps run on a device."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from layerzero._compile.aten.base import DTYPES_BY_NAME
from layerzero._native import CompiledGraph, GraphBuilder, GraphImportError

#: Smaller tensors are copied to the host, where passes read and fold them: masks, frequencies, scales, indices.
HOST_BYTES = 1 << 20


def device_of(tensors: Iterable[Any]) -> torch.device | None:
    """The device of a model: that of its tensors which are not on the host, `None` if all are."""
    devices = {tensor.device for tensor in tensors if isinstance(tensor, torch.Tensor) and tensor.device.type != "cpu"}
    if not devices:
        return None
    if len(devices) > 1:
        raise GraphImportError(f"the model is on several devices, {', '.join(sorted(map(str, devices)))}; a compiled model runs on one")
    (device,) = devices
    if device.type != "cuda":
        raise GraphImportError(f"the model is on {device}; compiled models run on the host and on CUDA devices")
    return torch.device("cuda", torch.cuda.current_device() if device.index is None else device.index)


def constants_on(device: torch.device | str) -> Constants:
    """The constants of a graph that was read from a file, on a device by name."""
    chosen = torch.device(device)
    if chosen.type == "cpu":
        return Constants(torch.device("cpu"))
    if chosen.type != "cuda":
        raise ValueError(f"device is {str(device)!r}; compiled models run on the host and on CUDA devices")
    return Constants(torch.device("cuda", torch.cuda.current_device() if chosen.index is None else chosen.index))


class Constants:
    """The tensors that a graph refers to. Large ones stay on the device and are never read by passes.

    With `reads_all`, all of them are copied to the host while the graph is built: quantization reads their elements.
    """

    def __init__(self, device: torch.device, reads_all: bool = False) -> None:
        self.device = device
        self._reads_all = reads_all
        # By address: the tensor of the device whose elements a constant of the graph has.
        self._known: dict[int, torch.Tensor] = {}
        self._borrowed: list[torch.Tensor] = []

    def add(self, build: GraphBuilder, name: str, tensor: torch.Tensor) -> int:
        """The node of a constant."""
        tensor = tensor.detach().resolve_neg().resolve_conj()
        if tensor.device.type == "cpu" or tensor.nbytes <= HOST_BYTES or self._reads_all:
            host = tensor.cpu().contiguous()
            self._remember(host, tensor.contiguous().to(self.device))
            return build.constant(name, host)
        self._remember(tensor, tensor)
        return build.constant(name, tensor, on_device=True)

    def _remember(self, given: torch.Tensor, on_device: torch.Tensor) -> None:
        self._borrowed.append(given)
        if given.numel():
            self._known[given.data_ptr()] = on_device

    def tensors(self, graph: CompiledGraph) -> list[torch.Tensor]:
        """Every constant of a compiled graph, on the device and with the strides that the graph assumes."""
        return [self._tensor(graph, index, *row) for index, row in enumerate(graph.constants)]

    def _tensor(
        self, graph: CompiledGraph, index: int, name: str, dtype: str, shape: list[int], strides: list[int], address: int, is_on_host: bool
    ) -> torch.Tensor:
        known = self._known.get(address)
        if known is not None and str(known.dtype).removeprefix("torch.") == dtype:
            return known.as_strided(shape, strides, known.storage_offset())
        if not is_on_host:
            raise GraphImportError(f"the constant `{name}` is on a device, but is no tensor of the model")
        # A constant that a pass computed, or that was read from a file.
        data = bytearray(graph.constant_bytes(index))
        if not data:
            return torch.empty(shape, dtype=DTYPES_BY_NAME[dtype], device=self.device)
        return torch.frombuffer(data, dtype=DTYPES_BY_NAME[dtype]).to(self.device).as_strided(shape, strides)
