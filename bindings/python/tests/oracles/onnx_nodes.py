"""ONNX's node tests in memory, and the calls that express each of them.

A node may map to several calls: one for each operation that can express it, each of which must give the whole
result.
"""

import importlib
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np

# Operators that map to operations, by the module that generates their cases: generating all 1884 would take a minute.
MODULES = {
    "Attention": "attention",
    "FlexAttention": "flexattention",
    "RMSNormalization": "rmsnormalization",
    "LayerNormalization": "layernormalization",
    "RotaryEmbedding": "rotaryembedding",
    "Gelu": "gelu",
    "Swish": "swish",
    "SwiGLU": "swiglu",
    "Relu": "relu",
    "MatMul": "matmul",
    "Gemm": "gemm",
    "Gather": "gather",
    "QuantizeLinear": "quantizelinear",
    "DequantizeLinear": "dequantizelinear",
    "Cast": "cast",
    "TensorScatter": "tensorscatter",
}


class Unsupported(Exception):
    """A feature of a node that no operation has."""


@dataclass
class Node:
    """A node with its inputs and expected outputs; absent ones are None."""

    name: str
    operator: str
    attributes: dict[str, Any]
    inputs: list[Any]
    outputs: list[Any]

    def input(self, place: int) -> Any:
        return self.inputs[place] if place < len(self.inputs) else None

    def output(self, place: int) -> Any:
        return self.outputs[place] if place < len(self.outputs) else None

    def get(self, name: str, default: Any) -> Any:
        return self.attributes.get(name, default)

    def only(self, *names: str) -> None:
        for name in self.attributes:
            if name not in names:
                raise Unsupported(f"the attribute {name}")


@dataclass
class Statement:
    """One way to express a node: an operation, a factory of its arguments, and the mapping of its results to the node's outputs."""

    operation: str
    make: Callable[[], dict[str, Any]]
    expected: list[Any]
    # Maps the results and the arguments (which an operation may change in place) to the expected outputs.
    read: Callable[[list[Any], dict[str, Any]], list[Any]] = field(default=lambda results, _: results)


def nodes() -> Iterator[Node]:
    """Every case of these operators that is a single node over tensors."""
    import onnx
    from onnx.backend.test.case import node as suite

    with warnings.catch_warnings():
        # Cases of casts overflow on purpose.
        warnings.simplefilter("ignore")
        for module in MODULES.values():
            importlib.import_module(f"onnx.backend.test.case.node.{module}")
    for case in suite._NodeTestCases:
        graph = case.model.graph
        if "_expanded" in case.name or len(graph.node) != 1 or graph.node[0].op_type not in MODULES:
            continue
        node = graph.node[0]
        attributes = {one.name: onnx.helper.get_attribute_value(one) for one in node.attribute}
        for given, wanted in case.data_sets:
            inputs = dict(zip((value.name for value in graph.input), given, strict=True))
            results = dict(zip((value.name for value in graph.output), wanted, strict=True))
            yield Node(
                case.name,
                node.op_type,
                {key: value.decode() if isinstance(value, bytes) else value for key, value in attributes.items()},
                [array(inputs.get(name)) for name in node.input],
                [array(results.get(name)) for name in node.output],
            )


def array(value: Any) -> Any:
    """Types that numpy lacks are messages, and scalars are numbers."""
    import onnx

    if value is None:
        return None
    return np.asarray(onnx.numpy_helper.to_array(value) if isinstance(value, onnx.TensorProto) else value)


def statements(node: Node) -> list[Statement]:
    """The calls that express a node; raises `Unsupported` with the reason if there are none."""
    found = STATED[node.operator](node)
    for statement in found:
        for value in statement.make().values():
            if isinstance(value, np.ndarray) and value.dtype == np.float64:
                raise Unsupported("float64: the operations compute in float32 at most")
    return found


def simple(operation: str, expected: list[Any], **arguments: Any) -> Statement:
    """A call whose results are the expected outputs, up to their shape."""

    def make() -> dict[str, Any]:
        return {
            name: value.copy() if isinstance(value, np.ndarray) else value
            for name, value in arguments.items()
            if value is not None
        }

    def read(results: list[Any], _: dict[str, Any]) -> list[Any]:
        return [
            np.asarray(found).reshape(wanted.shape) for found, wanted in zip(results, expected, strict=False)
        ]

    return Statement(operation, make, expected, read)


