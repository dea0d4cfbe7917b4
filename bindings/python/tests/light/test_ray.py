"""Tuning on a local Ray cluster with two workers."""

import json
import os
import secrets
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("numpy")
pytest.importorskip("ray")

# A cluster that ends with its standard input.
CLUSTER = """
import sys, ray
ray.init(
    num_cpus=2, include_dashboard=False, object_store_memory=80 * 2**20, log_to_driver=False, logging_level="ERROR",
    _node_ip_address="127.0.0.1",
)
print(ray.get_runtime_context().gcs_address, flush=True)
sys.stdin.read()
ray.shutdown()
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, dict[str, str]]]:
    """The address of a cluster, and the environment of its processes."""
    home = tmp_path_factory.mktemp("ray")
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("LAYERZERO_", "RAY_"))}
    environment = {
        **clean,
        "HOME": str(home),
        "OMP_NUM_THREADS": "1",
        "RAY_USAGE_STATS_ENABLED": "0",
        # The cluster accepts only the processes of this test.
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": secrets.token_hex(32),
    }
    with subprocess.Popen(
        [sys.executable, "-c", CLUSTER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    ) as process:
        assert process.stdout and process.stdin
        address = process.stdout.readline().strip()
        try:
            assert address, "the cluster did not start"
            yield address, environment
        finally:
            process.stdin.close()
            try:
                process.wait(timeout=60)
            except subprocess.TimeoutExpired:
                process.kill()


def run(environment: dict[str, str], *arguments: str, code: int = 0) -> str:
    done = subprocess.run([sys.executable, *arguments], env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout


CALLS = [("norm.rms", ["x=f32[8,64]"]), ("activation.relu", ["x=f32[8,64]"]), ("norm.layer", ["x=f32[8,64]"])]


def test_calls_are_distributed_over_two_workers_and_merged(cluster: tuple[str, dict[str, str]], tmp_path: Path) -> None:
    address, environment = cluster
    output = tmp_path / "merged.sqlite"
    code = f"""
import json
from layerzero.integrations import ray
calls = {CALLS!r} + [("norm.rms", ["x=f32[8"])]
report = ray.tune(calls, {address!r}, samples=3, output={str(output)!r}, actors_per_type=2)
print(json.dumps(report.to_dict()))
"""
    report = json.loads(run(environment, "-c", code).splitlines()[-1])
    assert sorted(call["operation"] for call in report["calls"] if not call["error"]) == sorted(name for name, _ in CALLS)
    (failed,) = [call for call in report["calls"] if call["error"]]
    assert failed["arguments"] == ["x=f32[8"] and report["kept"] is False
    assert len({call["device"] for call in report["calls"]}) == 1
    with sqlite3.connect(output) as connection:
        operations = {name for (name,) in connection.execute("SELECT DISTINCT operation FROM measurement")}
        origins = connection.execute("SELECT count(DISTINCT origin) FROM merged_part").fetchone()[0]
    assert operations == {name for name, _ in CALLS}
    assert origins == 2, "both workers measured"
    assert report["measurements"] > 2 * len(CALLS)


def test_command_line_tunes_on_a_cluster_and_uses_the_results(cluster: tuple[str, dict[str, str]], tmp_path: Path) -> None:
    address, environment = cluster
    calls = tmp_path / "calls.txt"
    calls.write_text("norm.rms x=f32[8,64]\n")
    tune = ("-m", "layerzero", "tune", "--calls", str(calls), "--samples", "3", "--ray", address, "--json")
    report = json.loads(run({**environment, "HOME": str(tmp_path)}, *tune))
    assert report["kept"] and report["path"].endswith("perfdb.fleet.sqlite")
    explain = ("-m", "layerzero", "explain", "norm.rms", "x=f32[8,64]", "--json")
    candidates = json.loads(run({**environment, "HOME": str(tmp_path)}, *explain))["candidates"]
    assert sum(one["evidence"] is not None for one in candidates) == report["measurements"]


def test_missing_cluster_is_an_error(cluster: tuple[str, dict[str, str]]) -> None:
    _, environment = cluster
    code = """
import sys
sys.modules["ray"] = None
from layerzero.cli import main
sys.exit(main(["tune", "norm.rms", "x=f32[8,64]", "--ray", "auto", "--json"]))
"""
    assert "pip install 'layerzero[ray]'" in run(environment, "-c", code, code=1)
