"""GPU support tested without a GPU: descriptors, selection on a simulated GPU, recorded GPU runs, and backend conflicts."""

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from samples import samples

import layerzero as lz
from layerzero import _native, backends
from layerzero.backends import _verified

ml_dtypes = pytest.importorskip("ml_dtypes")
FOLDER = Path(backends.__file__).parent
RECORDS = Path(__file__).parents[4] / "results" / "h200"
OURS = {backend.name: backend for backend in backends.BACKENDS if f"{backend.name}.cuda.json" in backend.descriptors}


def ids(name):
    descriptor = json.loads((FOLDER / f"{name}.cuda.json").read_text())
    return [kernel["kernel_id"] for kernels in descriptor["ops"].values() for kernel in kernels]


@pytest.fixture(autouse=True)
def unregister_real_backends():
    """Other tests may have loaded installed backends; these tests are about machines without them."""
    for backend in {kernel["backend"] for kernel in lz.list_kernels()} & (OURS.keys() - {"torch", "torch_reference"}):
        lz.unregister_backend(backend)


@pytest.fixture
def registered():
    """Registers backends that are not installed, with functions that are never called."""
    names = []

    def one(name):
        text = (FOLDER / f"{name}.cuda.json").read_text()
        if any(kernel["backend"] == name for kernel in lz.list_kernels()):
            return
        _native.register_descriptor(
            name, text, dict.fromkeys(ids(name), print), lambda kernel, operation, call: [kernel], reference=OURS[name].reference
        )
        names.append(name)

    yield one
    for name in names:
        lz.unregister_backend(name)


def bf16(*shape):
    return np.zeros(shape, ml_dtypes.bfloat16)


def on_h200(operation, **arguments):
    answer = json.loads(_native.explain_on("h200", operation, (), arguments))
    return {one["kernel"]: {reason["code"] for reason in one.get("reasons", [])} for one in answer["candidates"]}


@pytest.mark.parametrize("name", [name for name in OURS if name != "torch"])
def test_descriptor_is_valid_and_registers_all_its_kernels(registered, name):
    registered(name)
    assert {kernel["id"] for kernel in lz.list_kernels(backend=name)} == set(ids(name))
    assert all(kernel["platform"] == "cuda" for kernel in lz.list_kernels(backend=name))


def of_tensors():
    """Tensor operations of the catalog: other tests register operations of their own, and text operations run on the host."""
    return {name for name in lz.list_operations() if not name.startswith(("tokenize.", "test."))}


def test_every_tensor_operation_has_a_gpu_reference():
    described = json.loads((FOLDER / "torch_reference.cuda.json").read_text())["ops"]
    assert set(described) == of_tensors()
    assert all(kernel["deterministic"] and "limits" not in kernel for (kernel,) in described.values())


def flat_samples():
    for name, (arguments, keywords) in samples().items():
        operation = next(known for known in lz.list_operations() if known.replace(".", "_") == name)
        yield operation, arguments, keywords


def chosen_on_h200(operation, arguments, keywords):
    answer = json.loads(_native.explain_on("h200", operation, arguments, keywords))
    chosen = [one for one in answer["candidates"] if one["chosen"]]
    assert chosen, f"{operation}: {answer['candidates']}"
    return chosen[0]


def test_disabled_selects_the_gpu_reference_for_every_operation(registered):
    for name in ("flash_attn", "apex", "torch_reference"):
        registered(name)
    with lz.disabled():
        for operation, arguments, keywords in flat_samples():
            one = chosen_on_h200(operation, arguments, keywords)
            assert one["kernel"] == f"torch.reference.{operation}" and one["reference"], operation
            on_host = lz.which(operation, *arguments, **keywords)
            assert on_host.kernel_id == f"reference.{operation}"


def test_deterministic_calls_have_a_kernel_on_the_gpu_for_every_operation(registered):
    for name in ("flash_attn", "apex", "torch_reference"):
        registered(name)
    known = {kernel["id"]: kernel for kernel in lz.list_kernels()}
    lz.configure(deterministic=True)
    try:
        for operation, arguments, keywords in flat_samples():
            assert known[chosen_on_h200(operation, arguments, keywords)["kernel"]]["deterministic"], operation
    finally:
        lz.configure(deterministic=False)


