"""Metrics, recordings, and what a policy names that does not exist."""

import json
import os
import subprocess
import sys

import numpy
import pytest

import layerzero as lz
from layerzero.cli import main

ROWS = numpy.ones((2, 4), numpy.float32)


def count(metrics, operation):
    return sum(one["count"] for one in metrics["calls"] if one["operation"] == operation)


def test_calls_are_counted_by_operation_kernel_and_backend():
    before = lz.metrics()
    for _ in range(100):
        lz.ops.norm_rms(ROWS)
    after = lz.metrics()
    assert count(after, "norm.rms") - count(before, "norm.rms") == 100
    kernel = lz.which("norm.rms", ROWS).kernel_id
    one = next(one for one in after["calls"] if one["kernel"] == kernel)
    assert one["backend"] == kernel.split(".")[0]
    levels = after["cache_hits_by_level"]
    assert sum(levels.values()) == after["cache_hits"]
    assert levels["thread"] - before["cache_hits_by_level"]["thread"] > 90


def test_validation_errors_are_counted_by_code():
    def errors():
        return {one["code"]: one["count"] for one in lz.metrics()["validation_errors"]}

    before = errors()
    with pytest.raises(lz.ValidationError) as raised:
        lz.ops.norm_rms(ROWS, numpy.ones(5, numpy.float32))
    code = raised.value.reasons[0].code
    assert errors()[code] == before.get(code, 0) + 1


def test_sampled_latencies_are_labeled():
    lz.configure({"telemetry.sample_every": 10})
    try:
        for _ in range(200):
            lz.ops.activation_silu(ROWS)
        found = [one for one in lz.metrics()["kernel_latency"] if one["operation"] == "activation.silu"]
    finally:
        lz.configure({"telemetry.sample_every": 0})
    assert 15 <= sum(one["latency"]["count"] for one in found) <= 40
    text = lz.metrics_text()
    assert f'lz_kernel_latency_seconds_count{{operation="activation.silu",kernel="{found[0]["kernel"]}"' in text
    assert text.endswith("# EOF\n")


def test_the_command_prints_both_forms(capsys):
    assert main(["metrics"]) == 0
    assert "lz_selection_total" in capsys.readouterr().out
    assert main(["metrics", "--json"]) == 0
    assert "selections" in json.loads(capsys.readouterr().out)


def test_a_recording_is_a_chrome_trace(tmp_path):
    path = tmp_path / "trace.json"
    with lz.record(path):
        lz.ops.norm_rms(ROWS)
        with pytest.raises(lz.ValidationError):
            lz.ops.norm_rms(ROWS, numpy.ones(5, numpy.float32))
    lz.ops.activation_silu(ROWS)
    trace = json.loads(path.read_text())
    events = [event for event in trace["traceEvents"] if event["ph"] == "X"]
    kernel = lz.which("norm.rms", ROWS).kernel_id
    assert [event["name"] for event in events] == ["select norm.rms", f"norm.rms→{kernel}"]
    assert all(event["dur"] >= 0 and event["ts"] >= 0 and event["pid"] == os.getpid() for event in events)
    assert events[1]["args"] == {"operation": "norm.rms", "kernel": kernel, "backend": kernel.split(".")[0]}
    with pytest.raises(RuntimeError, match="no recording"):
        lz.stop_recording(path)


POLICY = """
cache:
  num_shards: 16
prefer: [cpuu]
version: "1.0.0"
schema_version: 2
defaults: {autotuning: false, cache_ttl_seconds: 3600, fallback_policy: torch_sdpa}
kernels:
  attention:
    operation: attention
    implementations:
      - {name: cpu.*, dispatch_key: any, priority: 100, constraints: {min_batch_size: 1, dtypes: [float16, float32], supports_gqa: true}}
  rms:
    operation: rms_nrm
    implementations: [{name: torch.rms_norm, priority: 1}]
"""


def test_what_has_no_effect_is_reported(tmp_path):
    path = tmp_path / "policy.yaml"
    path.write_text(POLICY)
    code = "import layerzero as lz; print(lz.config()['cache.entry_ttl_seconds'].value)"
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, "LAYERZERO_CONFIG": str(path)}, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "3600.0"
    for sentence in (
        "`cache.num_shards` (",
        "has no effect: the decision cache has no shards",
        "names the unknown operation `rms_nrm`",
        "`cpuu` (",
        "did you mean `cpu`?",
        "`defaults.fallback_policy`",
    ):
        assert sentence in done.stderr, done.stderr
