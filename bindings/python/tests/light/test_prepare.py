"""Measuring, warming up, and asking beforehand."""

import json

import numpy as np
import pytest

import layerzero as lz
from layerzero.cli import main

X = np.random.default_rng(0).normal(size=(8, 64)).astype(np.float32)


def test_tuning_measures_every_kernel_and_keeps_it(capsys, tmp_path):
    heard = []
    report = lz.tune("norm.rms", X, samples=6, progress=lambda *told: heard.append(told))
    data = report.to_dict()
    measured = {one["kernel"] for one in data["kernels"] if one["state"] == "measured"}
    assert "reference.norm.rms" in measured and data["best"] in measured and data["kept"]
    assert {told[0] for told in heard} == measured
    evidence = [candidate["evidence"] for candidate in lz.explain("norm.rms", X).to_dict()["candidates"]]
    assert any(evidence)
    assert main(["perfdb", "show", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["measurements"]
    assert {row["kernel"] for row in rows} >= measured
    path = tmp_path / "kept.jsonl"
    assert main(["perfdb", "export", str(path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["measurements"] == len(rows)
    assert main(["perfdb", "prune", "--operation", "norm.rms", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["measurements"] == len(rows)
    assert main(["perfdb", "import", str(path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["measurements"] == len(rows)


def test_breaking_off_keeps_what_was_measured():
    def told(kernel, nanoseconds, done, most):
        if done >= 2:
            raise KeyboardInterrupt

    data = lz.tune("norm.layer", X, samples=50, progress=told).to_dict()
    assert data["cancelled"] and any(one["state"] == "measured" for one in data["kernels"])


def test_a_wrong_call_cannot_be_tuned():
    with pytest.raises(lz.ValidationError):
        lz.tune("norm.rms", X, np.ones(3, np.float32))


def test_warming_up_and_dry_runs(tmp_path):
    manifest = tmp_path / "warm.json"
    calls = [("norm.rms", {"x": X, "eps": 1e-5}), ("activation.relu", {"x": X})]
    report = lz.warmup(calls, manifest=manifest)
    written = json.loads(manifest.read_text())
    assert written == report.to_dict()
    assert written["calls"][0]["tensors"]["x"] == {"shape": [8, 64], "dtype": "float32"}
    assert written["calls"][0]["params"] == {"eps": 1e-5}
    explained = lz.dry_run(calls)
    assert [one.to_dict()["plan"]["kernel"] for one in explained] == [one["kernel"] for one in written["calls"]]


def test_a_table_that_is_none_is_refused(tmp_path):
    path = tmp_path / "table.json"
    path.write_text("{}")
    with pytest.raises(lz.ConfigurationError):
        lz.load_dispatch_table(path)


def test_a_solved_table_decides(tmp_path):
    path = tmp_path / "dispatch.json"
    report = lz.solve([("norm.rms", {"x": np.ones((4, 64), np.float32)})], path=path, model="tiny")
    assert report.data["decided"] > 0 and not report.data["holes"] and not report.data["cancelled"]
    assert lz.load_dispatch_table(path).data["model_id"] == "tiny"
    lz.ops.norm_rms(np.ones((4, 64), np.float32))


def test_workloads_of_schemas_can_be_solved():
    told = []
    report = lz.solve(operations=["activation.relu"], progress=lambda done, total, name: told.append((done, total, name)))
    assert report.data["decided"] > 0 and told and told[-1][2] == "activation.relu"


def test_a_lockfile_says_what_was_decided(tmp_path):
    path = tmp_path / "layerzero.lock"
    x = np.ones((4, 64), np.float32)
    text = lz.freeze(path, [("norm.rms", {"x": x})])
    assert path.read_text() == text and lz.which("norm.rms", x).kernel_id in text
    lz.record_decisions()
    try:
        lz.ops.norm_rms(x)
        assert lz.verify_lockfile(path).data["agrees"]
        lz.record_decisions()
        lz.lock("norm.rms", "reference.norm.rms")
        lz.ops.norm_rms(x)
        assert "reference.norm.rms" in lz.freeze(None)
        assert "reference.norm.rms" in str(lz.verify_lockfile(path))
    finally:
        lz.unlock("norm.rms")
        lz.record_decisions(False)