def test_readiness_lists_operations_without_a_kernel(registered):
    registered("torch_reference")
    report = lz.readiness_check(["cpu", "cuda"]).to_dict()
    check = next(one for one in report["checks"] if one["name"] == "kernels")
    # Operations registered by other tests have host kernels at most.
    assert report["platforms"] == ["cpu", "cuda"] and not any(name in check["detail"] for name in of_tensors())
    assert "tokenize." not in check["detail"]
    lz.unregister_backend("torch_reference")
    try:
        check = next(one for one in lz.readiness_check(["cuda"]).to_dict()["checks"] if one["name"] == "kernels")
        assert not check["ok"] and "no kernel on cuda: " in check["detail"] and "attention.cross.prefill" in check["detail"]
        assert "tokenize." not in check["detail"]
    finally:
        backends._STATES.pop("torch_reference", None)
        backends.load_imported()
    with pytest.raises(ValueError, match="gpu"):
        lz.readiness_check(["gpu"])


def test_a_descriptor_cannot_declare_itself_a_reference():
    text = (FOLDER / "torch_reference.cuda.json").read_text()
    description = json.loads(text)
    description["backend"] = "pretender"
    description["ops"] = {"norm.rms": [{**description["ops"]["norm.rms"][0], "reference": True}]}
    with pytest.raises(lz.LayerZeroError, match="reference"):
        _native.register_descriptor("pretender", json.dumps(description), {"torch.reference.norm.rms": print})


def test_score_expressions_have_a_kernel_with_limits(registered):
    registered("triton")
    registered("torch_reference")
    q, k = bf16(1, 64, 8, 128), bf16(1, 64, 2, 128)
    calls = {
        "prefill": {"q": q, "k": k, "v": k, "score_mod": "score * 2", "causal": True, "causal_offset": 3, "window_left": 7, "soft_cap": 2.0, "return_lse": True},
        "decode": {"q": q[:, 0], "k": k, "v": k, "score_mod": "score * 2", "window_left": 7, "soft_cap": 2.0, "return_lse": True},
    }
    for phase, call in calls.items():
        operation, kernel = f"attention.gqa.{phase}", f"triton.attention.gqa.{phase}.score_mod"
        optional = {"sinks": np.zeros(8, np.float32), "alibi_slopes": np.zeros(8, np.float32), "score_params": np.zeros((1, 8, 2), np.float32)}
        more = {"mask": np.ones((1, 1, 64, 64), bool)} if phase == "prefill" else {"kv_lens": np.full(1, 9, np.int32)}
        for given in ({}, optional, more):
            assert on_h200(operation, **call, **given)[kernel] == {"JIT_COLD"}, given
            assert on_h200(operation, **call, **given)[f"torch.reference.{operation}"] == set()
        assert "MISSING_ARGUMENT" in on_h200(operation, **{**call, "score_mod": None})[kernel]
        wide = {name: np.zeros((*one.shape[:-1], 264), one.dtype) if name in "qkv" else one for name, one in call.items()}
        assert "HEAD_DIM_TOO_LARGE" in on_h200(operation, **wide)[kernel]
        assert "HEAD_DIM_TOO_LARGE" in on_h200(operation, **{**call, "v": wide["v"]})[kernel]
    far = {**calls["prefill"], "causal_offset": 1 << 23}
    assert "AXIS_LIMIT" in on_h200("attention.gqa.prefill", **far)["triton.attention.gqa.prefill.score_mod"]


def test_cold_kernels_report_jit_cold_and_limits_decline(registered):
    registered("flashinfer")
    q, k = bf16(1, 64, 8, 128), bf16(1, 64, 2, 128)
    found = on_h200("attention.gqa.prefill", q=q, k=k, v=k, causal=True)
    assert found["flashinfer.fa3.single.gqa.prefill"] == {"JIT_COLD"}
    longer = bf16(1, 80, 8, 128)
    found = on_h200("attention.gqa.prefill", q=longer, k=k, v=k, causal=True)
    assert "CAUSAL_UNSUPPORTED" in found["flashinfer.fa3.single.gqa.prefill"]
    found = on_h200("attention.gqa.prefill", q=q, k=k, v=k, soft_cap=3.0)
    assert "SOFTCAP_UNSUPPORTED" in found["flashinfer.fa3.single.gqa.prefill"]
    assert found["flashinfer.fa2.single.gqa.prefill"] == {"JIT_COLD"}


def test_hopper_kernels_are_rejected_on_ampere(registered):
    registered("flashinfer")
    q = bf16(1, 64, 8, 128)
    answer = json.loads(_native.explain_on("a100", "attention.standard.prefill", (q, q, q), {}))
    found = {one["kernel"]: {reason["code"] for reason in one.get("reasons", [])} for one in answer["candidates"]}
    assert found["flashinfer.fa3.single.standard.prefill"] - {"JIT_COLD"}
    assert found["flashinfer.fa2.single.standard.prefill"] == {"JIT_COLD"}


