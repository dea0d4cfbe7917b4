"""The command line `lz`: errors are one line with a remedy, never a traceback."""

import json
import math
import os
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
        (("explain", "norm.rms", "x=f32[4,64]", "x=f32[4,65]"), "the argument 'x' is given twice; the second time as 'x=f32[4,65]'"),
        (("explain", "norm.rms", "x=f32[-4,64]"), "'x=f32[-4,64]' is not a tensor; expected its dtype and sizes"),
        (("explain", "norm.rms", "x=f32[4,64"), "is not a tensor"),
        (("bench", "norm.rms", "x=f32[4,64]", "--output", "a.json"), "--output is only for `lz bench gpu`"),
        (("perfdb", "prune"), "needs --operation or --kernel"),
        (("perfdb", "export", "/nope/x"), "/nope/x: No such file"),
        (("perfdb", "show", "--operation", "norm.rmss"), "unknown operation `norm.rmss`; did you mean `norm.rms`?"),
        (("perfdb", "show", "--operation", "norm.rms", "--kernel", "nope"), "unknown kernel 'nope' of norm.rms, which has no measurements"),
        (("perfdb", "prune", "--kernel", "nope"), "unknown kernel 'nope', which has no measurements"),
        (("compile", __file__), "is no compiled model"),
        (("kernels", "--backend", "nope"), "unknown backend 'nope'"),
        (("serve", "--port", "-1"), "`port` must be"),
        (("new-op", "import"), "would hide another one"),
        (("new-op", "numpy"), "would hide another one"),
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


def shell(command, **options):
    command = command.replace("lz ", f"{sys.executable} -m layerzero ")
    return subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=120, **options)


def test_closed_and_full_streams_are_no_traceback():
    for command, code, message in [
        ("lz kernels >&-", 0, ""),
        ("lz kernels >&- 2>&-", 0, ""),
        ("lz kernels >/dev/full", 1, "lz: the output cannot be written: "),
        ("lz tokenize o200k_base <&-", 1, "lz: no text: standard input is closed"),
        (r"printf 'ab\xff' | lz tokenize o200k_base", 1, "lz: the text is not UTF-8: byte 0xff at position 2"),
        (r"lz tokenize o200k_base $'ab\xff'", 1, "lz: the text is not UTF-8: byte 0xff at position 2"),
    ]:
        result = shell(command)
        assert result.returncode == code and message in result.stderr and "Traceback" not in result.stderr, (command, result.stderr)
        assert bool(message) == bool(result.stderr), (command, result.stderr)


@pytest.mark.parametrize("encoding", ["latin-1", "ascii"])
def test_characters_that_the_terminal_does_not_have_are_replaced(encoding):
    environment = {**os.environ, "PYTHONIOENCODING": encoding}
    result = subprocess.run([sys.executable, "-m", "layerzero", "ops", "norm.rms"], capture_output=True, timeout=120, env=environment)
    assert result.returncode == 0 and b"norm.rms" in result.stdout, result.stderr


def test_values_of_params_as_python_writes_them():
    assert _cli_arguments.parse(["a=True", "b=False", "c=None", "d=-inf", "e=true", "f=word"]) == {
        "a": True, "b": False, "c": None, "d": -math.inf, "e": True, "f": "word"
    }  # fmt: skip
    assert math.isnan(_cli_arguments.parse(["eps=nan"])["eps"])
    attention = ["attention.gqa.prefill", "q=f32[1,4,2,8]", "k=f32[1,4,2,8]", "v=f32[1,4,2,8]", "causal=True"]
    assert lz("explain", *attention).returncode == 0


def test_a_missing_package_is_named():
    code = "import sys; sys.modules['numpy'] = None\nfrom layerzero.cli import main\nsys.exit(main({}))"
    commands = (["bench", "norm.rms", "x=f32[4,64]"], ["tokenize", "gpt2", "hi"])
    bench, tokenize = (subprocess.run([sys.executable, "-c", code.format(one)], capture_output=True, text=True, timeout=120) for one in commands)
    assert bench.returncode == 1 and "pip install numpy" in bench.stderr and "Traceback" not in bench.stderr, bench.stderr
    assert tokenize.returncode == 0 and "1 token of 2 bytes" in tokenize.stdout, tokenize.stderr


def test_an_unknown_kernel_in_a_policy_is_a_warning(tmp_path):
    (tmp_path / "layerzero.yaml").write_text("locks: { norm.rms: cpu.norm.rms }\n")
    result = lz("config", "--file", str(tmp_path / "layerzero.yaml"))
    assert result.returncode == 0 and result.stderr.count("\n") == 1, result.stderr
    assert "`cpu.norm.rms`" in result.stderr and "matches no registered kernel" in result.stderr


def test_warnings_show_no_source_code():
    result = lz("ops", env={**os.environ, "LAYERZERO_PREFFER": "cpu"})
    assert result.returncode == 0 and result.stderr.startswith("lz: warning: unknown environment variable") and result.stderr.count("\n") == 1


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


def test_the_verified_kernel_of_a_tokenizer_is_shown(tokenizer_path):
    call = ("tokenize.encode", "texts=hello", f"tokenizer={tokenizer_path}")
    kernels = [one["kernel"] for one in json.loads(lz("bench", *call, "--seconds", "0.01", "--json").stdout)["kernels"]]
    assert kernels[0] == json.loads(lz("explain", *call, "--json").stdout)["plan"]["kernel"]
    assert kernels[0].startswith("tokenize.") and not kernels[0].endswith("reference"), kernels


def test_settings_of_a_definition_are_ignored_on_request(tokenizer_path, tmp_path):
    definition = json.loads(tokenizer_path.read_text()) | {"truncation": {"direction": "Right", "max_length": 4, "strategy": "LongestFirst", "stride": 0}}
    (tmp_path / "tokenizer.json").write_text(json.dumps(definition))
    refused = lz("tokenize", str(tmp_path), "hello")
    assert refused.returncode == 1 and str(tmp_path / "tokenizer.json") in refused.stderr, refused.stderr
    assert lz("tokenize", str(tmp_path), "hello", "--whole-texts").returncode == 0
