"""ONNX Runtime's language-model kernels, on random shapes, compared with every kernel that claims the call."""

from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnxruntime")
import onnx  # noqa: E402
import onnxruntime  # noqa: E402
from every_kernel import assert_near, check_every_kernel  # noqa: E402
from onnx import helper  # noqa: E402

import layerzero as lz  # noqa: E402

# Two float32 implementations, over a few hundred terms at most.
TOLERANCE = {"float32": (2e-4, 2e-5)}
SEEDS = range(6)


def model_of(
    operator: str,
    inputs: list[Any],
    outputs: int = 1,
    *,
    domain: str = "com.microsoft",
    dtype: Any = np.float32,
    **attributes: Any,
) -> tuple[bytes, dict[str, Any]]:
    """A model of one node, whose outputs have one dtype, and its inputs; an absent input is None."""
    names = [f"i{place}" if value is not None else "" for place, value in enumerate(inputs)]
    results = [f"o{place}" for place in range(outputs)]
    node = helper.make_node(operator, names, results, domain=domain, **attributes)
    given = {name: value for name, value in zip(names, inputs, strict=True) if name}
    kinds = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(value.dtype), value.shape)
        for name, value in given.items()
    ]
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    graph = helper.make_graph(
        [node], operator, kinds, [helper.make_tensor_value_info(name, kind, None) for name in results]
    )
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    return model.SerializeToString(), given


def run(operator: str, inputs: list[Any], outputs: int = 1, **more: Any) -> list[Any]:
    """Runs one node with ONNX Runtime."""
    model, given = model_of(operator, inputs, outputs, **more)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    return list(session.run(None, given))


def held(operation: str, expected: list[Any], **arguments: Any) -> None:
    """Every kernel that claims the call gives the expected results."""

    def make() -> dict[str, Any]:
        return {
            name: value.copy() if isinstance(value, np.ndarray) else value
            for name, value in arguments.items()
            if value is not None
        }

    def check(who: str, results: list[Any], _: dict[str, Any]) -> None:
        for found, wanted in zip(results, expected, strict=False):
            assert_near(np.asarray(found).reshape(wanted.shape), wanted, TOLERANCE, f"{operation} by {who}")

    assert check_every_kernel(operation, make, check) >= 2, "no kernel but the reference claims it"


def draw(random: np.random.Generator, *shape: int) -> Any:
    return random.standard_normal(shape, np.float32)


def side_by_side(value: Any) -> Any:
    """``[batch, positions, heads * features]``."""
    return value.reshape(*value.shape[:2], -1)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("window", [None, 3])
@pytest.mark.parametrize("cap", [None, 2.0])
def test_group_query_attention_with_a_past(seed: int, window: int | None, cap: float | None) -> None:
    random = np.random.default_rng(seed)
    batch, groups, kv_heads = (int(random.integers(1, 4)) for _ in range(3))
    heads, size = groups * kv_heads, int(random.choice([16, 32, 64]))
    past, new = int(random.integers(0, 20)), 1 if seed % 2 else int(random.integers(2, 9))
    q = draw(random, batch, new, heads, size)
    k, v = draw(random, batch, new, kv_heads, size), draw(random, batch, new, kv_heads, size)
    if new > 1:
        # There, a prefill of several tokens always starts at the beginning.
        past = 0
    past_k, past_v = (draw(random, batch, kv_heads, past, size) for _ in range(2))
    total = past + new
    more = {} if window is None else {"local_window_size": window}
    more |= {} if cap is None else {"softcap": cap}
    output, present_k, present_v = run(
        "GroupQueryAttention",
        [*map(side_by_side, (q, k, v)), past_k, past_v, np.full(batch, total - 1, np.int32), np.array(total, np.int32)],
        3,
        num_heads=heads,
        kv_num_heads=kv_heads,
        **more,
    )
    expected = output.reshape(batch, new, heads, size)
    keys, values = (np.ascontiguousarray(one.transpose(0, 2, 1, 3)) for one in (present_k, present_v))
    # Their window includes the token itself.
    ours: dict[str, Any] = {"soft_cap": cap, "window_left": None if window is None else window - 1}
    held("attention.gqa.prefill", [expected], q=q, k=keys, v=values, causal=True, **ours)
    if new == 1:
        held("attention.gqa.decode", [expected[:, 0]], q=q[:, 0], k=keys, v=values, **ours)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("kind", ["plain", "bias", "causal", "lengths"])
