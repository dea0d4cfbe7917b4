"""Quantized embedding tables, compared with ONNX Runtime's `GatherBlockQuantized`."""

from typing import Any

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")
runtime = pytest.importorskip("onnxruntime")
from every_kernel import check_every_kernel  # noqa: E402
from onnx import TensorProto, helper  # noqa: E402


def theirs(codes: np.ndarray, scale: np.ndarray, zero_point: np.ndarray, ids: np.ndarray, signed: bool, block: int) -> np.ndarray:
    """`GatherBlockQuantized` over 4-bit codes, given as one integer each."""
    kind = TensorProto.INT4 if signed else TensorProto.UINT4
    initializers = [
        helper.make_tensor("table", kind, codes.shape, codes.flatten().tolist()),
        helper.make_tensor("scale", TensorProto.FLOAT, scale.shape, scale.flatten().tolist()),
        helper.make_tensor("zero", kind, zero_point.shape, zero_point.flatten().tolist()),
    ]
    node = helper.make_node(
        "GatherBlockQuantized", ["table", "ids", "scale", "zero"], ["out"], domain="com.microsoft", gather_axis=0, quantize_axis=1, block_size=block
    )
    inputs = [helper.make_tensor_value_info("ids", TensorProto.INT64, ids.shape)]
    outputs = [helper.make_tensor_value_info("out", TensorProto.FLOAT, [*ids.shape, codes.shape[1]])]
    graph = helper.make_graph([node], "lookup", inputs, outputs, initializers)
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    session = runtime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, {"ids": ids})[0]


@pytest.mark.parametrize("signed", [True, False])
@pytest.mark.parametrize("block", [16, 32])
def test_matches_gather_block_quantized(signed: bool, block: int) -> None:
    random = np.random.default_rng(block)
    vocab, dim = 19, 96
    low, high = (-8, 8) if signed else (0, 16)
    codes, zero_point = (random.integers(low, high, shape) for shape in ((vocab, dim), (vocab, dim // block)))
    scale = random.uniform(0.01, 2, (vocab, dim // block)).astype(np.float32)
    ids = random.integers(0, vocab, (3, 5))
    expected = theirs(codes, scale, zero_point, ids, signed, block)
    packed = (codes[:, ::2] & 15 | (codes[:, 1::2] & 15) << 4).astype(np.uint8)
    call = {
        "table": packed, "ids": ids, "scale": scale, "zero_point": zero_point.astype(np.int32), "format": "int4" if signed else "uint4", "block_size": block,
    }  # fmt: skip

    def check(who: str, found: list[Any], _: dict[str, Any]) -> None:
        np.testing.assert_allclose(found[0], expected, rtol=1e-6, atol=1e-6, err_msg=who)

    assert check_every_kernel("embedding.lookup.quantized", lambda: call, check) >= 2
