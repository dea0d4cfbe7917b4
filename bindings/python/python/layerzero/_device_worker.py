"""The worker process of an isolated backend whose kernels run on a device, and the protocol between it and its host.

A host starts this file as a program (`layerzero.isolate_backend`), in an environment of its own: it needs torch and the backend's module, but
not LayerZero. A message is a JSON object and bytes. Device memory crosses as CUDA IPC handles, so tensors are not copied; the bytes of host
tensors are part of the message. A handle is open only during the call that needs it, because memory must not be freed while another process
has it open.
"""

from __future__ import annotations

import ctypes
import importlib
import inspect
import json
import os
import select
import socket
import struct
import sys
from collections.abc import Callable, Sequence
from typing import Any

_LENGTHS = struct.Struct("<QQ")
#: A worker without calls for so long releases cached device memory.
_IDLE_SECONDS = 1.0


def send(connection: socket.socket, message: dict[str, Any], payload: Sequence[bytes | memoryview] = ()) -> None:
    """Sends a message."""
    text = json.dumps(message).encode()
    connection.sendall(_LENGTHS.pack(len(text), sum(len(one) for one in payload)) + text)
    for one in payload:
        connection.sendall(one)


def receive(connection: socket.socket, most: int = 1 << 40) -> tuple[dict[str, Any], memoryview] | None:
    """The next message, `None` at the end of the connection. A message with more than `most` bytes is an error."""
    lengths = _read(connection, _LENGTHS.size)
    if lengths is None:
        return None
    text_length, length = _LENGTHS.unpack(lengths)
    if text_length > 1 << 26 or length > most:
        raise ValueError(f"a message of {text_length} and {length} bytes is too long")
    text, payload = _read(connection, text_length), _read(connection, length)
    if text is None or payload is None:
        return None
    message = json.loads(bytes(text))
    if not isinstance(message, dict):
        raise ValueError("a message is an object")
    return message, payload


def _read(connection: socket.socket, count: int) -> memoryview | None:
    whole = memoryview(bytearray(count))
    done = 0
    while done < count:
        found = connection.recv_into(whole[done:])
        if found == 0:
            return None
        done += found
    return whole


class _Handle(ctypes.Structure):
    data: Any
    _fields_ = (("data", ctypes.c_ubyte * 64),)


class Driver:
    """The functions of the CUDA driver that share memory between processes. The thread needs a current context, which torch makes."""

    def __init__(self) -> None:
        self._library = ctypes.CDLL("libcuda.so.1")
        self._library.cuIpcOpenMemHandle_v2.argtypes = [ctypes.POINTER(ctypes.c_uint64), _Handle, ctypes.c_uint]
        self._library.cuMemGetAddressRange_v2.argtypes = [ctypes.POINTER(ctypes.c_uint64), ctypes.POINTER(ctypes.c_size_t), ctypes.c_uint64]
        self._library.cuIpcGetMemHandle.argtypes = [ctypes.POINTER(_Handle), ctypes.c_uint64]
        self._library.cuIpcCloseMemHandle.argtypes = [ctypes.c_uint64]

    def export(self, pointer: int) -> tuple[str, int]:
        """The handle of the allocation that contains an address, and the offset of the address in it."""
        base, size, handle = ctypes.c_uint64(), ctypes.c_size_t(), _Handle()
        self._check("cuMemGetAddressRange", self._library.cuMemGetAddressRange_v2(base, size, pointer))
        self._check("cuIpcGetMemHandle", self._library.cuIpcGetMemHandle(handle, base))
        return bytes(handle.data).hex(), pointer - base.value

    def open(self, handle: str) -> int:
        """The address of another process's allocation in this one."""
        found, opened = _Handle(), ctypes.c_uint64()
        found.data[:] = bytes.fromhex(handle)
        lazy_peer_access = 1
        self._check("cuIpcOpenMemHandle", self._library.cuIpcOpenMemHandle_v2(opened, found, lazy_peer_access))
        return opened.value

    def close(self, address: int) -> None:
        """Closes an allocation that was opened."""
        self._check("cuIpcCloseMemHandle", self._library.cuIpcCloseMemHandle(address))

    def _check(self, name: str, status: int) -> None:
        if status:
            text = ctypes.c_char_p()
            self._library.cuGetErrorName(status, ctypes.byref(text))
            raise OSError(f"{name}: {(text.value or b'').decode() or status}")


def extent(shape: Sequence[int], strides: Sequence[int]) -> int:
    """The number of elements from the first to the last one of a tensor."""
    return 0 if 0 in shape else 1 + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))


class _Memory:
    """Device memory as an object that torch accepts."""

    def __init__(self, address: int, count: int) -> None:
        self.__cuda_array_interface__ = {"shape": (count,), "typestr": "|u1", "data": (address, False), "version": 2}