def test_multi_head_attention(seed: int, kind: str) -> None:
    random = np.random.default_rng(100 + seed)
    batch, heads, size = int(random.integers(1, 4)), int(random.integers(1, 5)), int(random.choice([8, 32, 64]))
    queries, keys = int(random.integers(1, 40)), int(random.integers(1, 90))
    if kind == "causal":
        keys = queries
    q, k, v = draw(random, batch, queries, heads, size), *(draw(random, batch, keys, heads, size) for _ in range(2))
    lengths = random.integers(1, keys + 1, batch).astype(np.int32) if kind == "lengths" else None
    bias = draw(random, batch, heads, queries, keys) if kind == "bias" else None
    (output,) = run(
        "MultiHeadAttention",
        [*map(side_by_side, (q, k, v)), None, lengths, bias],
        num_heads=heads,
        unidirectional=int(kind == "causal"),
    )
    expected = output.reshape(q.shape)
    if kind != "lengths":
        held("attention.standard.prefill", [expected], q=q, k=k, v=v, mask=bias, causal=kind == "causal")
    if kind != "causal":
        held("attention.cross.prefill", [expected], q=q, k=k, v=v, mask=bias, kv_lens=lengths)


def compiled(operator: str, inputs: list[Any], outputs: int = 1, **more: Any) -> list[Any]:
    """Runs one node with ``lz.compile``."""
    model, given = model_of(operator, inputs, outputs, **more)
    results = lz.compile(model)(**given)
    return list(results) if isinstance(results, tuple) else [results]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    "kind", ["plain", "bias", "scores", "causal", "lengths", "keys", "queries", "past", "cross", "all"]
)
def test_compiled_multi_head_attention(seed: int, kind: str) -> None:
    random = np.random.default_rng(700 + seed)
    batch, heads, size = int(random.integers(1, 4)), int(random.integers(1, 5)), int(random.choice([8, 32]))
    queries, keys = int(random.integers(1, 20)), int(random.integers(2, 30))
    if kind in ("causal", "all"):
        keys = queries
    past = int(random.integers(1, 9)) if kind in ("past", "all") else 0
    total = past + keys
    q, k, v = draw(random, batch, queries, heads * size), *(draw(random, batch, keys, heads * size) for _ in range(2))
    if kind == "cross":
        k, v = (draw(random, batch, heads, keys, size) for _ in range(2))
    padding = {
        "lengths": lambda: random.integers(1, keys + 1, batch),
        "keys": lambda: random.integers(0, 2, (batch, total)),
        "queries": lambda: random.integers(0, 2, (batch, queries, total)),
        "all": lambda: random.integers(0, 2, (batch, total)),
    }
    inputs = [
        q,
        k,
        v,
        draw(random, 3 * heads * size) if kind in ("bias", "all") else None,
        padding[kind]().astype(np.int32) if kind in padding else None,
        draw(random, batch, heads, queries, total) if kind in ("scores", "all") else None,
        *(draw(random, batch, heads, past, size) if past else None for _ in range(2)),
    ]
    more = {"num_heads": heads, "unidirectional": int(kind in ("causal", "all")), "mask_filter_value": -20.0}
    outputs = 3 if past else 1
    expected = run("MultiHeadAttention", inputs, outputs, **more)
    for found, wanted in zip(compiled("MultiHeadAttention", inputs, outputs, **more), expected, strict=True):
        assert_near(np.asarray(found), wanted, TOLERANCE, kind)
    if kind in ("plain", "bias"):
        # Packed, which ONNX Runtime has on GPUs only.
        split = [one.reshape(batch, -1, heads, size) for one in (q, k, v)]
        packed = [q, np.stack(split[1:], 3), None, *inputs[3:]]
        (found,) = compiled("MultiHeadAttention", packed, **more)
        assert_near(np.asarray(found), expected[0], TOLERANCE, "packed")
    if kind == "causal":
        packed = [np.stack([one.reshape(batch, -1, heads, size) for one in (q, k, v)], 3)]
        (found,) = compiled("MultiHeadAttention", packed, **more)
        assert_near(np.asarray(found), expected[0], TOLERANCE, "packed")


def test_multi_head_attention_that_is_not_understood_is_refused() -> None:
    q = np.zeros((1, 4, 16), np.float32)
    with pytest.raises(lz.GraphImportError, match="bias"):
        compiled("MultiHeadAttention", [q, q, q, np.zeros(40, np.float32)], num_heads=2)
    with pytest.raises(lz.GraphImportError, match="mask of shape"):
        compiled("MultiHeadAttention", [q, q, q, None, np.zeros(5, np.int32)], num_heads=2)
    with pytest.raises(lz.GraphImportError, match="packed"):
        compiled("MultiHeadAttention", [q], num_heads=2)