# Attention


def heads_first(value: Any, heads: int) -> Any:
    """``[batch, heads, positions, features]``; with three dimensions the heads are concatenated in the last."""
    if value is None or value.ndim == 4:
        return value
    batch, length, features = value.shape
    return value.reshape(batch, length, heads, features // heads).transpose(0, 2, 1, 3)


def attention(node: Node) -> list[Statement]:
    # `qk_matmul_output` and its modes are an output that no operation has; `softmax_precision` is exceeded by all kernels.
    node.only(
        "is_causal", "kv_num_heads", "q_num_heads", "qk_matmul_output_mode", "scale", "softcap", "softmax_precision",
        "left_window_size", "right_window_size",
    )  # fmt: skip
    q_heads, kv_heads = node.get("q_num_heads", 0), node.get("kv_num_heads", 0)
    q = heads_first(node.input(0), q_heads)
    new_k, new_v = (heads_first(node.input(place), kv_heads) for place in (1, 2))
    past_k, past_v = node.input(4), node.input(5)
    k = new_k if past_k is None else np.concatenate([past_k, new_k], 2)
    v = new_v if past_v is None else np.concatenate([past_v, new_v], 2)
    mask, counts = node.input(3), node.input(6)
    causal = bool(node.get("is_causal", 0))
    windows = node.get("left_window_size", -1), node.get("right_window_size", -1)
    if mask is not None and mask.shape[-1] < k.shape[2]:
        # A mask that is shorter than the keys hides the keys past its end.
        hidden = False if mask.dtype == bool else np.array(-np.inf, mask.dtype)
        padding = np.full((*mask.shape[:-1], k.shape[2] - mask.shape[-1]), hidden, mask.dtype)
        mask = np.concatenate([mask, padding], -1)
    shared = {
        "sm_scale": node.get("scale", None),
        "soft_cap": node.get("softcap", 0.0) or None,
        "layout": "BHSD",
    }
    expected = node.output(0)
    found = [*present(node.output(1), past_k, new_k), *present(node.output(2), past_v, new_v)]

    def answer(operation: str, rows: slice, **more: Any) -> Statement:
        wanted = heads_first(expected, q_heads)[rows]
        call = {"q": q[rows], "k": k[rows], "v": v[rows], **shared, **more}
        return simple(operation, [np.ascontiguousarray(wanted)], **call)

    same_heads = q.shape[1] == k.shape[1]
    whole = ["attention.gqa.prefill", *(["attention.standard.prefill"] if same_heads else [])]
    if counts is None:
        offset = 0 if past_k is None else past_k.shape[2]
        more = window(causal, offset, windows)
        found += [answer(operation, slice(None), mask=mask, **more) for operation in whole]
        if not causal and windows == (-1, -1) and shared["soft_cap"] is None:
            found.append(answer("attention.cross.prefill", slice(None), mask=mask))
        return found
    if not causal and windows == (-1, -1) and shared["soft_cap"] is None:
        found.append(answer("attention.cross.prefill", slice(None), mask=mask, kv_lens=counts.astype(np.int32)))
    if q.shape[2] == 1 and mask is None and windows == (-1, -1):
        for operation in ("gqa", "standard") if same_heads else ("gqa",):
            step = answer(f"attention.{operation}.decode", slice(None), kv_lens=counts.astype(np.int32))
            make = step.make
            step.make = lambda make=make: {**(made := make()), "q": made["q"][:, :, 0].copy()}
            found.append(step)
    # Each batch row has its own number of keys, and its queries are the last of them.
    for row, count in enumerate(counts.tolist()):
        one = slice(row, row + 1)
        hidden = None
        if mask is not None:
            hidden = np.broadcast_to(mask, np.broadcast_shapes(mask.shape, (q.shape[0], q.shape[1], 1, 1)))
            hidden = hidden[one, ..., :count].copy()
        more = window(causal, count - q.shape[2], windows)
        keys = {"k": k[one, :, :count].copy(), "v": v[one, :, :count].copy()}
        found += [answer(operation, one, mask=hidden, **more, **keys) for operation in whole]
    return found


def window(causal: bool, offset: int, sizes: tuple[int, int]) -> dict[str, Any]:
    """The keys that a query sees, relative to its position, which is `offset` after the first key's."""
    left, right = sizes
    more: dict[str, Any] = {"causal": causal}
    if causal or left >= 0 or right >= 0:
        more["causal_offset"] = offset
    if left >= 0:
        more["window_left"] = left
    if right >= 0 and not causal:
        more["window_right"] = right
    return more


def present(expected: Any, past: Any, new: Any) -> list[Statement]:
    """Present keys or values are the past ones followed by the new ones: `kv.append` into a cache whose pages are the batch rows."""
    if expected is None:
        return []
    start = 0 if past is None else past.shape[2]
    cache = np.zeros((new.shape[0], new.shape[1], start + new.shape[2], new.shape[3]), new.dtype)
    if past is not None:
        cache[:, :, :start] = past
    places = np.arange(new.shape[2])[None] + start
    return [append(expected, cache, new, np.broadcast_to(places, (new.shape[0], new.shape[2])))]


def append(expected: Any, cache: Any, new: Any, places: Any) -> Statement:
    """Writes vectors by batch row, head and position; keys and values get the same, and both are compared."""
    slots = (places + np.arange(len(places))[:, None] * cache.shape[2]).reshape(-1).astype(np.int64)
    tokens = np.ascontiguousarray(new.transpose(0, 2, 1, 3)).reshape(-1, new.shape[1], new.shape[3])

    def make() -> dict[str, Any]:
        return {
            "k": tokens.copy(),
            "v": tokens.copy(),
            "k_cache": cache.copy(),
            "v_cache": cache.copy(),
            "slots": slots,
            "layout": "HND",
        }

    def read(_: list[Any], arguments: dict[str, Any]) -> list[Any]:
        return [arguments[name].reshape(expected.shape) for name in ("k_cache", "v_cache")]

    return Statement("kv.append", make, [expected, expected], read)


def flex_attention(node: Node) -> list[Statement]:
    node.only("scale")
    return attention(node)


def tensor_scatter(node: Node) -> list[Statement]:
    node.only("axis", "mode")
    cache, update, starts = node.inputs[:3]
    if node.get("axis", -2) not in (-2, cache.ndim - 2):
        raise Unsupported("positions that are not in the second-last dimension")
    if cache.ndim == 3:
        cache, update = cache[:, None], update[:, None]
    places = starts[:, None] + np.arange(update.shape[2])
    if node.get("mode", "linear") == "circular":
        places = places % cache.shape[2]
    return [append(node.output(0), cache, update, places)]


# Norms, activations, rotary embeddings


def rows(node: Node, x: Any) -> tuple[Any, int]:
    """Flattens the dimensions from `axis` on."""
    axis = node.get("axis", -1) % x.ndim
    hidden = int(np.prod(x.shape[axis:]))
    return x.reshape(*x.shape[:axis], hidden), hidden


def features(value: Any, hidden: int) -> Any:
    if value is not None and value.size != hidden:
        raise Unsupported("a weight that is broadcast over a row")
    return None if value is None else value.reshape(hidden)


def rms_normalization(node: Node) -> list[Statement]:
    node.only("axis", "epsilon", "stash_type")
    x, hidden = rows(node, node.input(0))
    weight = features(node.input(1), hidden)
    return [simple("norm.rms", [node.output(0)], x=x, weight=weight, eps=node.get("epsilon", 1e-5))]


def layer_normalization(node: Node) -> list[Statement]:
    node.only("axis", "epsilon", "stash_type")
    x, hidden = rows(node, node.input(0))
    weight, bias = features(node.input(1), hidden), features(node.input(2), hidden)
    stats = node.output(1) is not None
    expected = [value for value in (node.output(0), node.output(1), node.output(2)) if value is not None]
    call = {"x": x, "weight": weight, "bias": bias, "eps": node.get("epsilon", 1e-5), "return_stats": stats}
    return [simple("norm.layer", expected, **call)]


def rotary_embedding(node: Node) -> list[Statement]:
    node.only("interleaved", "num_heads", "rotary_embedding_dim")
    x = node.input(0)
    four = x.ndim == 4
    if not four:
        x = x.reshape(*x.shape[:2], node.get("num_heads", 0), -1)
    cos, sin, positions = node.input(1), node.input(2), node.input(3)
    half = cos.shape[-1]
    if node.get("rotary_embedding_dim", 0) not in (0, 2 * half):
        raise Unsupported("fewer rotary features than the tables have")
    if positions is None:
        # The tables then have a row for each token of each batch row.
        places = cos.shape[0] * cos.shape[1]
        positions = np.arange(places, dtype=np.int64).reshape(cos.shape[:2])
    call = {"x": x, "cos": cos.reshape(-1, half), "sin": sin.reshape(-1, half), "positions": positions}
    more = {"interleaved": bool(node.get("interleaved", 0)), "layout": "BHSD" if four else "BSHD"}
    return [simple("posenc.rope", [node.output(0)], **call, **more)]


def gelu(node: Node) -> list[Statement]:
    node.only("approximate")
    x, approximate = node.input(0), node.get("approximate", "none")
    return [simple("activation.gelu", [node.output(0)], x=x, approximate=approximate)]


def swish(node: Node) -> list[Statement]:
    node.only("alpha")
    return [simple("activation.silu", [node.output(0)], x=node.input(0), alpha=node.get("alpha", 1.0))]


def swiglu(node: Node) -> list[Statement]:
    node.only("alpha")
    if node.get("alpha", 1.0) != 1.0:
        raise Unsupported("a factor inside the gate's sigmoid")
    return [simple("activation.silu_mul", [node.output(0)], gate=node.input(0), up=node.input(1))]


def relu(node: Node) -> list[Statement]:
    node.only()
    return [simple("activation.relu", [node.output(0)], x=node.input(0))]


# Matrix products and embedding tables


def integers_are_no_floats(value: Any) -> None:
    if value.dtype.kind in "iub":
        raise Unsupported("integer matrix products")


def matmul(node: Node) -> list[Statement]:
    node.only()
    a, b = node.input(0), node.input(1)
    integers_are_no_floats(a)
    left = a[None] if a.ndim == 1 else a
    right = b[:, None] if b.ndim == 1 else b
    batch = np.broadcast_shapes(left.shape[:-2], right.shape[:-2])
    left = np.broadcast_to(left, (*batch, *left.shape[-2:])).reshape(-1, *left.shape[-2:])
    right = np.broadcast_to(right, (*batch, *right.shape[-2:])).reshape(-1, *right.shape[-2:])
    expected = node.output(0).reshape(len(left), left.shape[-2], right.shape[-1])
    # One product per matrix of the second factor.
    parts = zip(left, right, expected, strict=True)
    return [simple("mlp.linear", [wanted], x=x, weight=y.T) for x, y, wanted in parts]


def gemm(node: Node) -> list[Statement]:
    node.only("alpha", "beta", "transA", "transB")
    a, b, c = node.input(0), node.input(1), node.input(2)
    if node.get("alpha", 1.0) != 1.0 or node.get("beta", 1.0) != 1.0:
        raise Unsupported("scale factors of the product and of the addend")
    x = a.T if node.get("transA", 0) else a
    weight = b if node.get("transB", 0) else b.T
    expected = node.output(0)
    if c is None:
        return [simple("mlp.linear", [expected], x=x, weight=weight)]
    addend = np.broadcast_to(c, expected.shape)
    if np.shape(c)[:-1] in ((), (1,)):
        return [simple("mlp.linear", [expected], x=x, weight=weight, bias=addend[0].copy())]
    # An addend that differs between rows is a bias per row.
    return [
        simple("mlp.linear", [expected[row]], x=x[row].copy(), weight=weight, bias=addend[row].copy())
        for row in range(len(expected))
    ]


def gather(node: Node) -> list[Statement]:
    node.only("axis")
    data, ids = node.input(0), node.input(1)
    if (ids < 0).any():
        raise Unsupported("indices that count from the end")
    axis = node.get("axis", 0) % data.ndim
    tables = np.moveaxis(data, axis, 0) if axis else data
    weight = np.ascontiguousarray(tables.reshape(tables.shape[0], -1))
    # Gathered rows contain the dimensions before and after the axis, which are restored.
    others = tables.shape[1:]
    expected = node.output(0)
    wanted = np.moveaxis(expected.reshape(*data.shape[:axis], *ids.shape, *data.shape[axis + 1 :]),
                         range(axis, axis + ids.ndim), range(ids.ndim))  # fmt: skip
    wanted = np.ascontiguousarray(wanted.reshape(*ids.shape, int(np.prod(others, dtype=np.int64))))
    return [simple("embedding.lookup", [wanted], table=weight, ids=ids)]


# Quantization


# Formats with arbitrary scales, and those with a restricted scale per block: block size and dtype of the scales.
FORMATS = {
    np.dtype(np.int8): "int8",
    np.dtype(np.uint8): "uint8",
    np.dtype(np.int16): "int16",
    np.dtype(np.uint16): "uint16",
    np.dtype(ml_dtypes.int4): "int4",
    np.dtype(ml_dtypes.uint4): "uint4",
    np.dtype(ml_dtypes.int2): "int2",
    np.dtype(ml_dtypes.uint2): "uint2",
    np.dtype(ml_dtypes.float8_e4m3fn): "fp8_e4m3",
    np.dtype(ml_dtypes.float8_e5m2): "fp8_e5m2",
}
# Bits of dtypes that are packed, several in a byte.
PACKED = {
    np.dtype(ml_dtypes.int4): 4,
    np.dtype(ml_dtypes.uint4): 4,
    np.dtype(ml_dtypes.float4_e2m1fn): 4,
    np.dtype(ml_dtypes.int2): 2,
    np.dtype(ml_dtypes.uint2): 2,
}
BLOCKS = {"mxfp4": (32, ml_dtypes.float8_e8m0fnu), "nvfp4": (16, ml_dtypes.float8_e4m3fn)}
FLOATS = (ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2, ml_dtypes.float4_e2m1fn)
DTYPES = {"float32": "f32", "float16": "f16", "bfloat16": "bf16"}


@dataclass
class Arrangement:
    """How an operation has the elements of a node: in a shape in which channels are the second-last dimension, or with the axis of blocks last."""

    shape: tuple[int, ...]
    # The axis of the blocks in the node's shape.
    axis: int | None = None

    def of(self, value: Any) -> Any:
        """A value of the node as the operation has it."""
        if self.axis is None:
            return value.reshape(self.shape)
        return np.ascontiguousarray(np.moveaxis(value, self.axis, -1))

    def back(self, value: Any, shape: tuple[int, ...]) -> Any:
        """A value of the operation as the node has it."""
        return value.reshape(shape) if self.axis is None else np.moveaxis(value, -1, self.axis)


def scaled(node: Node, codes: Any) -> tuple[Arrangement, list[dict[str, Any]]]:
    """The arrangement; and scales, zero points, format and granularity, once for each format that can represent them."""
    scale, zero_point = node.input(1), node.input(2)
    block_size = node.get("block_size", 0)
    if block_size:
        arranged = Arrangement((), node.get("axis", 1) % codes.ndim)
        arranged.shape = arranged.of(codes).shape
        call = {
            "scale": arranged.of(scale.astype(np.float32)),
            "zero_point": None if zero_point is None else arranged.of(zero_point.astype(np.int32)),
            "format": format_of(codes),
            "granularity": "block",
            "block_size": block_size,
        }
        return arranged, [call]
    per_tensor = scale.size == 1
    axis = 0 if per_tensor else node.get("axis", 1) % codes.ndim
    channels = 1 if per_tensor else codes.shape[axis]
    inner = codes.size if per_tensor else int(np.prod(codes.shape[axis + 1 :]))
    shape = (codes.size // (channels * inner), channels, inner)
    if zero_point is not None and not zero_point.astype(np.float32).any():
        zero_point = None
    if codes.dtype == ml_dtypes.float4_e2m1fn:
        return Arrangement(shape), list(in_blocks(shape, scale))
    one = () if per_tensor else (channels,)
    call = {
        "scale": scale.astype(np.float32).reshape(one),
        "zero_point": None if zero_point is None else zero_point.astype(np.int32).reshape(one),
        "format": format_of(codes),
        "granularity": "tensor" if per_tensor else "channel",
    }
    return Arrangement(shape), [call]


def format_of(codes: Any) -> str:
    """The format that stores a dtype with f32 scales."""
    format = FORMATS.get(codes.dtype)
    if format is None:
        raise Unsupported("a dtype that no quantization format stores")
    return format


def in_blocks(shape: tuple[int, ...], scale: Any) -> Iterator[dict[str, Any]]:
    """4-bit floats: a scale per block, if its dtype can represent the scale."""
    outer, channels, inner = shape
    wanted = np.broadcast_to(scale.astype(np.float32).reshape(-1, 1), (channels, 1))
    for format, (size, dtype) in BLOCKS.items():
        if (wanted.astype(dtype).astype(np.float32) == wanted).all():
            all_of_them = np.broadcast_to(wanted, (outer, channels, -(-inner // size)))
            yield {"scale": all_of_them.astype(dtype), "format": format, "granularity": "block"}


def packed(codes: Any) -> Any:
    """Packs small codes, the first in the lowest bits of a byte."""
    bits = PACKED.get(codes.dtype)
    if bits is None:
        return codes
    small = codes.view(np.uint8) & (2**bits - 1)
    padding = [(0, 0)] * (small.ndim - 1) + [(0, -small.shape[-1] % (8 // bits))]
    groups = np.pad(small, padding).reshape(*small.shape[:-1], -1, 8 // bits)
    return np.bitwise_or.reduce(groups << np.arange(0, 8, bits, dtype=np.uint8), -1)


def unpacked(stored: Any, dtype: Any, shape: tuple[int, ...]) -> Any:
    """Unpacks small codes."""
    bits = PACKED.get(dtype)
    if bits is None:
        return stored.view(dtype).reshape(shape)
    small = stored.view(np.uint8)[..., None] >> np.arange(0, 8, bits, dtype=np.uint8) & (2**bits - 1)
    return small.reshape(*shape[:-1], -1)[..., : shape[-1]].view(dtype)


def quantize_linear(node: Node) -> list[Statement]:
    node.only("axis", "block_size", "output_dtype", "precision", "saturate")
    if node.get("precision", 0) or not node.get("saturate", 1):
        raise Unsupported("a division in another dtype, or no saturation")
    codes = node.output(0)
    arranged, calls = scaled(node, codes)
    # As numbers: all NaN are equal, and the suite accepts either zero if a format has two.
    wanted = arranged.of(codes).astype(np.float32)

    def read(results: list[Any], _: dict[str, Any]) -> list[Any]:
        return [unpacked(np.asarray(results[0]), codes.dtype, arranged.shape).astype(np.float32)]

    found = [simple("quantize", [wanted], x=arranged.of(node.input(0)), **call) for call in calls]
    for statement in found:
        statement.read = read
    return found


def dequantize_linear(node: Node) -> list[Statement]:
    node.only("axis", "block_size", "output_dtype")
    codes, expected = node.input(0), node.output(0)
    arranged, calls = scaled(node, codes)
    call = {"quantized": packed(arranged.of(codes)), "output_dtype": DTYPES.get(str(expected.dtype))}
    if codes.dtype in PACKED:
        # Packed codes do not tell which of the last byte are used.
        call["inner"] = arranged.shape[-1]

    def read(results: list[Any], _: dict[str, Any]) -> list[Any]:
        return [arranged.back(np.asarray(results[0]), expected.shape)]

    found = [simple("dequantize", [expected], **call, **more) for more in calls]
    for statement in found:
        statement.read = read
    return found


def cast(node: Node) -> list[Statement]:
    """A cast to or from a small format is a quantization with scale 1."""
    node.only("round_mode", "saturate", "to")
    if not node.get("saturate", 1):
        raise Unsupported("a cast that does not saturate")
    x, expected = node.input(0), node.output(0)
    small = {*FORMATS, np.dtype(ml_dtypes.float4_e2m1fn)}
    one = Node(node.name, node.operator, {}, [x, np.array(1, np.float32)], [expected])
    if expected.dtype in small and str(x.dtype) in DTYPES:
        if expected.dtype not in FLOATS:
            raise Unsupported("a cast that wraps around")
        return quantize_linear(one)
    if x.dtype in small and str(expected.dtype) in DTYPES:
        return dequantize_linear(one)
    raise Unsupported("a cast that is not between a float and a quantization format")


STATED: dict[str, Callable[[Node], list[Statement]]] = {
    "Attention": attention,
    "FlexAttention": flex_attention,
    "RMSNormalization": rms_normalization,
    "LayerNormalization": layer_normalization,
    "RotaryEmbedding": rotary_embedding,
    "Gelu": gelu,
    "Swish": swish,
    "SwiGLU": swiglu,
    "Relu": relu,
    "MatMul": matmul,
    "Gemm": gemm,
    "Gather": gather,
    "QuantizeLinear": quantize_linear,
    "DequantizeLinear": dequantize_linear,
    "Cast": cast,
    "TensorScatter": tensor_scatter,
}
