"""CUDA graph capture trials tested on the host: the calls sent to the trial process, its results, and their use."""

import json
import os
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")

import layerzero as lz  # noqa: E402
from layerzero import _graphs, _native  # noqa: E402


def test_pack_keeps_values_of_tables_and_shapes_of_the_rest(tmp_path):
    cache = torch.randn(4, 8, 2, 16).transpose(1, 2)
    call = {"k_cache": cache, "kv_indices": torch.tensor([3, 1], dtype=torch.int32), "layout": "HND", "out": None}
    _graphs.pack([("attention.gqa.decode.paged", call)], tmp_path / "calls")
    [(operation, arrived)] = _graphs.unpack(tmp_path / "calls")
    assert operation == "attention.gqa.decode.paged"
    assert (arrived["layout"], arrived["out"]) == ("HND", None)
    assert torch.equal(arrived["kv_indices"], call["kv_indices"]) and arrived["kv_indices"].dtype == torch.int32
    made = arrived["k_cache"]
    assert (made.shape, made.stride(), made.dtype) == (cache.shape, cache.stride(), cache.dtype)
    assert made.std() > 0.5 and not torch.equal(made, cache)
    # Values of floating-point tensors are not sent.
    assert (tmp_path / "calls").stat().st_size < 4096


@pytest.mark.parametrize(
    ("found", "why"),
    [
        ({"kept": 0, "grown": 0, "off": 0.001}, None),
        ({"kept": 512, "grown": 0, "off": 0.0}, "keeps 512 bytes"),
        ({"kept": 0, "grown": 1 << 21, "off": 0.0}, "replays allocated 2097152"),
        ({"kept": 0, "grown": 0, "off": 0.5}, "differs by 0.5"),
        ({"kept": 0, "grown": 0, "off": float("nan")}, "differs by nan"),
        # Released memory, or results that existed before, are not a problem.
        ({"kept": -512, "grown": -512, "off": 0.0}, None),
    ],
)
def test_verdict_reports_the_problem(found, why):
    verdict = _graphs.verdict(**found)
    assert verdict is None if why is None else why in verdict


def test_new_bytes_counts_only_the_results_own_memory():
    given = torch.zeros(1000)
    fresh, view = torch.zeros(300), given[:10]
    assert _graphs.new_bytes([fresh, view, fresh[5:]], [given, 3, None]) == 1536


def test_difference_is_relative_and_handles_nan():
    one = torch.tensor([1.0, torch.nan, torch.inf, 8.0])
    assert _graphs.difference([one], [one.clone()]) == 0
    assert _graphs.difference([torch.tensor([8.0, 4.0])], [torch.tensor([8.0, 6.0])]) == 0.25
    assert _graphs.difference([torch.tensor([1.0])], [torch.tensor([torch.nan])]) == float("inf")


@pytest.fixture
def kernels():
    """Kernels registered as GPU kernels, one of which is not marked as safe for capture."""
    for name, safe in (("good", True), ("leaky", True), ("silent", False), ("fatal", True)):
        lz.register_kernel(
            operation="activation.relu", id=f"trial.{name}", backend="trial", platform="cpu", priority=90, cuda_graph_safe=safe
        )(lambda x: x)
    yield
    lz.unregister_backend("trial")


def test_passing_kernels_are_marked_and_crashes_are_reported(kernels, monkeypatch):
    marked, asked = [], []
    monkeypatch.setattr(_native, "mark_captured", lambda kernel, operation, arguments, keywords: marked.append((kernel, operation)))
    real = _native.kernels
    monkeypatch.setattr(_native, "kernels", lambda operation: [{**one, "platform": "cuda"} for one in real(operation)])
    verdicts = {"trial.good": None, "trial.leaky": "it keeps 512 bytes"}

    def child(command, stdout, **_):
        trials = json.loads(command[4])
        asked.append([kernel for _, kernel in trials])
        for number, kernel in trials:
            if kernel == "trial.fatal":
                return subprocess.CompletedProcess(command, -11)
            stdout.write(json.dumps({"call": number, "kernel": kernel, "why": verdicts.get(kernel, "unexpected")}) + "\n")
        return subprocess.CompletedProcess(command, 0)

    monkeypatch.setattr(subprocess, "run", child)
    report = lz.verify_capture([("activation.relu", {"x": torch.ones(8)})])
    found = {one["kernel"]: one["why"] for one in report.to_dict()["trials"]}
    assert "trial.silent" not in found, "trials only shorten the list of those that say they can"
    assert found["trial.good"] is None and found["trial.leaky"] == "it keeps 512 bytes"
    assert found["trial.fatal"] == "the trial process ended with -11"
    assert marked == [("trial.good", "activation.relu")]
    # After the crash the rest is tried by another process.
    assert len(asked) == 2 and "trial.fatal" not in asked[1] and len(asked[0]) > len(asked[1])


def test_trial_process_reads_its_calls(tmp_path):
    """On a machine without a GPU every trial fails with a reason."""
    if torch.cuda.is_available():
        pytest.skip("trials succeed here")
    _graphs.pack([("activation.relu", {"x": torch.ones(8)})], tmp_path / "calls")
    lines, code = _graphs._child(tmp_path / "calls", [(0, "reference.activation.relu")], 120.0)
    assert code == 0
    assert [(one["call"], one["kernel"]) for one in lines] == [(0, "reference.activation.relu")]
    assert lines[0]["why"] is not None


def test_trial_process_has_the_torch_kernels(tmp_path):
    _graphs.pack([], tmp_path / "calls")
    code = (
        "import sys, layerzero as lz; from layerzero._graphs import try_all; try_all(*sys.argv[1:]);"
        "print(sum(one['id'].startswith('torch.cuda.') for one in lz.list_kernels()))"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "calls"), "[]", '["torch"]']
    done = subprocess.run(command, capture_output=True, text=True, check=True, env={**os.environ, "HOME": str(tmp_path)})
    assert int(done.stdout) > 10


@pytest.mark.parametrize(("iterations", "limit", "warned"), [(1, 1.0, True), (3, 1.0, True), (3, 8.0, False)])
def test_settings_of_graph_safety_apply_before_a_capture(monkeypatch, caplog, iterations, limit, warned):
    """A host stands in for the device: each call keeps 2 MiB."""
    import contextlib
    from types import SimpleNamespace

    calls = []
    stream = SimpleNamespace(wait_stream=lambda other: None)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: stream)
    monkeypatch.setattr(torch.cuda, "stream", lambda given: contextlib.nullcontext())
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda: len(calls) * 2**21)
    monkeypatch.setattr(_graphs, "_function", lambda operation: lambda **arguments: calls.append(operation))
    changed = {"graph_safety.warmup_iterations": iterations, "graph_safety.memory_delta_warning_mb": limit}
    before = {key: lz.config()[key].value for key in changed}
    lz.configure(changed)
    try:
        lz.prepare_capture([("activation.relu", {})], stream=stream)
    finally:
        lz.configure({key: float(value) if "." in value else int(value) for key, value in before.items()})
    assert len(calls) == iterations + 1
    assert ("activation.relu keeps 2.0 MiB" in caplog.text) == warned