@pytest.mark.parametrize("seed", SEEDS)
def test_norms_with_a_residual(seed: int) -> None:
    random = np.random.default_rng(200 + seed)
    rows, hidden = int(random.integers(1, 9)), int(random.integers(1, 400))
    x, skip, weight, bias = draw(random, rows, hidden), draw(random, rows, hidden), draw(random, hidden), draw(random, hidden)
    output, _, _, total = run("SkipSimplifiedLayerNormalization", [x, skip, weight], 4, epsilon=1e-5)
    held("norm.rms.add", [output], x=x, residual=skip, weight=weight, eps=1e-5)
    residual = skip.copy()
    lz.ops.norm_rms_add(x, residual, weight, eps=1e-5)
    assert_near(residual, total, TOLERANCE, "the residual")
    (plain,) = run("SimplifiedLayerNormalization", [x, weight], domain="", epsilon=1e-6)
    held("norm.rms", [plain], x=x, weight=weight, eps=1e-6)
    (layer,) = run("SkipLayerNormalization", [x, skip, weight, bias], epsilon=1e-5)
    held("norm.layer", [layer], x=x + skip, weight=weight, bias=bias, eps=1e-5)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("interleaved", [False, True])
def test_rotary_embedding(seed: int, interleaved: bool) -> None:
    random = np.random.default_rng(300 + seed)
    batch, heads, length, half = int(random.integers(1, 4)), int(random.integers(1, 5)), int(random.integers(1, 9)), 8
    x = draw(random, batch, heads, length, 2 * half)
    angles = random.uniform(0, 6, (32, half)).astype(np.float32)
    cos, sin = np.cos(angles), np.sin(angles)
    positions = random.integers(0, 32, (batch, length))
    (output,) = run("RotaryEmbedding", [x, positions, cos, sin], interleaved=int(interleaved))
    held(
        "posenc.rope", [output],
        x=x, cos=cos, sin=sin, positions=positions, interleaved=interleaved, layout="BHSD",
    )  # fmt: skip


@pytest.mark.parametrize("seed", SEEDS)
def test_activations(seed: int) -> None:
    random = np.random.default_rng(400 + seed)
    x = 4 * draw(random, int(random.integers(1, 5)), int(random.integers(1, 300)))
    held("activation.gelu", run("Gelu", [x]), x=x)
    held("activation.gelu", run("FastGelu", [x]), x=x, approximate="tanh")
    held("activation.silu", run("QuickGelu", [x], alpha=1.702), x=x, alpha=1.702)


@pytest.mark.parametrize("seed", SEEDS)
def test_matmul_with_4_bit_weights(seed: int) -> None:
    random = np.random.default_rng(500 + seed)
    rows, columns = int(random.integers(1, 7)), int(random.integers(1, 40))
    block = int(random.choice([16, 32, 64]))
    inner = block * int(random.integers(1, 5))
    x, weight = draw(random, rows, inner), draw(random, columns, inner)
    codes, scale = lz.ops.quantize(weight, format="int4", granularity="block", block_size=block)
    # Theirs are unsigned with the zero point in the middle: the highest bit of each nibble is inverted.
    theirs = (codes ^ 0x88).reshape(columns, inner // block, block // 2)
    (output,) = run(
        "MatMulNBits", [x, theirs, scale.reshape(-1)], K=inner, N=columns, bits=4, block_size=block, accuracy_level=1
    )
    restored = lz.ops.dequantize(codes, scale, format="int4", granularity="block", block_size=block)
    held("mlp.linear", [output], x=x, weight=restored)


@pytest.mark.parametrize("seed", SEEDS)
def test_4_and_8_bit_blocks(seed: int) -> None:
    random = np.random.default_rng(600 + seed)
    rows, blocks, block = int(random.integers(1, 7)), int(random.integers(1, 5)), int(random.choice([16, 32]))
    x = draw(random, rows, blocks * block)
    codes, scale = lz.ops.quantize(x, format="int8", granularity="block", block_size=block)
    zeros = np.zeros(scale.shape, np.int8)
    theirs = run("QuantizeLinear", [x, scale, zeros], domain="", dtype=np.int8, axis=1, block_size=block)
    np.testing.assert_array_equal(codes, theirs[0])
    back = run("DequantizeLinear", [codes, scale], domain="", axis=1, block_size=block)
    held("dequantize", back, quantized=codes, scale=scale, format="int8", granularity="block", block_size=block)


def test_oracle_versions_are_pinned() -> None:
    assert onnx.__version__.startswith("1.23.")
    assert onnxruntime.__version__.startswith("1.31.")
