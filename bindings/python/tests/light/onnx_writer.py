"""ONNX models as bytes, without the onnx package: the messages that tests need."""

from __future__ import annotations

import numpy as np

CODES = {np.dtype(np.float32): 1, np.dtype(np.int64): 7}


def _varint(number: int) -> bytes:
    number &= (1 << 64) - 1
    parts = bytearray()
    while number >= 0x80:
        parts.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*parts, number])


def number(field: int, value: int) -> bytes:
    """An integer field."""
    return _varint(field << 3) + _varint(value)


def data(field: int, value: bytes | str) -> bytes:
    """A text, bytes or message field."""
    content = value.encode() if isinstance(value, str) else value
    return _varint(field << 3 | 2) + _varint(len(content)) + content


def node(operator: str, inputs: str, outputs: str, **ints: int) -> bytes:
    """A node; inputs and outputs are separated by spaces."""
    parts = [data(1, name) for name in inputs.split()] + [data(2, name) for name in outputs.split()]
    parts += [data(3, f"node_{outputs.split()[0]}"), data(4, operator)]
    parts += [data(5, data(1, name) + number(3, value) + number(20, 2)) for name, value in ints.items()]
    return b"".join(parts)


def tensor(name: str, array: np.ndarray) -> bytes:
    """A constant."""
    shape = b"".join(number(1, size) for size in array.shape)
    return shape + number(2, CODES[array.dtype]) + data(8, name) + data(9, array.tobytes())


def external(name: str, array: np.ndarray, location: str, offset: int = 0) -> bytes:
    """A constant whose elements are in another file."""
    entry = lambda key, value: data(13, data(1, key) + data(2, value))  # noqa: E731
    shape = b"".join(number(1, size) for size in array.shape)
    place = entry("location", location) + entry("offset", str(offset)) + entry("length", str(array.nbytes))
    return shape + number(2, CODES[array.dtype]) + data(8, name) + place + number(14, 1)


def value(name: str, dims: str, code: int = 1) -> bytes:
    """An input or output: dimensions are numbers or names."""
    dim = lambda text: number(1, int(text)) if text.isdigit() else data(2, text)  # noqa: E731
    shape = b"".join(data(1, dim(text)) for text in dims.split())
    return data(1, name) + data(2, data(1, number(1, code) + data(2, shape)))


def model(nodes: list[bytes], constants: list[bytes], inputs: list[bytes], outputs: list[bytes], opset: int = 18) -> bytes:
    """A model."""
    graph = b"".join(
        [data(1, one) for one in nodes] + [data(5, one) for one in constants]
        + [data(11, one) for one in inputs] + [data(12, one) for one in outputs]
    )
    return number(1, 10) + data(8, data(1, "") + number(2, opset)) + data(7, graph)