class _Mapped:
    """The tensors of one call: allocations of the host are open until the end of the call."""

    def __init__(self, payload: memoryview) -> None:
        self.payload = payload
        self.opened: dict[tuple[int, str], int] = {}

    def tensor(self, described: dict[str, Any]) -> Any:
        """A tensor over the host's memory, or over the bytes of the message."""
        import torch

        shape, dtype = tuple(described["shape"]), getattr(torch, described["dtype"])
        index = described.get("device")
        if index is None:
            start, count = described["bytes"]
            flat = torch.frombuffer(self.payload, dtype=torch.uint8, offset=start, count=count) if count else torch.empty(0, dtype=torch.uint8)
            return flat.view(dtype).view(shape)
        device = torch.device("cuda", index)
        torch.cuda.set_device(device)
        strides = tuple(described["strides"])
        count = extent(shape, strides)
        if count == 0:
            return torch.empty(shape, dtype=dtype, device=device)
        # Makes the device's context the current one.
        torch.empty(1, device=device)
        key = (index, described["handle"])
        if key not in self.opened:
            self.opened[key] = _driver().open(described["handle"])
        memory = _Memory(self.opened[key] + described["offset"], count * dtype.itemsize)
        return torch.as_tensor(memory, device=device).view(dtype).as_strided(shape, strides)

    def close(self) -> None:
        """Waits for the devices and closes the allocations."""
        import torch

        for index in {index for index, _ in self.opened}:
            torch.cuda.synchronize(index)
        while self.opened:
            (index, _), address = self.opened.popitem()
            torch.cuda.set_device(index)
            _driver().close(address)


_DRIVER: Driver | None = None


def _driver() -> Driver:
    global _DRIVER
    if _DRIVER is None:
        _DRIVER = Driver()
    return _DRIVER


def taken_inputs(function: Callable[..., Any], inputs: Sequence[Any]) -> list[Any]:
    """The inputs that a kernel takes. Its function may lack optional inputs that its operation got later; those must be absent."""
    parameters = inspect.signature(function).parameters.values()
    if any(one.kind is one.VAR_POSITIONAL for one in parameters):
        return list(inputs)
    count = sum(one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD) for one in parameters)
    if any(one is not None for one in inputs[count:]):
        raise NotImplementedError(f"the function takes {count} inputs, and the call has more")
    return list(inputs[:count])


def _call(function: Callable[..., Any], message: dict[str, Any], mapped: _Mapped) -> list[Any]:
    """Calls a kernel and writes its results into the host's tensors. Returns its host tensors, whose bytes are sent back."""
    inputs = taken_inputs(function, [None if one is None else mapped.tensor(one) for one in message["inputs"]])
    outputs = [mapped.tensor(one) for one in message["outputs"]]
    if outputs and "out" in inspect.signature(function).parameters:
        function(*inputs, **message["params"], out=outputs[0] if len(outputs) == 1 else tuple(outputs))
    else:
        result = function(*inputs, **message["params"])
        results = list(result) if isinstance(result, (tuple, list)) else [] if result is None else [result]
        if len(results) != len(outputs):
            raise TypeError(f"the kernel returned {len(results)} results instead of {len(outputs)}")
        for number, (target, one) in enumerate(zip(outputs, results, strict=True)):
            if (one.shape, one.dtype) != (target.shape, target.dtype):
                found = f"{one.dtype} {list(one.shape)}"
                raise TypeError(f"result {number} is {found} instead of {target.dtype} {list(target.shape)}")
            target.copy_(one)
    return [one for one in outputs if one.device.type == "cpu"]


def _bytes_of(tensor: Any) -> bytes:
    import torch

    return bytes(tensor.contiguous().view(-1).view(torch.uint8).numpy())


def _serve(connection: socket.socket, kernels: dict[str, Callable[..., Any]]) -> int:
    while True:
        if not select.select([connection], [], [], _IDLE_SECONDS)[0]:
            _release_cache()
        received = receive(connection)
        if received is None:
            return 0
        message, payload = received
        mapped = _Mapped(payload)
        answer: dict[str, Any] = {}
        results: list[bytes] = []
        try:
            results = [_bytes_of(one) for one in _call(kernels[message["kernel"]], message, mapped)]
        except Exception as error:
            answer = _failure(error)
        try:
            mapped.close()
        except Exception as error:
            # A kernel has left the device context in an error state, which lasts until the process ends.
            answer, results = {**_failure(error), "ends": True}, []
        answer["open_handles"] = len(mapped.opened)
        send(connection, answer, results)
        if "ends" in answer:
            return 1


def _release_cache() -> None:
    """Returns memory that torch keeps for later calls: the host cannot ask for it when it needs memory itself."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        torch.cuda.empty_cache()


def _failure(error: Exception) -> dict[str, Any]:
    kind = "declined" if isinstance(error, NotImplementedError) else "memory" if "OutOfMemory" in type(error).__name__ else "failed"
    return {"error": f"{type(error).__name__}: {error}"[:2000], "kind": kind}


def main(module: str, descriptor: int) -> int:
    """Loads the backend, describes it to the host, and serves calls until the connection ends."""
    connection = socket.socket(fileno=descriptor)
    try:
        loaded: Any = importlib.import_module(module)
        kernels, descriptors = dict(loaded.KERNELS), list(loaded.DESCRIPTORS)
        versions = {name: str(getattr(sys.modules.get(name), "__version__", None)) for name in ("torch", "triton")}
    except Exception as error:
        send(connection, {"error": f"{type(error).__name__}: {error}"[:2000]})
        return 1
    send(connection, {"kernels": sorted(kernels), "descriptors": descriptors, "versions": versions, "process": os.getpid()})
    return _serve(connection, kernels)


if __name__ == "__main__":
    # The folder of this file has modules with names of other packages.
    sys.path.pop(0)
    sys.exit(main(sys.argv[1], int(sys.argv[2])))
