"""ONNX Runtime runs LayerZero's operations as custom operations."""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

ort = pytest.importorskip("onnxruntime")
onnx = pytest.importorskip("onnx")
from onnx import TensorProto, helper  # noqa: E402

sys.path.insert(0, str(Path(__file__).parents[1]))
from samples import f32, i32, samples  # noqa: E402

import layerzero as lz  # noqa: E402
from layerzero.integrations import onnxruntime as integration  # noqa: E402

SAMPLES = samples()


def model(op_type: str, inputs: list[Any], outputs: list[int | None], **attributes: Any) -> Any:
    """A model with one node. An absent input is None; an output is the number of its type in ONNX, or None if it has no name."""
    names = ["" if value is None else f"i{place}" for place, value in enumerate(inputs)]
    results = ["" if kind is None else f"o{place}" for place, kind in enumerate(outputs)]
    node = helper.make_node(op_type, names, results, domain=integration.DOMAIN, **attributes)
    kinds = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(value.dtype), [f"{name}_{axis}" for axis in range(value.ndim)])
        for name, value in zip(names, inputs, strict=True)
        if name
    ]
    produced = [helper.make_tensor_value_info(name, kind, None) for name, kind in zip(results, outputs, strict=True) if name]
    graph = helper.make_graph([node], "one node", kinds, produced)
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid(integration.DOMAIN, 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def run(op_type: str, inputs: list[Any], outputs: list[int | None], **attributes: Any) -> list[Any]:
    session = integration.session(model(op_type, inputs, outputs, **attributes), providers=["CPUExecutionProvider"])
    given = {f"i{place}": ort_value(value) for place, value in enumerate(inputs) if value is not None}
    return [one.numpy() for one in session.run_with_ort_values(None, given)]


def ort_value(value: Any) -> Any:
    """A tensor, also of a type that ONNX Runtime does not read from numpy."""
    if value.dtype.isbuiltin == 1:
        return ort.OrtValue.ortvalue_from_numpy(value)
    kind = helper.np_dtype_to_tensor_dtype(value.dtype)
    return ort.OrtValue.ortvalue_from_numpy_with_onnx_type(value.view(np.uint8), kind)


def op_type_of(name: str, keywords: dict[str, Any]) -> str:
    """The op type of a call. It has the values of params on which dtypes depend, and samples give those that are not the default f32."""
    known = integration.op_types()
    if name in known:
        return name
    given = [value for value in keywords.values() if isinstance(value, str)]
    candidates = [one for one in known if known[one]["operation"].replace(".", "_") == name]
    fixed = {one: one.removeprefix(f"{name}_").split("_") for one in candidates}
    matching = [one for one in candidates if all(value in fixed[one] for value in given if any(value in values for values in fixed.values()))]
    return next((one for one in matching if fixed[one][-1] == "f32"), matching[0])


def call_of(name: str) -> tuple[str, list[Any], dict[str, Any], list[Any]]:
    """The op type, inputs, attributes and expected results of the sample of an operation."""
    arguments, keywords = SAMPLES[name]
    # Some operations write their arguments.
    own = [one.copy() for one in arguments], {key: one.copy() if isinstance(one, np.ndarray) else one for key, one in keywords.items()}
    results = getattr(lz.ops, name)(*own[0], **own[1])
    results = list(results) if isinstance(results, tuple) else [] if results is None else [results]
    known = integration.op_types()
    op_type = op_type_of(name, keywords)
    inputs = list(arguments) + [None] * (len(known[op_type]["inputs"]) - len(arguments))
    attributes = {}
    places = {one["name"]: place for place, one in enumerate(known[op_type]["inputs"])}
    for key, value in keywords.items():
        if key in places:
            inputs[places[key]] = value
        elif key in known[op_type]["attributes"]:
            attributes[key] = int(value) if isinstance(value, bool) else value
    return op_type, inputs, attributes, results


RUNNABLE = sorted(name for name in SAMPLES if not any(name == one.replace(".", "_") for one in integration.refused()))


@pytest.mark.parametrize("name", RUNNABLE)
def test_every_operation(name):
    op_type, inputs, attributes, expected = call_of(name)
    declared = integration.op_types()[op_type]["outputs"]
    # Optional outputs that the call does not produce come after the others.
    kinds = [helper.np_dtype_to_tensor_dtype(np.asarray(one).dtype) for one in expected]
    inputs = [None if value is None else np.asarray(value) for value in inputs]
    if not kinds:
        # The operation only writes inputs, each of which is an output.
        names = [one["name"] for one in integration.op_types()[op_type]["inputs"]]
        kinds = [helper.np_dtype_to_tensor_dtype(inputs[names.index(one["name"].removesuffix("_out"))].dtype) for one in declared]
        found = run(op_type, inputs, kinds, **attributes)
        assert any(not np.array_equal(one, inputs[names.index(other["name"].removesuffix("_out"))]) for one, other in zip(found, declared, strict=True))
        return
    found = run(op_type, inputs, kinds, **attributes)
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one, np.asarray(other))


def test_most_operations_are_there():
    assert len(RUNNABLE) >= 55
    assert integration.refused() == {
        "mlp.linear.fp4": "ONNX has none of its element types",
        "tokenize.decode": "input `tokenizer` is not a tensor",
        "tokenize.encode": "input `texts` is not a tensor",
    }


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_dtypes_and_dynamic_sizes(dtype):
    x = np.random.default_rng(0).normal(size=(3, 8)).astype(dtype)
    weight = np.linspace(-1, 1, 8, dtype=np.float32)
    kind = helper.np_dtype_to_tensor_dtype(x.dtype)
    session = integration.session(model("norm_rms", [x, weight], [kind], eps=1e-5))
    for rows in (0, 1, 3):
        [found] = session.run(None, {"i0": x[:rows], "i1": weight})
        assert found.dtype == dtype
        np.testing.assert_array_equal(found, lz.ops.norm_rms(x[:rows], weight, eps=float(np.float32(1e-5))))