def test_8_bit_formats_use_the_triton_kernel_and_4_bit_formats_are_declined_on_hopper(registered):
    for name in ("triton", "flashinfer"):
        registered(name)
    x = bf16(4, 64, 256)
    for format in ("int8", "fp8_e4m3", "fp8_e5m2"):
        for granularity in ("tensor", "channel", "head", "block"):
            assert on_h200("quantize", x=x, format=format, granularity=granularity)["triton.quantize"] == {"JIT_COLD"}
    for format in ("mxfp4", "nvfp4"):
        found = on_h200("quantize", x=x, format=format, granularity="block")
        on_cards = {kernel: codes for kernel, codes in found.items() if kernel.startswith(("triton.", "flashinfer.", "torch.cuda."))}
        assert on_cards and all("QUANT_FORMAT_UNSUPPORTED" in codes for codes in on_cards.values())
    # Before Hopper, a conversion to 8 bits goes through 16 bits and rounds twice.
    answer = json.loads(_native.explain_on("a100", "quantize", (), {"x": x, "format": "fp8_e4m3", "granularity": "tensor"}))
    ours = next(one for one in answer["candidates"] if one["kernel"] == "triton.quantize")
    assert {reason["code"] for reason in ours["reasons"]} - {"JIT_COLD"}


def quantized_experts(format, granularity, rows=4, experts=4):
    codes = {"fp8_e4m3": ml_dtypes.float8_e4m3fn, "int8": np.int8, "int4": np.uint8}[format]
    inner, width = 256, 128 if format == "int4" else 256
    shapes = {"tensor": [()] * 2, "row": [(512,), (256,)], "group": [(512, 8), (256, 8)], "block": [(4, 2), (2, 2)]}[granularity]
    scales = [np.ones((experts, *shape), np.float32) for shape in shapes]
    return {
        "x": bf16(rows, inner), "indices": np.zeros((rows, 2), np.int32), "weights": np.ones((rows, 2), np.float32),
        "gate_up_weight": np.zeros((experts, 512, width), codes), "gate_up_scale": scales[0],
        "down_weight": np.zeros((experts, 256, width), codes), "down_scale": scales[1], "format": format, "granularity": granularity,
    }  # fmt: skip


def test_quantized_experts_use_the_triton_kernel(registered):
    registered("triton")
    registered("torch_reference")
    operation, kernel = "moe.experts.quantized", "triton.moe.experts.quantized"
    for format in ("fp8_e4m3", "int8", "int4"):
        for granularity in ("tensor", "row", "group", "block"):
            assert on_h200(operation, **quantized_experts(format, granularity))[kernel] == {"JIT_COLD"}
    assert "AXIS_LIMIT" in on_h200(operation, **quantized_experts("int8", "tensor", experts=1025))[kernel]
    assert "ZERO_SIZE_UNSUPPORTED" in on_h200(operation, **quantized_experts("int8", "tensor", rows=0))[kernel]
    # Triton converts no FP8 before Ada.
    answer = json.loads(_native.explain_on("a100", operation, (), quantized_experts("fp8_e4m3", "block")))
    ours = next(one for one in answer["candidates"] if one["kernel"] == kernel)
    assert {reason["code"] for reason in ours["reasons"]} - {"JIT_COLD"}


