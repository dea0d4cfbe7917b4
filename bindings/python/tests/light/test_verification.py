"""Verification of calls: a Python kernel that is wrong once in a while is found, quarantined and reproduced."""

import json

import numpy as np
import pytest

import layerzero as lz
from layerzero.cli import main

X = np.arange(1, 9, dtype=np.float32).reshape(2, 4)


@pytest.fixture(autouse=True)
def verification(tmp_path):
    lz.reset_kernel()
    lz.configure(verify="all", verify_directory=str(tmp_path))
    yield
    assert lz.wait_for_verification(60)
    lz.configure(verify="off")
    lz.unregister_backend("test")
    lz.reset_kernel()


def normalized(x, weight, eps, weight_offset):
    factor = 1 if weight is None else weight + weight_offset
    return (x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * factor).astype(x.dtype)


def register(wrong_every, priority=100):
    calls = []

    @lz.register_kernel(backend="test", operation="norm.rms", id="test.norm.rms", priority=priority)
    def rms(x, weight, *, eps, weight_offset):
        calls.append(x.shape)
        result = normalized(x, weight, eps, weight_offset)
        return result + 1 if len(calls) % wrong_every == 0 else result

    return calls


def mismatches():
    return {one["kernel"]: one["count"] for one in lz.metrics()["verification_mismatches"]}


def test_a_python_kernel_that_is_wrong_once_is_found_and_replayed(tmp_path, capsys):
    before = mismatches().get("test.norm.rms", 0)
    calls = register(wrong_every=5)
    expected = normalized(X, None, 1e-6, 0)
    for _ in range(12):
        lz.ops.norm_rms(X)
        assert lz.wait_for_verification(60)
    assert len(calls) == 5, "it is not called after its wrong result"
    np.testing.assert_allclose(lz.ops.norm_rms(X), expected, rtol=1e-5)
    assert mismatches()["test.norm.rms"] == before + 1
    [circuit] = [one for one in lz.list_circuits() if one["name"] == "test.norm.rms"]
    assert circuit["quarantined"] and circuit["refuses"] and "RESULT_MISMATCH" in circuit["last_error"]

    [file] = tmp_path.glob("*.safetensors")
    # The next call of the kernel is right.
    report = lz.repro(file)
    assert report.data["kernel"] == "test.norm.rms" and not report.data["reproduced"]
    assert report.data["reference_difference"], "the recorded result is wrong"
    assert len(calls) == 6
    # The tenth is wrong again.
    for _ in range(3):
        lz.repro(file)
    assert lz.repro(file).data["reproduced"] and len(calls) == 10
    assert main(["repro", str(file)]) == 0
    calls[:] = [None] * 4
    capsys.readouterr()
    assert main(["repro", "--json", str(file)]) == 1
    assert json.loads(capsys.readouterr().out)["kernel_now"]["outcome"] == "differs"


def test_a_reproducer_is_a_flashinfer_workload(tmp_path):
    register(wrong_every=1)
    weight = np.linspace(0.5, 2, 4, dtype=np.float32)
    lz.ops.norm_rms(X.reshape(1, 2, 4), weight, eps=1e-5)
    assert lz.wait_for_verification(60)
    [file] = tmp_path.glob("*.safetensors")
    definition, workload, tensors = lz.repro(file, export=tmp_path / "trace").data["exported"]
    definition = json.loads(open(definition).read())
    trace = json.loads(open(workload).read())
    assert trace["definition"] == definition["name"]
    inputs = trace["workload"]["inputs"]
    assert inputs["x"] == {"type": "safetensors", "path": tensors.rsplit("/", 1)[1], "tensor_key": "x"}
    assert inputs["eps"]["type"] == "scalar" and abs(inputs["eps"]["value"] - 1e-5) < 1e-9
    variable = {name for name, axis in definition["axes"].items() if axis["type"] == "var"}
    assert set(trace["workload"]["axes"]) == variable
    # A pack of dimensions is one dimension in a definition.
    with open(tensors, "rb") as opened:
        header = json.loads(opened.read(int.from_bytes(opened.read(8), "little")))
    assert header["x"]["shape"] == [2, 4] and header["weight"]["shape"] == [4]


def test_native_kernels_are_verified_and_agree():
    before = lz.metrics()["verifications"]
    for rows in (1, 3, 17):
        x = np.random.default_rng(rows).standard_normal((rows, 64), dtype=np.float32)
        lz.ops.norm_rms(x)
        lz.ops.norm_layer(x, np.ones(64, np.float32))
        lz.ops.activation_silu(x)
    assert lz.wait_for_verification(60)
    after = lz.metrics()["verifications"]
    assert after["agreed"] >= before["agreed"] + 9 and after["mismatched"] == before["mismatched"]


def test_the_results_in_out_are_verified(tmp_path):
    register(wrong_every=1)
    lz.ops.norm_rms(X, out=np.empty_like(X))
    assert lz.wait_for_verification(60)
    assert len(list(tmp_path.glob("*.safetensors"))) == 1


def test_a_file_that_is_no_reproducer_is_refused(tmp_path, capsys):
    file = tmp_path / "other.safetensors"
    file.write_bytes(b"no reproducer")
    with pytest.raises(ValueError, match="other.safetensors"):
        lz.repro(file)
    assert main(["repro", str(file)]) == 1
    assert "other.safetensors" in capsys.readouterr().err
