"""The command line `lz`: errors are one line with a remedy, never a traceback."""

import json
import shutil
import subprocess
import sys

import numpy as np
import pytest
from onnx_writer import model, node, tensor, value

import layerzero
from layerzero import _cli_arguments


def lz(*arguments, **options):
    command = [sys.executable, "-m", "layerzero", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, **options)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("bench", "nope"), "unknown operation `nope`"),
        (("bench", "norm.rmss", "x=f32[4,64]"), "norm.rms"),
        (("explain", "norm.rms", "x=f33[4,64]"), "unknown dtype 'f33' in 'x=f33[4,64]'; expected one of f64, f32"),
        (("explain", "norm.rms", "x"), "expected NAME=VALUE"),
        (("explain", "norm.rms", "x=f32[99999999,99999999]"), ""),
        (("explain", "norm.rms", "x=f32[99999999999999999999]"), ""),
        (("tune", "norm.rms", "x=f32[4,64]", "--samples", "-3"), "expected a number above 0, got '-3'"),
        (("tune", "norm.rms", "x=f32[4,64]", "--samples", "99999999999999999999"), "expected a number above 0"),
        (("bench", "norm.rms", "x=f32[4,64]", "--seconds", "nan"), "expected a number above 0, got 'nan'"),
    ],
)
def test_errors_are_one_line(arguments, message):
    result = lz(*arguments)
    assert result.returncode in (1, 2) and message in result.stderr, result.stderr
    assert "Traceback" not in result.stderr and result.stdout == ""


@pytest.mark.parametrize(
    "dtype", ["f64", "f32", "f16", "bf16", "f8_e4m3", "i64", "i32", "i8", "u8", "bool", "float32", "bfloat16"]
)
def test_dtype_names_of_the_documentation_are_accepted(dtype):
    result = lz("explain", "embedding.lookup", f"table={dtype}[4,64]", "indices=i32[3]")
    assert "unknown dtype" not in result.stderr and "Traceback" not in result.stderr, result.stderr


def test_missing_ml_dtypes_is_named():
    code = "import sys; sys.modules['ml_dtypes'] = None\nfrom layerzero.cli import main\nsys.exit(main(['explain', 'norm.rms', 'x=bf16[4,64]']))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert result.returncode == 1 and "pip install ml_dtypes" in result.stderr, result.stderr
    assert "Traceback" not in result.stderr


def test_closed_pipe_ends_the_program_quietly():
    command = f"{sys.executable} -m layerzero kernels | head -1"
    result = subprocess.run(["bash", "-c", f"set -o pipefail; {command}"], capture_output=True, text=True, timeout=120)
    assert result.stdout and result.stderr == "", result.stderr
    assert result.returncode == 0


def test_weights_of_an_onnx_model_are_quantized(tmp_path):
    weight = np.array([[1, -2], [0.5, 4], [3, 1], [-1, 2]], np.float32)
    parts = [node("MatMul", "x w", "y")], [tensor("w", weight)], [value("x", "rows 4")], [value("y", "rows 2")]
    (tmp_path / "model.onnx").write_bytes(model(*parts))
    result = lz("compile", str(tmp_path / "model.onnx"), "--weights", "int8", "-o", str(tmp_path / "small.lz"), "--json")
    assert result.returncode == 0, result.stderr
    assert len(json.loads(result.stdout)["quantized"]) == 1
    again = lz("compile", str(tmp_path / "small.lz"), "--weights", "int8")
    assert again.returncode == 1 and "need an ONNX model" in again.stderr
    assert lz("compile", str(tmp_path / "model.onnx"), "--group", "64").returncode == 1


def test_tokens_of_a_text(tokenizer_path):
    result = lz("tokenize", str(tokenizer_path), "hello world", "--json")
    found = json.loads(result.stdout)
    assert found["ids"] == [266, 259, 264] and found["tokens"] == ["<|begin|>", "hello", "\u0120world"]
    assert found["offsets"] == [[0, 0], [0, 5], [5, 11]] and found["kernel"].startswith("tokenize.")
    shown = lz("tokenize", str(tokenizer_path), "hello world", "--no-special-tokens").stdout
    assert "2 tokens of 11 bytes" in shown and "' world'" in shown
    counted = lz("tokenize", str(tokenizer_path), "--count", "--json", input="hello world")
    assert json.loads(counted.stdout)["tokens"] == 3


def test_tokens_of_a_conversation(tokenizer_path, tmp_path):
    shutil.copy(tokenizer_path, tmp_path / "tokenizer.json")
    template = "{% for message in messages %}{{ message.content }}<tool>{% endfor %}{% if add_generation_prompt %}world{% endif %}"
    (tmp_path / "chat_template.jinja").write_text(template)
    messages = [{"role": "user", "content": "hello"}]
    found = json.loads(lz("tokenize", str(tmp_path), json.dumps(messages), "--chat", "--json").stdout)
    # No special tokens are added: the template has them.
    assert found["tokens"] == ["hello", "<tool>"]
    given = json.dumps({"messages": messages, "add_generation_prompt": True})
    assert json.loads(lz("tokenize", str(tmp_path), "--chat", "--json", "--count", input=given).stdout)["bytes"] == 16
    for wrong in ("nothing", "3", '{"tools": []}'):
        result = lz("tokenize", str(tmp_path), wrong, "--chat")
        assert result.returncode == 1 and "conversation" in result.stderr and "Traceback" not in result.stderr


def test_tokenizers_that_do_not_exist_are_one_line():
    result = lz("tokenize", "nothing-here", "a")
    assert result.returncode == 1 and "unknown tokenizer 'nothing-here'" in result.stderr and "Traceback" not in result.stderr


def test_indices_and_pointers_of_a_call_are_valid():
    """Zeros are no pointers into ragged rows; a stated statistic is that of the values."""
    ragged = ["attention.gqa.prefill.ragged", "q=f32[6,2,4]", "k=f32[6,2,4]", "v=f32[6,2,4]", "qo_indptr=i32[4]", "kv_indptr=i32[4]"]
    assert json.loads(lz("explain", *ragged, "--json").stdout)["plan"]["kernel"]
    arguments = _cli_arguments.call(ragged[0], [*ragged[1:], "max_seq_q=4"])
    assert arguments["qo_indptr"].tolist() == [0, 4, 5, 6] and arguments["kv_indptr"].tolist() == [0, 2, 4, 6]
    sizes = ["x=f32[8,4]", "indices=i32[8,2]", "weights=f32[8,2]", "gate_up_weight=f32[4,6,4]", "down_weight=f32[4,4,3]"]
    for load in (4, 7, 8, 11, 16):
        arguments = _cli_arguments.call("moe.experts", [*sizes, f"max_expert_load={load}"])
        assert layerzero.statistics("moe.experts", indices=arguments["indices"]) == {"max_expert_load": max(load, 4)}
    tuned = json.loads(lz("tune", "moe.experts", *sizes, "max_expert_load=11", "--samples", "3", "--json").stdout)
    assert tuned["kept"]
