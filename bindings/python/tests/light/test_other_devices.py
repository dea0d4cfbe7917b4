"""Questions about selection on other devices, and by alias."""

import json
import subprocess
import sys

import ml_dtypes
import numpy as np
import pytest

import layerzero as lz


def codes(explanation):
    return {one["kernel"]: [reason["code"] for reason in one["reasons"]] for one in explanation.data["candidates"]}


def bf16(*shape):
    return np.zeros(shape, ml_dtypes.bfloat16)


@pytest.fixture
def without_libraries(monkeypatch):
    """As on a machine on which no library of a backend is installed."""
    from layerzero import backends

    monkeypatch.setattr(backends, "_version", lambda distribution: None)
    # Kernels of loaded backends stay registered.
    loaded = {name: state for name, state in backends._STATES.items() if state.state in ("ok", "problem")}
    monkeypatch.setattr(backends, "_STATES", loaded)


def test_libraries_that_are_not_installed_are_listed_with_the_command(without_libraries):
    explanation = lz.explain("attention.gqa.prefill", bf16(1, 8, 8, 128), bf16(1, 8, 2, 128), bf16(1, 8, 2, 128), device="b200")
    missing = [one for one in explanation.data["candidates"] if any(reason["code"] == "NOT_INSTALLED" for reason in one["reasons"])]
    sentences = {one["backend"]: [reason["sentence"] for reason in one["reasons"]] for one in missing}
    assert any("pip install flashinfer-python" in sentence for sentence in sentences["flashinfer"])
    assert explanation.data["device"]["name"] == "NVIDIA B200" and explanation.data["device"]["imagined"]
    # Other reasons are listed too: what is missing is not the only obstacle.
    assert explanation.data["plan"] is None
    assert all("NOT_INSTALLED" in found or "PLATFORM_MISMATCH" in found for found in codes(explanation).values())


def test_installed_libraries_count_as_available(monkeypatch):
    from layerzero import backends

    monkeypatch.setattr(backends, "_version", lambda distribution: "2.15.0" if distribution == "torch" else None)
    monkeypatch.setattr(backends, "_exists", lambda module: True)
    # Kernels of loaded backends stay registered.
    loaded = {name: state for name, state in backends._STATES.items() if state.state in ("ok", "problem")}
    monkeypatch.setattr(backends, "_STATES", loaded)
    plan = lz.which("norm.rms", bf16(4, 64), bf16(64), device="h100")
    assert plan.kernel_id.startswith("torch.")
    assert {one["platform"] for one in lz.list_kernels("norm.rms", device="h100")} == {"cuda"}


def test_a_call_on_the_host_lists_missing_libraries_of_the_host_only(without_libraries):
    found = codes(lz.explain("norm.rms", np.zeros((2, 8), np.float32)))
    missing = {kernel for kernel, reasons in found.items() if "NOT_INSTALLED" in reasons}
    assert all("PLATFORM_MISMATCH" not in found[kernel] for kernel in missing)
    assert any(kernel.startswith("torch.") for kernel in missing)
    assert lz.explain("norm.rms", np.zeros((2, 8), np.float32)).data["plan"]["kernel"].startswith("cpu.")


def test_board_names_and_own_devices_are_accepted():
    x = np.zeros((2, 8), np.float32)
    assert lz.explain("norm.rms", x, device="h100-sxm").data["device"]["name"].startswith("NVIDIA H100")
    assert lz.which("norm.rms", x, device="cpu:0").kernel_id == lz.which("norm.rms", x).kernel_id
    with pytest.raises(ValueError, match="unknown device preset `tpu`.*cpu:0"):
        lz.explain("norm.rms", x, device="tpu")


def test_aliases_stand_for_their_operations():
    q = np.zeros((1, 4, 2, 16), np.float32)
    explanation = lz.explain("attention.causal", q, q, q)
    fields = {one["name"]: one["value"] for one in explanation.data["call"]}
    assert fields["causal"] == "true" and explanation.data["operation"].startswith("attention.")
    assert lz.which("attention.full", q, q, q).kernel_id
    operations = {one["operation"] for one in lz.list_kernels("attention.causal")}
    assert operations == {"attention.gqa.prefill", "attention.standard.prefill"}
    with pytest.raises(KeyError, match='did you mean "attention.causal"'):
        lz.explain("attention.causl", q, q, q)  # typos:ignore


def test_a_kernel_can_be_registered_for_an_alias():
    @lz.register_kernel(operation="attention.causal", id="mine.causal", priority=100)
    def mine(q, k, v, *rest, **params):
        assert params["causal"]
        return np.zeros_like(q)

    try:
        q = np.zeros((1, 4, 2, 16), np.float32)
        assert lz.which("attention.standard.prefill", q, q, q, causal=True).kernel_id == "mine.causal"
        assert lz.which("attention.standard.prefill", q, q, q, causal=False).kernel_id != "mine.causal"
    finally:
        lz.unregister_backend("mine")


def test_command_line_answers_for_other_devices():
    command = [sys.executable, "-m", "layerzero", "explain", "norm.rms", "x=f32[4,64]", "--as", "h100", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout)["device"]["name"].startswith("NVIDIA H100")
    command = [sys.executable, "-m", "layerzero", "kernels", "norm.rms", "--as", "h100", "--json"]
    kernels = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)["kernels"]
    assert kernels and {one["platform"] for one in kernels} == {"cuda"}
