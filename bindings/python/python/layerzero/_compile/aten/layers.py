"""Layers: linear, norms, convolutions and pooling."""

from __future__ import annotations

from typing import Any

from layerzero._compile.aten.base import Call, Tensor, Unsupported, handles

_CATALOG = ("float32", "float16", "bfloat16")


@handles("aten.linear.default")
def linear(call: Call, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    return Tensor(call.build.linear(x.node, weight.node, None if bias is None else bias.node))


@handles("aten.layer_norm.default")
def layer_norm(call: Call, x: Tensor, normalized: list[Any], weight: Tensor | None = None, bias: Tensor | None = None,
               eps: float = 1e-5, *_: Any) -> Tensor:
    if len(normalized) != 1 or call.dtype not in _CATALOG or (weight is None and bias is not None):
        raise Unsupported("a layer norm over several dimensions, of float64, or with a bias alone")
    inputs = [x.node, None if weight is None else weight.node, None if bias is None else bias.node]
    return Tensor(call.build.call("norm.layer", inputs, eps=float(eps)))


@handles("aten.rms_norm.default")
def rms_norm(call: Call, x: Tensor, normalized: list[Any], weight: Tensor | None = None, eps: float | None = None) -> Tensor:
    if len(normalized) != 1 or call.dtype not in _CATALOG:
        raise Unsupported("an RMS norm over several dimensions or of float64")
    if eps is None:
        import torch

        eps = torch.finfo(call.meta.dtype).eps
    return Tensor(call.build.call("norm.rms", [x.node, None if weight is None else weight.node], eps=float(eps)))


@handles("aten.batch_norm.default", "aten._native_batch_norm_legit_no_training.default", "aten.cudnn_batch_norm.default")
def batch_norm(call: Call, x: Tensor, weight: Tensor | None, bias: Tensor | None, mean: Tensor, variance: Tensor,
               *rest: Any) -> Tensor:
    if len(rest) == 4 and rest[0]:
        raise Unsupported("a batch norm in training mode; call model.eval() first")
    eps = float(rest[2] if len(rest) == 4 else rest[1])
    build = call.build
    scale = build.unary("rsqrt", build.binary_scalar("add", variance.node, eps))
    if weight is not None:
        scale = build.binary("mul", scale, weight.node)
    shift = build.binary("mul", mean.node, scale)
    shift = build.unary("neg", shift) if bias is None else build.binary("sub", bias.node, shift)
    channels = build.shape(scale)[0]
    shape = [channels] + [1] * (call.rank(x) - 2)
    scaled = build.binary("mul", x.node, build.reshape(scale, shape))
    return Tensor(build.binary("add", scaled, build.reshape(shift, shape)))


@handles("aten.group_norm.default")
def group_norm(call: Call, x: Tensor, groups: int, weight: Tensor | None = None, bias: Tensor | None = None,
               eps: float = 1e-5, *_: Any) -> Tensor:
    if eps < 0:
        raise Unsupported("a group norm with a negative eps")
    build = call.build
    shape = build.shape(x.node)
    grouped = build.reshape(x.node, [shape[0], groups, -1])
    mean = build.reduce("mean", grouped, [2], True)
    centered = build.binary("sub", grouped, mean)
    variance = build.reduce("mean", build.unary("square", centered), [2], True)
    scaled = build.binary("mul", centered, build.unary("rsqrt", build.binary_scalar("add", variance, float(eps))))
    result = build.reshape(scaled, shape)
    channels = [shape[1]] + [1] * (len(shape) - 2)
    if weight is not None:
        result = build.binary("mul", result, build.reshape(weight.node, channels))
    if bias is not None:
        result = build.binary("add", result, build.reshape(bias.node, channels))
    return Tensor(result)


def _pair(values: Any, count: int) -> list[int]:
    values = [values] if isinstance(values, int) else list(values)
    return values * count if len(values) == 1 else values


@handles("aten.conv2d.default", "aten.conv1d.default", "aten.conv2d.padding", "aten.conv1d.padding", "aten.convolution.default")
def convolution(call: Call, x: Tensor, weight: Tensor, bias: Tensor | None = None, stride: Any = 1, padding: Any = 0,
                dilation: Any = 1, *rest: Any) -> Tensor:
    if len(rest) == 3 and rest[0]:
        raise Unsupported("a transposed convolution")
    groups = rest[-1] if rest else 1
    spatial = call.rank(weight) - 2
    if spatial not in (1, 2):
        raise Unsupported(f"a convolution over {spatial} dimensions")
    if call.rank(x) == spatial + 1:
        x = Tensor(call.build.reshape(x.node, [1, *call.build.shape(x.node)]))
    stride, dilation = _pair(stride, spatial), _pair(dilation, spatial)
    build = call.build
    kernel = build.shape(weight.node)[2:]
    if padding == "same":
        pads = [(dilation[i] * (kernel[i] - 1) // 2, dilation[i] * (kernel[i] - 1) - dilation[i] * (kernel[i] - 1) // 2)
                for i in range(spatial)]
    elif padding == "valid":
        pads = [(0, 0)] * spatial
    else:
        pads = [(size, size) for size in _pair(padding, spatial)]
    images, filters = x.node, weight.node
    if spatial == 1:
        shape, sizes = build.shape(images), build.shape(filters)
        images = build.reshape(images, [shape[0], shape[1], 1, shape[2]])
        filters = build.reshape(filters, [sizes[0], sizes[1], 1, sizes[2]])
        stride, dilation, pads = [1, *stride], [1, *dilation], [(0, 0), *pads]
    result = build.call(
        "primitive.conv2d", [images, filters, None if bias is None else bias.node],
        stride_h=stride[0], stride_w=stride[1], dilation_h=dilation[0], dilation_w=dilation[1], groups=groups,
        pad_top=pads[0][0], pad_bottom=pads[0][1], pad_left=pads[1][0], pad_right=pads[1][1],
    )
    return Tensor(build.reshape(result, call.shape))


def _pool(call: Call, x: Tensor, function: str, kernel: Any, stride: Any, padding: Any, dilation: Any, ceil: bool,
          count_include_pad: bool = True) -> Tensor:
    if ceil:
        raise Unsupported("pooling with ceil_mode")
    spatial = 2
    kernel = _pair(kernel, spatial)
    stride = _pair(stride, spatial) if stride else kernel
    padding, dilation = _pair(padding, spatial), _pair(dilation, spatial)
    shape = call.build.shape(x.node)
    images = x.node if len(shape) == 4 else call.build.reshape(x.node, [1, *shape])
    result = call.build.call(
        "primitive.pool2d", [images], function=function, kernel_h=kernel[0], kernel_w=kernel[1], stride_h=stride[0],
        stride_w=stride[1], pad_top=padding[0], pad_bottom=padding[0], pad_left=padding[1], pad_right=padding[1],
        dilation_h=dilation[0], dilation_w=dilation[1], count_include_pad=count_include_pad,
    )
    return Tensor(call.build.reshape(result, call.shape))


@handles("aten.max_pool2d.default")
def max_pool2d(call: Call, x: Tensor, kernel: Any, stride: Any = None, padding: Any = 0, dilation: Any = 1,
               ceil_mode: bool = False) -> Tensor:
    return _pool(call, x, "maximum", kernel, stride, padding, dilation, ceil_mode)


@handles("aten.avg_pool2d.default")
def avg_pool2d(call: Call, x: Tensor, kernel: Any, stride: Any = None, padding: Any = 0, ceil_mode: bool = False,
               count_include_pad: bool = True, divisor_override: int | None = None) -> Tensor:
    if divisor_override is not None:
        raise Unsupported("average pooling with divisor_override")
    return _pool(call, x, "average", kernel, stride, padding, 1, ceil_mode, count_include_pad)


@handles("aten.adaptive_avg_pool2d.default", "aten.adaptive_avg_pool1d.default")
def adaptive_avg_pool(call: Call, x: Tensor, output: list[int]) -> Tensor:
    if any(size != 1 for size in output):
        raise Unsupported("adaptive pooling to more than one element")
    rank = call.rank(x)
    return Tensor(call.build.reduce("mean", x.node, list(range(rank - len(output), rank)), True))
