"""`lz.compile` of ONNX models and `lz.load` of saved ones, without torch."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import layerzero as lz
from layerzero import cli

sys.path.insert(0, str(Path(__file__).parent))
import onnx_writer as onnx  # noqa: E402

WEIGHT = np.sin(np.arange(12, dtype=np.float32) * 0.7).reshape(4, 3)
BIAS = np.array([0.5, -0.5, 0.0], np.float32)


def _mlp(weight: bytes | None = None) -> bytes:
    nodes = [onnx.node("MatMul", "x w", "product"), onnx.node("Add", "product b", "sum"), onnx.node("Relu", "sum", "y")]
    constants = [weight or onnx.tensor("w", WEIGHT), onnx.tensor("b", BIAS)]
    return onnx.model(nodes, constants, [onnx.value("x", "batch 4")], [onnx.value("y", "batch 3")])


def _expected(x: np.ndarray) -> np.ndarray:
    return np.maximum(x @ WEIGHT + BIAS, 0)


def _rows(count: int) -> np.ndarray:
    return np.cos(np.arange(count * 4, dtype=np.float32)).reshape(count, 4)


def test_model_is_called_by_position_and_by_name(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(_mlp())
    for compiled in (lz.compile(path), lz.compile(str(path)), lz.compile(_mlp())):
        assert (compiled.inputs, compiled.outputs) == (["x"], ["y"])
        for rows in (1, 3, 0, 17):
            np.testing.assert_allclose(compiled(_rows(rows)), _expected(_rows(rows)), atol=1e-6)
        np.testing.assert_allclose(compiled(x=_rows(2)), _expected(_rows(2)), atol=1e-6)
        np.testing.assert_allclose(compiled(memoryview(_rows(2))), _expected(_rows(2)), atol=1e-6)
        assert compiled.cached_plans >= 5


def test_several_outputs_are_a_tuple() -> None:
    nodes = [onnx.node("Exp", "x", "a"), onnx.node("Add", "x z", "b")]
    inputs = [onnx.value("x", "n"), onnx.value("z", "n")]
    compiled = lz.compile(onnx.model(nodes, [], inputs, [onnx.value("a", "n"), onnx.value("b", "n")]))
    x, z = np.ones(3, np.float32), np.full(3, 2, np.float32)
    for found in (compiled(x, z), compiled(z=z, x=x), compiled(x, z=z)):
        np.testing.assert_allclose(found[0], np.exp(x), atol=1e-6)
        np.testing.assert_allclose(found[1], x + z)


def test_wrong_calls_are_errors_before_anything_runs() -> None:
    compiled = lz.compile(_mlp())
    with pytest.raises(TypeError, match="the input `x` is missing; expected x"):
        compiled()
    with pytest.raises(TypeError, match="there is no input `z`; expected x"):
        compiled(z=_rows(1))
    with pytest.raises(TypeError, match="by position and by name"):
        compiled(_rows(1), x=_rows(1))
    with pytest.raises(TypeError, match="2 inputs were given, expected 1"):
        compiled(_rows(1), _rows(1))
    with pytest.raises(lz.ValidationError, match="size 1 is 5, expected 4"):
        compiled(np.zeros((2, 5), np.float32))
    with pytest.raises(lz.ValidationError, match="dtype is float64, expected float32"):
        compiled(_rows(2).astype(np.float64))
    with pytest.raises(TypeError, match="sample inputs are for torch models"):
        lz.compile(_mlp(), (_rows(1),))
    with pytest.raises(ValueError, match="validation is 'much'"):
        lz.compile(_mlp(), validation="much")


def test_bad_models_are_clear_errors(tmp_path: Path) -> None:
    whole = _mlp()
    for length in (1, len(whole) // 2, len(whole) - 1):
        with pytest.raises(lz.GraphImportError):
            lz.compile(whole[:length])
    with pytest.raises(lz.GraphImportError, match="No such file"):
        lz.compile(tmp_path / "absent.onnx")

    def refused(nodes: list[bytes], match: str) -> None:
        values = [onnx.value("x", "2 4")], [onnx.value("y", "")]
        with pytest.raises(lz.GraphImportError, match=match):
            lz.compile(onnx.model(nodes, [onnx.tensor("w", WEIGHT)], *values))

    refused([onnx.node("Unheard", "x", "y")], r"Unheard `node_y`.*the operator is not supported")
    refused([onnx.node("Add", "x z", "y"), onnx.node("Exp", "y", "z")], "`z` is not defined before the node")
    refused([onnx.node("MatMul", "w x", "y")], r"MatMul `node_y`")
    refused([onnx.node("Exp", "x", "q")], "no node computes the output `y`")


def test_external_data_is_mapped_and_must_be_in_the_folder(tmp_path: Path) -> None:
    (tmp_path / "inner").mkdir()
    (tmp_path / "weights.bin").write_bytes(bytes(16) + WEIGHT.tobytes())
    (tmp_path / "inner" / "weights.bin").write_bytes(bytes(16) + WEIGHT.tobytes())
    path = tmp_path / "inner" / "model.onnx"
    path.write_bytes(_mlp(onnx.external("w", WEIGHT, "weights.bin", 16)))
    np.testing.assert_allclose(lz.compile(path)(_rows(3)), _expected(_rows(3)), atol=1e-6)
    for location, offset, match in (
        ("../weights.bin", 16, "not a path inside the model's folder"),
        ("weights.bin", 17, "exceed its 64 bytes"),
        ("absent.bin", 0, "external data `absent.bin`"),
    ):
        path.write_bytes(_mlp(onnx.external("w", WEIGHT, location, offset)))
        with pytest.raises(lz.GraphImportError, match=match):
            lz.compile(path)
    with pytest.raises(lz.GraphImportError, match="requires a model that is read from a file"):
        lz.compile(_mlp(onnx.external("w", WEIGHT, "weights.bin")))


def test_explanation_shows_all_stages() -> None:
    compiled = lz.compile(_mlp(), validation="strict")
    text = compiled.explain(_rows(2))
    for part in ("stage import: ", "stage passes: ", "pass ", "arena ", "mlp.linear", "score "):
        assert part in text, text
    assert [finding for finding in compiled.findings if finding.severity != "info"] == []


def test_nan_is_refused_by_policy() -> None:
    x = _rows(2)
    x[1, 2] = np.nan
    assert lz.compile(_mlp())(x).shape == (2, 3)
    with pytest.raises(lz.ValidationError, match="`x`: contains NaN"):
        lz.compile(_mlp(), nan="refuse")(x)


def test_decisions_are_frozen_and_compared(tmp_path: Path) -> None:
    compiled = lz.compile(_mlp())
    compiled(_rows(2))
    path = tmp_path / "model.lock"
    assert "mlp.linear" in compiled.freeze(path)
    assert compiled.verify_lockfile(path).to_dict()["agrees"]


def test_kernels_of_every_step_are_measured_in_place() -> None:
    compiled = lz.compile(_mlp())
    report = lz.tune(compiled, _rows(2), samples=2)
    steps = report.to_dict()["steps"]
    # The layer with its activation is a step of the program; its parts are measured to compare them with it.
    assert [(step["operation"], step["steps"]) for step in steps] == [("mlp.linear", 1), ("mlp.linear", 0), ("primitive.activation", 0)]
    for step in steps:
        measured = [kernel for kernel, state, _ in step["kernels"] if state == "measured"]
        assert step["best"] in measured and step["selected"] in measured and len(measured) > 1
    np.testing.assert_allclose(compiled(_rows(2)), _expected(_rows(2)), atol=1e-6)


def test_changed_policy_is_planned_again_or_refused() -> None:
    x = _rows(8)
    replanned, refused = lz.compile(_mlp()), lz.compile(_mlp(), on_change="refuse")
    kernel = next(step["kernel"] for step in replanned.plan(x)["steps"] if step["operation"] == "mlp.linear")
    refused(x)
    expected = replanned(x)
    lz.configure(deny=[kernel])
    try:
        np.testing.assert_allclose(replanned(x), expected, atol=1e-6)
        assert all(step["kernel"] != kernel for step in replanned.plan(x)["steps"])
        # With measurements of other tests the layer and its activation may become two steps.
        with pytest.raises(lz.LayerZeroError, match=r"was selected, now|the plan has \d steps, it had \d"):
            refused(x)
    finally:
        lz.configure(deny=[])
    np.testing.assert_allclose(refused(x), expected, atol=1e-6)


def test_saved_model_runs_without_torch(tmp_path: Path) -> None:
    compiled = lz.compile(_mlp())
    compiled(_rows(2))
    path = tmp_path / "model.lz"
    compiled.save(path)
    np.testing.assert_allclose(lz.load(path, verify=True)(_rows(5)), _expected(_rows(5)), atol=1e-6)
    program = f"""
