"""The node tests of ONNX 1.23: each that an operation can express, through `lz.ops` and every kernel that claims it."""

import pytest

pytest.importorskip("onnx")
from every_kernel import assert_near, check_every_kernel  # noqa: E402
from onnx_nodes import Node, Unsupported, nodes, statements  # noqa: E402

# The suite's own tolerances for our kernels; kernels of other libraries with reduced precision have those of the operations.
TOLERANCE = {"float32": (1e-3, 1e-7), "float16": (1e-3, 1e-7), "bfloat16": (2**-6, 1e-7)}
OTHERS = {"float32": (1e-3, 1e-6), "float16": (2e-3, 2e-3), "bfloat16": (1.6e-2, 1.6e-2)}
NODES = list(nodes())

# Cases that cannot be expressed, by operator: how many, and why. A changed number is a case lost or gained.
UNSUPPORTED: dict[str, dict[str, int]] = {
    "Cast": {
        "a cast that is not between a float and a quantization format": 24,
        "a cast that does not saturate": 8,
        "a cast that wraps around": 8,
    },
    "FlexAttention": {
        "float64: the operations compute in float32 at most": 1,
        "the attribute prob_mod": 1,
        "the attribute score_mod": 4,
    },
    "Gather": {"indices that count from the end": 1},
    "Gemm": {"scale factors of the product and of the addend": 3},
    "SwiGLU": {"a factor inside the gate's sigmoid": 1},
}


@pytest.mark.parametrize("node", NODES, ids=[node.name for node in NODES])
def test_node(node: Node) -> None:
    try:
        stated = statements(node)
    except Unsupported as why:
        assert str(why) in UNSUPPORTED.get(node.operator, {}), f"not in the list of unsupported cases: {why}"
        pytest.skip(str(why))
    assert stated
    for statement in stated:
        def check(who, results, arguments, statement=statement):
            found = statement.read(results, arguments)
            for one, wanted in zip(found, statement.expected, strict=True):
                tolerance = OTHERS if who.startswith("torch.") else TOLERANCE
                assert_near(one, wanted, tolerance, f"{statement.operation} by {who}")

        check_every_kernel(statement.operation, statement.make, check)


def test_unsupported_cases_are_exactly_the_listed_ones() -> None:
    found: dict[str, dict[str, int]] = {}
    for node in NODES:
        try:
            statements(node)
        except Unsupported as why:
            reasons = found.setdefault(node.operator, {})
            reasons[str(why)] = reasons.get(str(why), 0) + 1
    assert found == UNSUPPORTED


def test_every_attention_case_is_supported() -> None:
    assert sum(node.operator == "Attention" for node in NODES) == 93
    assert "Attention" not in UNSUPPORTED
