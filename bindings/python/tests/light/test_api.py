"""The common functions, inspection, configuration and the command line."""

import copy
import json
import pickle
import shutil
import subprocess
import sys

import numpy as np
import pytest

import layerzero as lz
from layerzero.cli import main


def random(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def softmax_attention(q, k, v, causal):
    """Rank 4, BSHD, any ratio of query heads to key heads."""
    k, v = (np.repeat(t, q.shape[2] // t.shape[2], axis=2) for t in (k, v))
    scores = np.einsum("bqhd,bkhd->bhqk", q, k) / np.sqrt(q.shape[-1])
    if causal:
        positions = np.arange(q.shape[1])[:, None] + k.shape[1] - q.shape[1]
        scores = np.where(np.arange(k.shape[1]) <= positions, scores, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    return np.einsum("bhqk,bkhd->bqhd", weights, v)


@pytest.mark.parametrize("kv_heads", [4, 2])
@pytest.mark.parametrize("causal", [False, True])
def test_attention_selects_the_operation_and_never_infers_the_layout(kv_heads, causal):
    q, k, v = random(2, 3, 4, 8), random(2, 5, kv_heads, 8, seed=1), random(2, 5, kv_heads, 8, seed=2)
    expected = softmax_attention(q, k, v, causal)
    np.testing.assert_allclose(lz.attention(q, k, v, causal=causal), expected, rtol=1e-4, atol=1e-5)
    swapped = [np.ascontiguousarray(t.swapaxes(1, 2)) for t in (q, k, v)]
    other = lz.attention(*swapped, causal=causal, layout="BHSD")
    np.testing.assert_allclose(other.swapaxes(1, 2), expected, rtol=1e-4, atol=1e-5)
    step = lz.attention(q[:, -1], k, v)
    np.testing.assert_allclose(step, softmax_attention(q[:, -1:], k, v, True)[:, 0], rtol=1e-4, atol=1e-5)


def test_a_layout_is_taken_from_the_number_of_heads_only_if_it_is_the_only_one():
    q, k = random(1, 5, 8, 16), random(1, 7, 2, 16)
    np.testing.assert_array_equal(lz.attention(q, k, k, layout=None), lz.attention(q, k, k))
    swapped = (np.ascontiguousarray(one.swapaxes(1, 2)) for one in (q, k))
    q, k = swapped
    np.testing.assert_array_equal(lz.attention(q, k, k, layout=None), lz.attention(q, k, k, layout="BHSD"))
    for shapes, code in (((1, 8, 32, 16), (1, 8, 32, 16)), "LAYOUT_AMBIGUOUS"), (((1, 3, 5, 16), (1, 2, 2, 16)), "SHAPE_MISMATCH"):
        q, k = (random(*shape) for shape in shapes)
        with pytest.raises(lz.ValidationError, match="pass layout") as error:
            lz.attention(q, k, k, layout=None)
        assert [reason.code for reason in error.value.reasons] == [code]


def test_attention_refuses_arguments_that_do_not_apply():
    q, k = random(2, 4, 8), random(2, 5, 4, 8)
    with pytest.raises(ValueError, match="mask cannot be used in a decode step"):
        lz.attention(q, k, k, random(2, 4, 1, 5))
    with pytest.raises(ValueError, match="rank 4"):
        lz.attention(k[0], k[0], k[0])


@pytest.mark.parametrize("kv_heads", [4, 2])
def test_paged_attention_takes_block_tables_and_csr(kv_heads):
    pages, page_size = 6, 2
    k_cache, v_cache = random(pages, page_size, kv_heads, 8), random(pages, page_size, kv_heads, 8, seed=1)
    tables = np.array([[4, 1, 0], [2, 5, 3]], np.int32)
    lengths = np.array([3, 6], np.int32)
    q = random(2, 4, 8, seed=2)
    by_tables = lz.paged_attention(q, k_cache, v_cache, block_tables=tables, context_lens=lengths)
    by_csr = lz.paged_attention(
        q,
        k_cache,
        v_cache,
        kv_indptr=np.array([0, 2, 5], np.int32),
        kv_indices=np.array([4, 1, 2, 5, 3], np.int32),
        kv_last_page_len=np.array([1, 2], np.int32),
    )
    np.testing.assert_array_equal(by_tables, by_csr)
    for row, (table, length) in enumerate(zip(tables, lengths, strict=True)):
        k, v = (cache[table].reshape(-1, kv_heads, 8)[None, :length] for cache in (k_cache, v_cache))
        expected = softmax_attention(q[row][None, None], k, v, False)[0, 0]
        np.testing.assert_allclose(by_tables[row], expected, rtol=1e-4, atol=1e-5)
    prefill = lz.paged_attention(
        q, k_cache, v_cache, block_tables=tables, context_lens=lengths, qo_indptr=np.array([0, 1, 2], np.int32)
    )
    np.testing.assert_allclose(prefill, by_tables, rtol=1e-4, atol=1e-5)
    with pytest.raises(ValueError, match="pages are missing"):
        lz.paged_attention(q, k_cache, v_cache)


def test_norms_rope_and_sampling():
    x, w = random(3, 8), random(8, seed=1)
    np.testing.assert_array_equal(lz.rms_norm(x, w), lz.ops.norm_rms(x, w))
    mean, variance = x.mean(-1, keepdims=True), x.var(-1, keepdims=True)
    np.testing.assert_allclose(lz.layer_norm(x, w), (x - mean) / np.sqrt(variance + 1e-5) * w, rtol=1e-4, atol=1e-5)
    angles = np.arange(5)[:, None] / 10 ** np.arange(4)
    y = lz.rope(random(1, 5, 2, 8), np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32))
    np.testing.assert_allclose(np.linalg.norm(y), np.linalg.norm(random(1, 5, 2, 8)), rtol=1e-5)
    logits = random(4, 16)
    assert lz.sample_topk(logits, 1).tolist() == logits.argmax(-1).tolist()
    assert lz.sample_topp(logits, 1e-6).tolist() == logits.argmax(-1).tolist()
    assert lz.sample_topk(logits, 8, seed=3).tolist() == lz.sample_topk(logits, 8, seed=3).tolist()


def test_tokenize_roundtrip(tokenizer_path):
    texts = ["hello world", "héllo"]
    tokens = lz.tokenize(texts, tokenizer_path)
    assert lz.tokenize(texts[0], tokenizer_path) == tokens[0]
    assert lz.detokenize(tokens, tokenizer_path) == texts
    assert lz.detokenize(tokens[1], lz.Tokenizer.from_file(tokenizer_path)) == texts[1]
    _, offsets = lz.tokenize(texts, tokenizer_path, return_offsets=True)
    assert len(offsets[0]) == len(tokens[0])


def test_quantize_roundtrip():
    x = random(4, 64)
    for format, bound in (("int8", 0.02), ("fp8_e4m3", 0.3)):
        stored, scale = lz.quantize(x, format)
        np.testing.assert_allclose(lz.dequantize(stored, scale, format), x, atol=bound)


def test_listing_and_validation():
    assert "norm.rms" in lz.list_operations()
    kernels = lz.list_kernels("norm.rms")
    assert {kernel["backend"] for kernel in kernels} >= {"cpu", "reference"}
    assert all(kernel["backend"] == "cpu" for kernel in lz.list_kernels(backend="cpu"))
    assert lz.validate("norm.rms", random(2, 4)) == []
    (reason,) = lz.validate("norm.rms", random(2, 4), random(5))
    assert reason.code == "AXIS_MISMATCH" and reason.argument == "weight"


def test_explanations_are_tables_html_and_data():
    explanation = lz.explain("norm.rms", random(2, 4))
    assert "reference.norm.rms" in str(explanation) and "<table>" in explanation._repr_html_()
    data = explanation.to_dict()
    assert {candidate["kernel"] for candidate in data["candidates"]} >= {data["plan"]["kernel"], "reference.norm.rms"}
    json.dumps(data)


def test_doctor_and_readiness():
    report = lz.doctor()
    data = report.to_dict()
    assert data["devices"][0]["name"] and any(backend["name"] == "cpu" for backend in data["backends"])
    assert "backends" in str(report) and "<table>" in report._repr_html_()
    assert {check["name"] for check in lz.readiness_check().to_dict()["checks"]} >= {"kernels", "health"}


def test_configuration_reports_sources():
    assert lz.config()["deterministic"].source == "default"
    lz.configure(deterministic=True)
    try:
        entry = lz.config()["deterministic"]
        assert entry.value == "true" and entry.source == "lz.configure"
    finally:
        lz.configure(deterministic=False)
    with pytest.raises(lz.ConfigurationError):
        lz.configure(deterministics=True)


def test_batch_invariance_gives_the_same_bits_in_every_batch():
    x, weight = random(33, 64), random(48, 64)
    lz.configure({"batch_invariance.require_batch_invariant": True})
    try:
        assert lz.which("mlp.linear", x[:1], weight).kernel_id == lz.which("mlp.linear", x, weight).kernel_id
        whole = lz.ops.mlp_linear(x, weight)
        for count in (1, 2, 8, 9):
            for start in (0, 17, 33 - count):
                part = lz.ops.mlp_linear(x[start : start + count], weight)
                assert part.tobytes() == whole[start : start + count].tobytes()
        assert "BATCH_INVARIANCE_REQUIRED" in str(lz.explain("mlp.linear", x, weight))
    finally:
        lz.configure({"batch_invariance.require_batch_invariant": False})
    assert "batch_invariant" not in lz.which("mlp.linear", x[:1], weight).kernel_id


def test_lock_and_unlock():
    x = random(2, 4)
    free = lz.which("norm.rms", x).kernel_id
    lz.lock("norm.rms", "reference.norm.rms")
    try:
        assert lz.which("norm.rms", x).kernel_id == "reference.norm.rms"
    finally:
        lz.unlock("norm.rms")
    assert lz.which("norm.rms", x).kernel_id == free
    with pytest.raises(lz.ConfigurationError, match="did you mean"):
        lz.lock("norm.rm", "x")


def test_scopes_apply_to_their_block_and_nest():
    x = random(2, 4)
    free = lz.which("norm.rms", x).kernel_id
    with lz.disabled():
        assert lz.which("norm.rms", x).kernel_id == "reference.norm.rms"
        with lz.prefer("cpu"):
            assert lz.which("norm.rms", x).kernel_id == "reference.norm.rms"
    with lz.prefer("reference"):
        lz.which("norm.rms", x)
    assert lz.which("norm.rms", x).kernel_id == free


def test_a_policy_file(tmp_path):
    path = tmp_path / "layerzero.yaml"
    path.write_text("version: 1\nlocks:\n  norm.layer: reference.norm.layer\n")
    x = random(2, 4)
    free = lz.which("norm.layer", x).kernel_id
    lz.load_config(path)
    try:
        assert lz.which("norm.layer", x).kernel_id == "reference.norm.layer"
    finally:
        path.write_text("version: 1\n")
        lz.load_config(path)
    assert lz.which("norm.layer", x).kernel_id == free
    path.write_text("version: 1\nlock:\n  norm.layer: x\n")
    with pytest.raises(lz.ConfigurationError, match="locks"):
        lz.load_config(path)


def run(capsys, *arguments):
    code = main(arguments)
    return code, capsys.readouterr()


@pytest.mark.parametrize(
    "arguments",
    [
        ["doctor"],
        ["ops"],
        ["ops", "norm.rms"],
        ["kernels", "norm.rms"],
        ["explain", "norm.rms", "x=f32[4,64]", "eps=1e-5"],
        ["config"],
        ["bench", "norm.rms", "x=f32[4,64]", "--seconds", "0.001"],
    ],
)
def test_commands_print_tables_and_json(capsys, arguments):
    code, printed = run(capsys, *arguments)
    assert code == 0 and printed.out.strip()
    code, printed = run(capsys, *arguments, "--json")
    assert code == 0 and isinstance(json.loads(printed.out), dict)


def test_a_fresh_process_is_ready():
    # In this process other tests may have left operations without kernels.
    for flags in ([], ["--json"]):
        done = subprocess.run([sys.executable, "-m", "layerzero", "ready", *flags], capture_output=True, text=True)
        assert done.returncode == 0 and "circuits" in done.stdout, done.stderr


def test_commands_report_errors(capsys):
    code, printed = run(capsys, "explain", "norm.rm", "x=f32[4,64]")
    assert code == 1 and "did you mean" in printed.err
    code, printed = run(capsys, "explain", "norm.rms", "x=f32[4,64]", "weight=f32[3]", "--json")
    assert code == 1 and json.loads(printed.out)["reasons"][0]["code"] == "AXIS_MISMATCH"


def test_new_op_writes_a_valid_schema(capsys, tmp_path):
    code, printed = run(capsys, "new-op", "test.fresh", "--folder", str(tmp_path), "--json")
    path = json.loads(printed.out)["path"]
    assert code == 0 and "operation: test.fresh" in open(path).read()
    assert callable(lz.ops.test_fresh)


def test_completion_lists_every_command(capsys):
    for shell in ("bash", "zsh", "fish"):
        code, printed = run(capsys, "completion", shell)
        assert code == 0 and all(word in printed.out for word in ("doctor", "explain", "new-op"))
        code, as_json = run(capsys, "completion", shell, "--json")
        assert code == 0 and json.loads(as_json.out)["text"] == printed.out.rstrip("\n")


@pytest.mark.skipif(shutil.which("bash") is None, reason="completes for bash")
@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("lz doc", {"docs", "doctor"}),
        ("lz tune norm.", {name for name in lz.list_operations() if name.startswith("norm.")}),
        ("lz freeze -", {"-h", "--help", "--json", "--output", "-o", "--device", "--as"}),
        ("lz perfdb ex", {"export"}),
        ("lz nothing --", set()),
    ],
)
def test_completion_offers_valid_words(capsys, line, offered):
    _, printed = run(capsys, "completion", "bash")
    words = line.split(" ")
    command = f"COMP_WORDS=({line}); COMP_CWORD={len(words) - 1}; _lz; printf '%s\\n' \"${{COMPREPLY[@]}}\""
    found = subprocess.run(["bash", "-c", f"{printed.out}\n{command}"], capture_output=True, text=True, check=True)
    assert set(found.stdout.split()) == offered


@pytest.mark.parametrize("call", [lambda: lz.rms_norm(np.ones((2, 4), np.float32), np.ones(3, np.float32)), lambda: lz.explain("norm.nope")])
def test_errors_are_pickled_and_copied(call):
    with pytest.raises(lz.LayerZeroError) as caught:
        call()
    for other in (pickle.loads(pickle.dumps(caught.value)), copy.deepcopy(caught.value)):
        assert type(other) is type(caught.value) and str(other) == str(caught.value)
        assert [repr(reason) for reason in other.reasons] == [repr(reason) for reason in caught.value.reasons]
        assert other.reasons[0].found == caught.value.reasons[0].found


@pytest.mark.parametrize(
    "use",
    [
        lambda: lz.warmup("norm.rms"),
        lambda: lz.dry_run("norm.rms"),
        lambda: lz.solve("norm.rms"),
        lambda: lz.freeze(None, "norm.rms"),
        lambda: lz.plan_block("norm.rms"),
        lambda: lz.plan_block(["norm.rms"]),
    ],
)
def test_a_name_is_not_a_call(use):
    with pytest.raises(TypeError, match="a call is an operation and its arguments, such as .*, not 'norm.rms'"):
        use()


@pytest.mark.parametrize(
    ("use", "message"),
    [
        (lambda: lz.choose_format("foo"), "`calls` must map each format to its call"),
        (lambda: lz.tune("norm.rms", np.ones((2, 4), np.float32), samples=0), "`samples` must be an integer from 1 to 4294967295, not 0"),
        (lambda: lz.tune("norm.rms", np.ones((2, 4), np.float32), samples=-3), "`samples` must be"),
        (lambda: lz.register_kernel(operation="norm.rms", id="test.a", priority=256), "`priority` must be an integer from 0 to 100, not 256"),
        (lambda: lz.serve(-1), "`port` must be an integer from 0 to 65535, not -1"),
        (lambda: lz.register_operation("/nope.yaml"), "/nope.yaml: No such file"),
        (lambda: lz.import_definition("/nope.json"), "/nope.json: No such file"),
    ],
)
def test_wrong_values_are_named(use, message):
    with pytest.raises((TypeError, ValueError, OSError), match=message):
        use()
