"""Questions about selection on other devices, and by alias."""

import functools
import json
import subprocess
import sys

import ml_dtypes
import numpy as np
import pytest

import layerzero as lz
from layerzero.cli import main


def codes(explanation):
    return {one["kernel"]: [reason["code"] for reason in one["reasons"]] for one in explanation.data["candidates"]}


def bf16(*shape):
    return np.zeros(shape, ml_dtypes.bfloat16)


def without_torch(test):
    """Kernels of an imported library stay registered: runs the test in another process if an earlier test imported torch."""

    @functools.wraps(test)
    def run(**fixtures):
        if "torch" not in sys.modules:
            return test(**fixtures)
        command = [sys.executable, "-m", "pytest", "-q", f"{__file__}::{test.__name__}"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stdout

    return run


@pytest.fixture
def without_libraries(monkeypatch):
    """As on a machine on which no library of a backend is installed."""
    from layerzero import backends

    monkeypatch.setattr(backends, "_version", lambda distribution: None)
    # Kernels of loaded backends stay registered.
    loaded = {name: state for name, state in backends._STATES.items() if state.state in ("ok", "problem")}
    monkeypatch.setattr(backends, "_STATES", loaded)


@without_torch
def test_libraries_that_are_not_installed_are_listed_with_the_command(without_libraries):
    explanation = lz.explain("attention.gqa.prefill", bf16(1, 8, 8, 128), bf16(1, 8, 2, 128), bf16(1, 8, 2, 128), device="b200")
    missing = [one for one in explanation.data["candidates"] if any(reason["code"] == "NOT_INSTALLED" for reason in one["reasons"])]
    sentences = {one["backend"]: [reason["sentence"] for reason in one["reasons"]] for one in missing}
    assert any("pip install flashinfer-python" in sentence for sentence in sentences["flashinfer"])
    assert explanation.data["device"]["name"] == "NVIDIA B200" and explanation.data["device"]["imagined"]
    # Other reasons are listed too: what is missing is not the only obstacle.
    assert explanation.data["plan"] is None
    assert all("NOT_INSTALLED" in found or "PLATFORM_MISMATCH" in found for found in codes(explanation).values())


@pytest.fixture
def with_torch(monkeypatch):
    """As on a machine on which torch is installed."""
    from layerzero import backends

    monkeypatch.setattr(backends, "_version", lambda distribution: "2.15.0" if distribution == "torch" else None)
    monkeypatch.setattr(backends, "_exists", lambda module: True)
    # Kernels of loaded backends stay registered.
    loaded = {name: state for name, state in backends._STATES.items() if state.state in ("ok", "problem")}
    monkeypatch.setattr(backends, "_STATES", loaded)


def test_installed_libraries_count_as_available(with_torch):
    plan = lz.which("norm.rms", bf16(4, 64), bf16(64), device="h100")
    assert plan.kernel_id.startswith("torch.")
    assert {one["platform"] for one in lz.list_kernels("norm.rms", device="h100")} == {"cuda"}


@without_torch
def test_disabled_backends_are_listed_with_the_variable(with_torch, monkeypatch):
    monkeypatch.setenv("LAYERZERO_BACKENDS", "none")
    found = codes(lz.explain("norm.rms", bf16(4, 64), bf16(64), device="h100"))
    assert "BACKEND_DISABLED" in found["torch.cuda.norm.rms"]


@without_torch
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
    with pytest.raises(KeyError, match='did you mean `attention.causal`'):
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


def answer(capsys, *arguments):
    assert main([*arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_tables_are_solved_for_simulated_devices(with_torch, capsys, tmp_path):
    path = tmp_path / "h100.json"
    solved = answer(capsys, "solve", "norm.rms", "tokenize.encode", "--as", "h100-sxm", "-o", str(path))
    assert solved["decided"] > 0
    assert {"operation": "tokenize.encode", "why": "its texts are on the host"} in solved["holes"]
    text = path.read_text()
    assert json.loads(text)["hardware_signature"].startswith("cuda_sm90") and '"torch.' in text and '"cpu.' not in text
    # The table is for another device than this machine has.
    with pytest.raises(lz.ConfigurationError, match="TABLE_HARDWARE_MISMATCH"):
        lz.load_dispatch_table(path)
    with pytest.raises(ValueError, match="cannot be compiled for h100"):
        lz.solve(operations=["norm.rms"], device="h100", compile_jit=True)


def test_tables_for_a_device_of_this_machine_can_be_loaded(capsys, tmp_path):
    path = tmp_path / "cpu.json"
    assert answer(capsys, "solve", "activation.relu", "--device", "cpu:0", "-o", str(path))["decided"] > 0
    assert "activation.relu" in lz.load_dispatch_table(path).data["operations"]


def test_lockfiles_are_written_for_simulated_devices(with_torch, capsys, tmp_path):
    path = tmp_path / "layerzero.lock"
    answer(capsys, "freeze", "norm.rms", "x=bf16[4,64]", "weight=bf16[64]", "--as", "h100", "-o", str(path))
    text = path.read_text()
    selected = lz.which("norm.rms", bf16(4, 64), bf16(64), device="h100").kernel_id
    assert selected in text and "cuda_sm90" in text
    with pytest.raises(ValueError, match="pass calls together with device"):
        lz.freeze(path, device="h100")


def test_kernels_are_not_measured_on_simulated_devices(capsys):
    for option in ("--as", "--device"):
        assert main(["tune", "norm.rms", "x=f32[4,64]", option, "b200"]) == 1
        assert "cannot be measured on b200" in capsys.readouterr().err
    assert answer(capsys, "tune", "norm.rms", "x=f32[4,64]", "--device", "cpu", "--samples", "2")["kept"]


@pytest.mark.parametrize("command", ["explain", "kernels", "tune", "solve", "freeze"])
def test_every_command_names_the_devices_that_exist(command, capsys):
    call = ["x=f32[4,64]"] if command in ("explain", "tune", "freeze") else []
    for option in ("--device", "--as"):
        assert main([command, "norm.rms", *call, option, "tpu"]) == 1
        shown = capsys.readouterr().err
        assert "unknown device preset `tpu`" in shown and "cpu:0" in shown
