"""Tuning, warmup, dispatch tables and dry runs."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest

import layerzero as lz
from layerzero.cli import main

X = np.random.default_rng(0).normal(size=(8, 64)).astype(np.float32)


def test_tuning_measures_every_kernel_and_stores_it(capsys, tmp_path):
    reported = []
    report = lz.tune("norm.rms", X, samples=6, progress=lambda *sample: reported.append(sample))
    data = report.to_dict()
    measured = {one["kernel"] for one in data["kernels"] if one["state"] == "measured"}
    assert "reference.norm.rms" in measured and data["best"] in measured and data["kept"]
    assert {sample[0] for sample in reported} == measured
    evidence = [candidate["evidence"] for candidate in lz.explain("norm.rms", X).to_dict()["candidates"]]
    assert any(evidence)
    assert main(["perfdb", "show", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["measurements"]
    assert {row["kernel"] for row in rows} >= measured
    path = tmp_path / "kept.jsonl"
    assert main(["perfdb", "export", str(path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["measurements"] == len(rows)
    assert main(["perfdb", "prune", "--operation", "norm.rms", "--json"]) == 0
    pruned = sum(row["operation"] == "norm.rms" for row in rows)
    assert json.loads(capsys.readouterr().out)["measurements"] == pruned
    assert main(["perfdb", "import", str(path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["measurements"] == pruned


TUNE = "import numpy as np, layerzero as lz; lz.tune('norm.rms', np.ones((8, 64), np.float32), samples=5)"
EVIDENCE = """
import numpy as np, layerzero as lz
candidates = lz.explain("norm.rms", np.ones((8, 64), np.float32)).to_dict()["candidates"]
print(sum(candidate["evidence"] is not None for candidate in candidates))
"""


def run(code, home, **variables):
    environment = {**os.environ, "HOME": str(home), **variables}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_measurements_are_shared_between_processes(tmp_path):
    assert run(EVIDENCE, tmp_path) == "0"
    run(TUNE, tmp_path)
    assert (tmp_path / ".cache/layerzero/perfdb.sqlite").is_file()
    assert int(run(EVIDENCE, tmp_path)) >= 2
    config = tmp_path / "layerzero.yaml"
    for settings in ("enabled: false", f"path: {tmp_path / 'elsewhere.sqlite'}"):
        config.write_text(f"version: 1\nperfdb:\n  {settings}\n")
        assert run(EVIDENCE, tmp_path, LAYERZERO_CONFIG=str(config)) == "0"


FORKED = """
import os, numpy as np, layerzero as lz
x = np.ones((8, 64), np.float32)
lz.tune("norm.rms", x, samples=3)
child = os.fork()
if child == 0:
    report = lz.tune("norm.layer", x, samples=3).to_dict()
    os._exit(0 if report["kept"] else 1)
assert os.waitpid(child, 0)[1] == 0
lz.tune("activation.relu", x, samples=3)
print(sorted({row[1] for row in lz._native.perfdb_show()}))
"""


def test_a_forked_child_measures_into_the_same_file(tmp_path):
    assert run(FORKED, tmp_path) == "['activation.relu', 'norm.layer', 'norm.rms']"


def test_invalid_environment_is_an_error_of_every_use(tmp_path):
    code = """
import layerzero as lz, array
for use in (lambda: lz.ops.norm_rms(array.array("f", [1])), lz.doctor):
    try:
        use()
    except lz.ConfigurationError as error:
        print("`LAYERZERO_DEBUG` must be 1 or 0" in str(error))
"""
    assert run(code, tmp_path, LAYERZERO_DEBUG="perhaps") == "True\nTrue"


def test_cancelled_tuning_stores_finished_measurements():
    def on_sample(kernel, nanoseconds, done, most):
        if done >= 2:
            raise KeyboardInterrupt

    data = lz.tune("norm.layer", X, samples=50, progress=on_sample).to_dict()
    assert data["cancelled"] and any(one["state"] == "measured" for one in data["kernels"])


RESULTS = """
import weakref, numpy as np, layerzero as lz
alive, last = [], lambda: None

@lz.register_kernel(operation="activation.relu", id="test.relu", backend="test")
def relu(x):
    global last
    alive.append(last() is not None)
    result = np.maximum(x, 0)
    last = weakref.ref(result)
    return result

lz.tune("activation.relu", np.ones((8, 64), np.float32), samples=3)
print(len(alive) > 3 and not any(alive))
"""


def test_tuning_releases_outputs_between_runs(tmp_path):
    """As in a program that makes calls: keeping two outputs alive would use twice as much of the CPU cache."""
    assert run(RESULTS, tmp_path) == "True"


def test_invalid_call_cannot_be_tuned():
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


def test_invalid_dispatch_table_is_refused(tmp_path):
    path = tmp_path / "table.json"
    path.write_text("{}")
    with pytest.raises(lz.ConfigurationError):
        lz.load_dispatch_table(path)


def test_solved_table_is_used(tmp_path):
    path = tmp_path / "dispatch.json"
    report = lz.solve([("norm.rms", {"x": np.ones((4, 64), np.float32)})], path=path, model="tiny")
    assert report.data["decided"] > 0 and not report.data["holes"] and not report.data["cancelled"]
    assert lz.load_dispatch_table(path).data["model_id"] == "tiny"
    lz.ops.norm_rms(np.ones((4, 64), np.float32))


def test_table_for_any_model_can_be_loaded(tmp_path):
    path = tmp_path / "table.json"
    lz.solve([("norm.rms", {"x": np.ones((4, 64), np.float32)})], path=path)
    lz.load_dispatch_table(path)


def test_workloads_of_schemas_can_be_solved():
    reported = []
    report = lz.solve(operations=["activation.relu"], progress=lambda done, total, name: reported.append((done, total, name)))
    assert report.data["decided"] > 0 and reported and reported[-1][2] == "activation.relu"


def test_lockfile_contains_decisions(tmp_path):
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