@pytest.mark.parametrize("format", ["nvfp4", "mxfp4"])
def test_fp4_layers_have_triton_kernels_by_number_of_rows(registered, format):
    registered("triton")
    kinds = {"nvfp4": (ml_dtypes.float8_e4m3fn, 8), "mxfp4": (ml_dtypes.float8_e8m0fnu, 16)}
    dtype, block = kinds[format]

    def declined(rows, stored=128, outer=96, **more):
        call = {
            "x": np.zeros((rows, stored), np.uint8), "weight": np.zeros((outer, stored), np.uint8), "x_scale": np.zeros((rows, -(-stored // block)), dtype),
            "weight_scale": np.zeros((outer, -(-stored // block)), dtype), "format": format, **more,
        }  # fmt: skip
        found = on_h200("mlp.linear.fp4", **call)
        return [found[f"triton.mlp.linear.fp4{name}"] - {"JIT_COLD"} for name in (".skinny", "")]

    assert declined(1) == declined(64) == [set(), {"AXIS_LIMIT"}]
    assert declined(65) == declined(256, 17, 5, bias=np.zeros(5, ml_dtypes.bfloat16), activation="gelu") == [set(), set()]
    assert declined(257) == [{"AXIS_LIMIT"}, set()]
    assert all("ZERO_SIZE_UNSUPPORTED" in codes for codes in (*declined(0), *declined(3, outer=0)))


def test_quantized_tables_have_a_triton_kernel(registered):
    registered("triton")
    formats = {"int8": np.int8, "uint8": np.uint8, "int4": np.uint8, "uint4": np.uint8, "fp8_e4m3": ml_dtypes.float8_e4m3fn, "mxfp4": np.uint8}
    for format, dtype in formats.items():
        for granularity in ("channel", "block") if format != "mxfp4" else ("block",):
            dim = 64 if dtype is not np.uint8 or format == "uint8" else 128
            scale = np.ones((7, dim // 32) if granularity == "block" else 7, np.float32 if format != "mxfp4" else ml_dtypes.float8_e8m0fnu)
            call = {"table": np.zeros((7, 64), dtype), "scale": scale, "format": format, "granularity": granularity, "output_dtype": "bf16"}
            for tokens, expected in ((3, set()), (0, {"ZERO_SIZE_UNSUPPORTED"})):
                found = on_h200("embedding.lookup.quantized", ids=np.zeros(tokens, np.int64), **call)
                assert found["triton.embedding.lookup.quantized"] - {"JIT_COLD"} == expected, format


def test_warmup_makes_a_cold_kernel_eligible(registered):
    compiled_calls = []
    text = (FOLDER / "triton.cuda.json").read_text()
    # The same kernels on the host, so that only the compiler is missing.
    text = re.sub(r'"min_sm": \d+,?', "", text.replace('"platform": "cuda"', '"platform": "cpu"')).replace(",\n      }", "\n      }")
    description = json.loads(re.sub(r",\s*}", "}", text))
    description["backend"] = "coldone"

    def compile(kernel, operation, call):
        compiled_calls.append((kernel, operation, call["hidden"], call["T"]))
        return ["made"]

    _native.register_descriptor("coldone", json.dumps(description), dict.fromkeys(ids("triton"), lambda x, weight, **_: x), compile)
    try:
        x = np.ones((2, 8), np.float32)
        call = ("norm.rms", {"x": x})
        before = {one["kernel"]: one.get("reasons", []) for one in lz.explain("norm.rms", x).to_dict()["candidates"]}
        assert [reason["code"] for reason in before["triton.norm.rms"]] == ["JIT_COLD"]
        report = lz.warmup([call]).to_dict()
        assert compiled_calls == [("triton.norm.rms", "norm.rms", "8", "f32")]
        assert report["compiled"] == [{"kernel": "triton.norm.rms", "artifacts": ["made"]}]
        after = {one["kernel"]: one.get("reasons", []) for one in lz.explain("norm.rms", x).to_dict()["candidates"]}
        assert after["triton.norm.rms"] == []
    finally:
        lz.unregister_backend("coldone")


def test_cold_kernel_is_compiled_in_the_background(registered):
    text = (FOLDER / "triton.cuda.json").read_text()
    description = json.loads(text)
    description["backend"], description["platform"] = "coldtwo", "cpu"
    description["ops"] = {"activation.silu_mul": [{**description["ops"]["activation.silu_mul"][0], "min_sm": None, "priority": 99}]}
    served = []

    def kernel(gate, up, **_):
        served.append(1)
        return gate * 0 + 7

    _native.register_descriptor("coldtwo", json.dumps(description), {"triton.activation.silu_mul": kernel}, lambda *_: ["made"])
    try:
        gate = np.ones(16, np.float32)
        first = lz.ops.activation_silu_mul(gate, gate)
        assert not served and abs(first[0] - 0.7310586) < 1e-5
        assert _native.wait_for_compilations(20.0)
        second = lz.ops.activation_silu_mul(gate, gate)
        assert served and second[0] == 7
        assert json.loads(_native.compilations())["compiled"] >= 1
    finally:
        lz.unregister_backend("coldtwo")


def test_backend_built_for_another_cuda_is_disabled(tmp_path, monkeypatch):
    info = tmp_path / "apex-0.1+cu99.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: apex\nVersion: 0.1+cu99\n")
    (tmp_path / "apex.py").write_text("raise RuntimeError('must not be imported')")
    monkeypatch.syspath_prepend(str(tmp_path))
    real = backends._version
    monkeypatch.setattr(backends, "_version", lambda name: "2.11.0+cu130" if name == "torch" else real(name))
    try:
        assert "apex" not in lz.load_backends("apex")
        found = {one["name"]: one for one in lz.doctor().to_dict()["backends"]}["apex"]
        assert found["available"] is False and "CUDA 99" in found["reason"] and "CUDA 13" in found["reason"]
    finally:
        lz.unregister_backend("apex")
        backends._STATES.pop("apex", None)


def test_library_that_imports_but_does_not_work_is_disabled(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.syspath_prepend(str(tmp_path))
    info = tmp_path / "xformers-0.0.35.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: xformers\nVersion: 0.0.35\n")
    package = tmp_path / "xformers"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "_cpp_lib.py").write_text("_cpp_library_load_exception = OSError('built for another torch')")
    try:
        assert "xformers" not in lz.load_backends("xformers")
        found = {one["name"]: one for one in lz.doctor().to_dict()["backends"]}["xformers"]
        assert found["available"] is False and "built for another torch" in found["reason"]
    finally:
        lz.unregister_backend("xformers")
        backends._STATES.pop("xformers", None)


def test_cuda_version_of_a_build_is_parsed():
    assert backends.cuda_of("2.8.3+cu12torch2.9") == 12
    assert backends.cuda_of("2.11.0+cu130") == 13
    assert backends.cuda_of("0.8.5") is None
    assert {row["backend"] for row in backends.matrix()} >= set(OURS)


def records():
    """Recorded GPU runs by backend."""
    found = [json.loads(path.read_text()) for path in sorted(RECORDS.glob("*-h200.json"))]
    return {record["backend"]: record for record in found if "runs" in record}


@pytest.mark.parametrize("name", sorted(records()))
def test_recorded_gpu_runs_are_of_existing_kernels(name):
    ran = {line["kernel"] for line in records()[name]["runs"] if "off" in line}
    assert ran and ran <= set(ids(name))


def test_verified_backends_have_a_recorded_gpu_run_without_errors():
    for name, platforms in _verified.recorded().items():
        record = records()[name]
        assert name in OURS and set(platforms) == {"cuda"}
        assert record["digest"] == platforms["cuda"]["digest"], f"{name}: verified.json is of another run than {RECORDS}"
        ran = {line["kernel"] for line in record["runs"] if "off" in line}
        assert record["bad"] == 0 and (not _verified.verification(name).is_verified or ran == set(ids(name)))
        assert all(line["off"] <= 1 for line in record["runs"] if "off" in line)


def test_changed_adapters_are_unverified(tmp_path):
    """A record is valid for the code and the descriptor that ran, and for no other."""
    copy = tmp_path / "backends"
    shutil.copytree(FOLDER, copy, ignore=shutil.ignore_patterns("__pycache__"))
    for name in OURS:
        before = _verified.digest(name, folder=copy)
        assert before == _verified.digest(name), name
        for path in (copy / f"{name}.cuda.json", *[path for path in (copy / f"{name}.py", copy / name / "__init__.py") if path.is_file()]):
            content = path.read_text()
            path.write_text(content + "\n")
            assert _verified.digest(name, folder=copy) != before, path
            path.write_text(content)
        assert _verified.digest(name, folder=copy) == before
    record = {"digest": _verified.digest("triton"), "date": "2026-01-01", "device": "a GPU", "library": "triton 3.6.0"}
    assert _verified.verification("triton", records={"triton": {"cuda": record}}).is_verified
    stale = _verified.verification("triton", records={"triton": {"cuda": {**record, "digest": "0"}}})
    assert not stale.is_verified and "have changed since the run of 2026-01-01 on a GPU" in stale.reason
    missing = _verified.verification("triton", records={})
    assert not missing.is_verified and "no recorded run" in missing.reason


def test_priorities_alone_select_well_on_recorded_measurements():
    """Latency of the kernel with the highest priority relative to the best kernel, by the recorded benchmark."""
    table = json.loads((RECORDS / "bench-h200.json").read_text())
    priorities = {
        kernel["kernel_id"]: kernel["priority"]
        for name in OURS
        for kernels in json.loads((FOLDER / f"{name}.cuda.json").read_text())["ops"].values()
        for kernel in kernels
    }
    over = {}
    for row in table["results"]:
        # Kernels that have been replaced since the recording are ignored.
        took = {kernel: time for kernel, time in row["kernels_us"].items() if kernel in priorities}
        chosen = max(took, key=lambda kernel: (priorities[kernel], kernel))
        over.setdefault(row["family"], []).append(took[chosen] / min(took.values()))
    everything = [one for several in over.values() for one in several]
    assert sum(everything) / len(everything) < 1.03
    assert {family: sum(several) / len(several) for family, several in over.items() if sum(several) / len(several) > 1.1} == {}