def test_bf16_between_nodes():
    """Python has no bfloat16 for ONNX Runtime's results, so the model casts before and after."""
    x = f32(3, 8)
    nodes = [
        helper.make_node("Cast", ["x"], ["narrow"], to=TensorProto.BFLOAT16),
        helper.make_node("activation_silu", ["narrow"], ["activated"], domain=integration.DOMAIN),
        helper.make_node("Cast", ["activated"], ["y"], to=TensorProto.FLOAT),
    ]
    graph = helper.make_graph(
        nodes,
        "bf16",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [3, 8])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
    )
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid(integration.DOMAIN, 1)]
    session = integration.session(helper.make_model(graph, opset_imports=opsets, ir_version=10))
    [found] = session.run(None, {"x": x})
    import ml_dtypes

    expected = lz.ops.activation_silu(x.astype(ml_dtypes.bfloat16))
    np.testing.assert_array_equal(found, np.asarray(expected).astype(np.float32))


def test_inputs_that_are_written_become_outputs():
    x, residual, weight = f32(2, 8), f32(2, 8) * 2, f32(8)
    given = residual.copy()
    output, written = run("norm_rms_add", [x, given, weight], [TensorProto.FLOAT, TensorProto.FLOAT])
    np.testing.assert_array_equal(given, residual)
    expected = lz.ops.norm_rms_add(x, given, weight)
    np.testing.assert_array_equal(output, expected)
    np.testing.assert_array_equal(written, given)
    # A node may leave the written input out.
    [output] = run("norm_rms_add", [x, residual, weight], [TensorProto.FLOAT])
    np.testing.assert_array_equal(output, expected)


def test_absent_optional_inputs_and_requested_outputs():
    q, k, v = f32(1, 2, 4), f32(1, 3, 2, 4), f32(1, 3, 2, 4)
    [output, lse] = run("attention_gqa_decode", [q, k, v], [TensorProto.FLOAT, TensorProto.FLOAT], return_lse=1)
    expected = lz.ops.attention_gqa_decode(q, k, v, return_lse=True)
    np.testing.assert_array_equal(output, expected[0])
    np.testing.assert_array_equal(lse, expected[1])
    # The second output is produced, and the node does not name it.
    [output] = run("attention_gqa_decode", [q, k, v], [TensorProto.FLOAT], return_lse=1)
    np.testing.assert_array_equal(output, expected[0])
    with pytest.raises(Exception, match="`lse`: this call does not produce the output"):
        run("attention_gqa_decode", [q, k, v], [TensorProto.FLOAT, TensorProto.FLOAT])


def reference_calls() -> int:
    text = lz.metrics_text()
    counts = [line for line in text.splitlines() if "calls_total" in line and 'kernel="reference.norm.rms"' in line]
    return sum(int(float(line.rpartition(" ")[2])) for line in counts)


def test_the_engine_of_the_process_runs_the_operations():
    x = f32(2, 8)
    session = integration.session(model("norm_rms", [x], [TensorProto.FLOAT]))
    lz.lock("norm.rms", "reference.norm.rms")
    try:
        before = reference_calls()
        [found] = session.run(None, {"i0": x})
        assert reference_calls() == before + 1
    finally:
        lz.unlock("norm.rms")
    np.testing.assert_allclose(found, lz.ops.norm_rms(x), rtol=1e-6)


def test_invalid_calls_are_refused_with_the_reasons_of_the_operation():
    session = integration.session(model("norm_rms", [f32(2, 8), f32(8)], [TensorProto.FLOAT]))
    with pytest.raises(Exception, match="weight.*hidden"):
        session.run(None, {"i0": f32(2, 8), "i1": f32(7)})
    # An index outside the table.
    session = integration.session(model("embedding_lookup", [f32(5, 4), i32(9)], [TensorProto.FLOAT]))
    with pytest.raises(Exception, match="embedding.lookup"):
        session.run(None, {"i0": f32(5, 4), "i1": i32(9)})


@pytest.mark.parametrize(
    ("attributes", "message"),
    [
        ({"epsilon": 1e-5}, "no attribute `epsilon`; did you mean `eps`"),
        ({"eps": "small"}, "`eps` has type STRING, and FLOAT or INT is expected"),
    ],
)
def test_unknown_attributes_are_refused(attributes, message):
    with pytest.raises(ValueError, match=message):
        integration.session(model("norm_rms", [f32(2, 8)], [TensorProto.FLOAT], **attributes))


def test_unknown_and_refused_op_types():
    with pytest.raises(ValueError, match="no such op type; did you mean `norm_rms`"):
        integration.check(model("norm_rmss", [f32(2, 8)], [TensorProto.FLOAT]))
    with pytest.raises(ValueError, match="refused: input `texts` is not a tensor"):
        integration.check(model("tokenize_encode", [f32(2, 8)], [TensorProto.FLOAT]))
    with pytest.raises(ValueError, match="`x` is missing"):
        integration.check(model("norm_rms", [None, f32(8)], [TensorProto.FLOAT]))


def test_attributes_are_also_checked_without_the_check():
    """`register` is all that a program in another language has."""
    options = ort.SessionOptions()
    integration.register(options)
    wrong = model("norm_rms", [f32(2, 8)], [TensorProto.FLOAT], eps="small").SerializeToString()
    with pytest.raises(Exception, match="attribute `eps` must be a float, and is the string `small`"):
        ort.InferenceSession(wrong, options)
