"""Primitives by torch, as devices run them, compared with the native kernels of the host."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from layerzero._compile.aten.base import DTYPES_BY_NAME
from layerzero._compile.device import Constants, DeviceGraph
from layerzero._native import GraphBuilder

#: Where the functions run; `tests/cuda/graph.py` sets a GPU.
DEVICE = torch.device("cpu")
NAMES = {dtype: name for name, dtype in DTYPES_BY_NAME.items()}
FLOATS = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool)
inf, nan = math.inf, math.nan
ODD = (0.0, -0.0, 1.0, -1.0, 0.5, -2.5, 3.0, 100.0, -100.0, inf, -inf, nan)


def run(operation: str, inputs: list[torch.Tensor | None], params: dict[str, Any], outputs: int = 1) -> None:
    build = GraphBuilder()
    nodes = [None if x is None else build.input(f"x{index}", list(x.shape), NAMES[x.dtype]) for index, x in enumerate(inputs)]
    call = build.call(f"primitive.{operation}", nodes, **params)
    build.output("first", call)
    for output in range(1, outputs):
        build.output(f"output{output}", build.projection(call, output))
    native = build.finish(optimize=False)
    given = [x for x in inputs if x is not None]
    expected = native.run(given)
    found = [one.cpu() for one in DeviceGraph(native, Constants(DEVICE)).run([x.to(DEVICE) for x in given])]
    for one, other in zip(found, expected, strict=True):
        tolerance = {torch.float32: 2e-5, torch.bfloat16: 2e-2, torch.float16: 3e-3, torch.float64: 1e-10}.get(other.dtype, 0.0)
        torch.testing.assert_close(one, other, rtol=tolerance, atol=tolerance, equal_nan=True, msg=lambda text: f"{operation} {params}: {text}")


def floats(dtype: torch.dtype, *shape: int) -> torch.Tensor:
    x = torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))) * 3
    flat = x.view(-1)
    flat[: len(ODD)] = torch.tensor(ODD)[: flat.numel()]
    return x.to(dtype)


def integers(dtype: torch.dtype, *shape: int, low: int = -9, high: int = 9) -> torch.Tensor:
    x = torch.randint(low, high, shape, generator=torch.Generator().manual_seed(sum(shape)))
    return (x % 2 == 0) if dtype is torch.bool else x.abs().to(dtype) if dtype is torch.uint8 else x.to(dtype)


def enum(operation: str, param: str) -> list[str]:
    from pathlib import Path

    import yaml

    schema = yaml.safe_load((Path(__file__).parents[4] / "schemas/primitives" / f"{operation}.yaml").read_text())
    return schema["params"][param]["values"]


@pytest.mark.parametrize("dtype", FLOATS)
def test_functions_of_floats(dtype):
    x, y = floats(dtype, 5, 12), floats(dtype, 12, 5).t()
    for function in enum("unary", "function"):
        run("unary", [x], {"function": function})
    for function in enum("activation", "function"):
        # Far below 0, 16-bit results of mish and softplus differ in subnormal numbers.
        run("activation", [x], {"function": function})
    for function in enum("binary", "function"):
        if function != "atan2" or dtype in (torch.float32, torch.float64):
            run("binary", [x, y], {"function": function})
        for reversed in (False, True):
            run("binary_scalar", [x.clamp(-3, 3)], {"function": function, "value": 1.5, "reversed": reversed})
    for function in enum("test", "function"):
        run("test", [x], {"function": function})
    for function in enum("compare", "function"):
        run("compare", [x, y], {"function": function})
        for value in (0.1, 0.0, inf, nan):
            run("compare_scalar", [x], {"function": function, "value": value})
    run("where", [x > 0, x, y], {})


@pytest.mark.parametrize("dtype", INTEGERS)
def test_functions_of_integers(dtype):
    a, b = integers(dtype, 5, 12), integers(dtype, 12, 5).t()
    divisor = torch.where(b == 0, torch.ones_like(b), b)
    for function in enum("unary_int", "function"):
        run("unary_int", [a], {"function": function})
    for function in enum("binary_int", "function"):
        second = divisor if function in ("floor_divide", "trunc_divide", "mod", "fmod") else b
        if function == "pow":
            second = b.abs() if b.dtype is not torch.bool else b
        run("binary_int", [a, second], {"function": function})
        for value in (3, -2) if function not in ("pow", "shift_left", "shift_right") else (3,):
            run("binary_int_scalar", [a], {"function": function, "value": value})
    for function in enum("compare", "function"):
        run("compare", [a, b], {"function": function})
        for value in (2.0, 2.5, -2.5, 1e30, -inf, nan):
            run("compare_scalar", [a], {"function": function, "value": value})


def test_a_divisor_of_0_is_an_error():
    a = torch.arange(4)
    for params in ({"function": "mod"},):
        with pytest.raises(ZeroDivisionError):
            _on_device("binary_int", [a, torch.zeros_like(a)], params)
    with pytest.raises(ZeroDivisionError):
        _on_device("binary_int_scalar", [a], {"function": "floor_divide", "value": 0})


def _on_device(operation: str, inputs: list[torch.Tensor], params: dict[str, Any]) -> list[torch.Tensor]:
    build = GraphBuilder()
    nodes = [build.input(f"x{index}", list(x.shape), NAMES[x.dtype]) for index, x in enumerate(inputs)]
    build.output("y", build.call(f"primitive.{operation}", nodes, **params))
    return DeviceGraph(build.finish(optimize=False), Constants(DEVICE)).run([x.to(DEVICE) for x in inputs])


def test_casts_between_all_dtypes():
    for source in (*FLOATS, *INTEGERS):
        x = floats(source, 4, 6) if source.is_floating_point else integers(source, 4, 6)
        for target, name in {torch.float32: "f32", torch.bfloat16: "bf16", torch.int64: "i64", torch.int32: "i32", torch.int8: "i8", torch.uint8: "u8", torch.bool: "bool"}.items():
            if source.is_floating_point and target in (torch.int8, torch.uint8):
                x = torch.where(x.isfinite(), x, torch.ones_like(x))
            run("cast", [x], {"to": name})


def rows() -> Iterator[torch.Tensor]:
    yield torch.randn(3, 4, 17)
    yield torch.randn(2, 9).to(torch.bfloat16)
    yield torch.tensor([[1.0, nan, 3.0], [inf, -inf, 0.0]])


def test_reductions_and_searches():
    for x in rows():
        for function in enum("reduce", "function"):
            run("reduce", [x], {"function": function})
        for log in (False, True):
            run("softmax", [x], {"log": log})
        for function in ("argmax", "argmin"):
            for last in (False, True):
                run("arg_reduce", [x], {"function": function, "last": last})
    for dtype in INTEGERS:
        x = integers(dtype, 3, 7)
        for function in enum("reduce_int", "function"):
            run("reduce_int", [x], {"function": function})
    ties = torch.tensor([[3.0, 1.0, 3.0, 2.0, 1.0, 3.0], [0.0, nan, 5.0, 5.0, -1.0, 2.0]])
    for largest in (False, True):
        for is_sorted in (False, True):
            run("topk", [ties], {"k": 4, "largest": largest, "sorted": is_sorted}, outputs=2)
    for x in (torch.randn(2, 9), torch.randn(2, 9).to(torch.bfloat16), torch.arange(12).view(2, 6), torch.arange(12, dtype=torch.int32).view(2, 6)):
        for exclusive in (False, True):
            for reverse in (False, True):
                run("cumsum", [x], {"exclusive": exclusive, "reverse": reverse})


def test_products_and_windows():
    for shape in ((3, 5), (2, 3, 5), (2, 2, 3, 5)):
        a, b = torch.randn(shape), torch.randn(*shape[:-2], 5, 4)
        for bias in (None, torch.randn(4)):
            for alpha in (1.0, 0.125):
                run("matmul", [a, b, bias], {"alpha": alpha})
    run("matmul", [torch.randn(3, 0), torch.randn(0, 4), None], {})
    run("matmul", [torch.randn(3, 5, dtype=torch.bfloat16), torch.randn(4, 5, dtype=torch.bfloat16).t(), None], {})
    image, kernel = torch.randn(2, 4, 9, 8), torch.randn(6, 2, 3, 2)
    run("conv2d", [image, kernel, torch.randn(6)], {"groups": 2, "pad_top": 1, "pad_right": 2, "stride_h": 2, "dilation_w": 2, "activation": "relu"})
    run("conv2d", [image, torch.randn(6, 4, 1, 1), torch.randn(6), torch.randn(2, 6, 9, 8)], {"activation": "relu"})
    run("conv2d", [image, torch.randn(6, 4, 3, 3), None], {"pad_top": 1, "pad_bottom": 1, "pad_left": 1, "pad_right": 1})
    window = {"kernel_h": 3, "kernel_w": 2, "stride_h": 2, "stride_w": 1, "pad_top": 1, "pad_bottom": 2, "pad_right": 1}
    for params in ({}, {"dilation_h": 2}, {"extra_h": 1, "extra_w": 1}, {"count_include_pad": False}):
        for function in ("maximum", "average"):
            run("pool2d", [image], {"function": function, **window, **params})


def test_movement_of_elements():
    x = torch.randn(2, 6, 3)
    for dtype in (torch.int64, torch.int32):
        indices = torch.tensor([5, -1, 0, 2, 2], dtype=dtype)
        run("gather", [x, indices], {})
        for reduction in enum("scatter", "reduction"):
            run("scatter", [x, indices, torch.randn(2, 5, 3)], {"reduction": reduction})
            run("scatter", [x > 0, indices, torch.randn(2, 5, 3) > 0], {"reduction": reduction})
        places = torch.tensor([[0, 3, 3, -1], [1, 1, 1, 5]], dtype=dtype)
        y = torch.randn(2, 6)
        run("gather_elements", [y, places], {})
        for reduction in enum("scatter", "reduction"):
            run("scatter_elements", [y, places, torch.randn(2, 4)], {"reduction": reduction})
            run("scatter_elements", [y > 0, places, torch.randn(2, 4) > 0], {"reduction": reduction})
    for start in (torch.tensor([2.5]), torch.tensor([3]), torch.tensor([3], dtype=torch.int32), torch.tensor([1.0], dtype=torch.bfloat16)):
        run("arange", [start], {"count": 7, "step": 2.0})
    run("copy", [torch.randn(3, 4).t()], {})
    for bad in (torch.tensor([6]), torch.tensor([-7])):
        if DEVICE.type != "cpu":
            # A GPU reports an index outside as an assertion, after which the process cannot use it.
            break
        with pytest.raises((IndexError, RuntimeError)):
            _on_device("gather", [x, bad], {})