import sys
sys.modules["torch"] = None
import numpy as np, layerzero as lz
model = lz.load({str(path)!r})
print(model(x=np.ones((1, 4), np.float32)).tolist(), model)
"""
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert "CompiledModel(x) -> y" in result.stdout
    found = json.loads(result.stdout.partition(" CompiledModel")[0])
    np.testing.assert_allclose(found, _expected(np.ones((1, 4), np.float32)), atol=1e-6)


def test_artifacts_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.lz"
    lz.compile(_mlp()).save(path)
    whole = path.read_bytes()
    for length in (0, 4, 200, len(whole) - 1):
        path.write_bytes(whole[:length])
        with pytest.raises(lz.GraphImportError, match="the artifact is damaged"):
            lz.load(path)
    path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    lz.load(path)
    with pytest.raises(lz.GraphImportError, match="differ from those that were saved"):
        lz.load(path, verify=True)
    path.write_bytes(whole.replace(b'"layerzero.format":"1"', b'"layerzero.format":"9"'))
    with pytest.raises(lz.GraphImportError, match="format 9, this release reads format 1: compile the model again"):
        lz.load(path)


def test_command_line_compiles_and_explains(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model, saved = tmp_path / "model.onnx", tmp_path / "model.lz"
    model.write_bytes(_mlp())
    assert cli.main(["compile", str(model), "-o", str(saved), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["inputs"] == {"x": "float32[s0, 4]"}
    assert cli.main(["compile", str(saved), "--explain", "--size", "batch=7"]) == 0
    assert "mlp.linear" in capsys.readouterr().out
    assert cli.main(["compile", str(model), "--size", "depth=7"]) == 1
    assert "there is no size `depth`; expected one of batch" in capsys.readouterr().err
    model.write_bytes(_mlp()[:-3])
    assert cli.main(["compile", str(model)]) == 1
