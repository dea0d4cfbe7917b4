"""Measurements of several machines: comparing, merging, publishing and using them. Each machine is a process with a home of its own."""

import json
import os
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

import layerzero as lz

pytest.importorskip("numpy")

TUNE = """
import numpy as np, layerzero as lz
lz.tune("norm.rms", np.ones((8, 64), np.float32), samples=5)
"""
# The number of kernels with a measurement, for the same call.
EVIDENCE = """
import numpy as np, layerzero as lz
candidates = lz.explain("norm.rms", np.ones((8, 64), np.float32)).to_dict()["candidates"]
print(sum(candidate["evidence"] is not None for candidate in candidates))
"""


class Machine:
    """A home folder, and what runs there."""

    def __init__(self, home: Path) -> None:
        home.mkdir(parents=True, exist_ok=True)
        self.home = home
        self.perfdb = home / ".cache/layerzero/perfdb.sqlite"
        self.fleet = home / ".cache/layerzero/perfdb.fleet.sqlite"

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        clean = {name: value for name, value in os.environ.items() if not name.startswith("LAYERZERO_")}
        environment = {**clean, "HOME": str(self.home)}
        return subprocess.run(
            [sys.executable, *arguments], cwd=self.home, env=environment, capture_output=True, text=True, timeout=120, check=False
        )

    def python(self, code: str) -> str:
        done = self.run("-c", code)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def lz(self, *arguments: str, code: int = 0) -> str:
        done = self.run("-m", "layerzero", *arguments)
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout + done.stderr


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory) -> Machine:
    """A machine with measurements that have no noise."""
    machine = Machine(tmp_path_factory.mktemp("tuned"))
    machine.python(TUNE)
    change(machine.perfdb, "variance_ns2 = 0")
    return machine


def change(path: Path, assignments: str, where: str = "1") -> int:
    with sqlite3.connect(path) as connection:
        return connection.execute(f"UPDATE measurement SET {assignments} WHERE {where}").rowcount


def copy(machine: Machine, path: Path) -> Path:
    with sqlite3.connect(machine.perfdb) as source, sqlite3.connect(path) as target:
        source.backup(target)
    return path


def rows(path: Path) -> list[tuple]:
    with sqlite3.connect(path) as connection:
        return sorted(connection.execute("SELECT kernel, median_ns, samples FROM measurement"))


def test_diff_has_an_exit_code_for_ci(tuned: Machine, tmp_path: Path) -> None:
    after = copy(tuned, tmp_path / "after.sqlite")
    before = str(tuned.perfdb)
    assert "0 slower" in tuned.lz("perfdb", "diff", before, before)
    change(after, "median_ns = median_ns * 1.5, torch = '99.0'")
    report = json.loads(tuned.lz("perfdb", "diff", before, str(after), "--json", code=1))
    assert report["slower"] == report["compared"] == 1 and report["passed"] is False
    (call,) = report["calls"]
    assert call["operation"] == "norm.rms" and call["change"] == "slower" and abs(call["ratio"] - 1.5) < 1e-9
    assert "hidden 64" in call["shape"], call
    assert all(kernel["before"]["samples"] > 0 for kernel in call["kernels"])
    assert [(one["name"], one["after"]) for one in report["versions"]] == [("torch", ["99.0"])]
    table = tuned.lz("perfdb", "diff", before, str(after), code=1)
    assert "1 slower" in table and call["after"] in table and "torch" in table
    assert "0 slower" in tuned.lz("perfdb", "diff", before, str(after), "--threshold", "60")
    tuned.lz("perfdb", "diff", str(after), before)
    tuned.lz("perfdb", "diff", str(after), before, "--fail-on", "change", code=1)


def test_diff_reports_another_fastest_kernel(tuned: Machine, tmp_path: Path) -> None:
    after = copy(tuned, tmp_path / "after.sqlite")
    assert change(after, "median_ns = 1.0", "kernel = 'reference.norm.rms'") == 1
    report = json.loads(tuned.lz("perfdb", "diff", str(tuned.perfdb), str(after), "--json"))
    assert report["decisions_changed"] == 1 and report["calls"][0]["after"] == "reference.norm.rms"


def test_errors_of_diff_have_another_exit_code(tuned: Machine, tmp_path: Path) -> None:
    before = str(tuned.perfdb)
    other = copy(tuned, tmp_path / "other.sqlite")
    change(other, "operation = 'norm.layer'")
    text = tmp_path / "text"
    text.write_text("not a database")
    assert "nothing to compare" in tuned.lz("perfdb", "diff", before, str(other), code=2)
    assert "missing file" in tuned.lz("perfdb", "diff", before, code=2)
    assert "unknown field `color`" in tuned.lz("perfdb", "diff", before, before + "@color=red", code=2)
    assert "not a performance database" in tuned.lz("perfdb", "diff", before, str(text), code=2)
    assert str(tmp_path / "missing") in tuned.lz("perfdb", "diff", before, str(tmp_path / "missing"), code=2)


def test_merge_combines_machines_and_is_idempotent(tuned: Machine, tmp_path: Path) -> None:
    other = copy(tuned, tmp_path / "other.sqlite")
    change(other, "median_ns = median_ns * 3")
    result = tmp_path / "all.sqlite"
    for _ in range(2):
        report = json.loads(tuned.lz("perfdb", "merge", str(result), str(tuned.perfdb), str(other), "--json"))
        assert report["measurements"] == report["combined"] == len(rows(tuned.perfdb))
        for (_, median, samples), (_, merged, both) in zip(rows(tuned.perfdb), rows(result), strict=True):
            assert both == 2 * samples and merged == pytest.approx(2 * median)
    assert "missing file" in tuned.lz("perfdb", "merge", str(result), code=1)


def test_another_machine_uses_published_measurements(tuned: Machine, tmp_path: Path) -> None:
    key = json.loads(tuned.lz("perfdb", "keygen", str(tmp_path / "key"), "--json"))["text"]
    url = f"file://{tmp_path}/shared/machine-1.sqlite"
    published = json.loads(tuned.lz("perfdb", "push", url, "--key", str(tmp_path / "key"), "--json"))
    assert published["measurements"] == len(rows(tuned.perfdb)) and published["key"] == key
    other = Machine(tmp_path / "other")
    assert other.python(EVIDENCE) == "0"
    fetched = json.loads(other.lz("perfdb", "pull", url, "--key", key, "--json"))
    assert fetched["measurements"] == published["measurements"] and other.fleet.is_file()
    assert int(other.python(EVIDENCE)) == published["measurements"]
    # Its own measurements are separate, and take precedence.
    other.python(TUNE)
    assert rows(other.fleet) == rows(tuned.perfdb) and rows(other.perfdb) != rows(tuned.perfdb)
    again = json.loads(other.lz("perfdb", "push", f"{url}-2", "--key", str(tmp_path / "key"), "--json"))
    assert again["measurements"] == len(rows(other.perfdb))
    # A file of other versions of the kernels is ignored.
    copied = copy(tuned, tmp_path / "old.sqlite")
    change(copied, "kernel_version = '0.0.0'")
    tuned.lz("perfdb", "push", url, "--database", str(copied), "--key", str(tmp_path / "key"))
    newcomer = Machine(tmp_path / "newcomer")
    newcomer.lz("perfdb", "pull", url, "--key", str(tmp_path / "key.pub"))
    assert newcomer.python(EVIDENCE) == "0"


def test_measurements_without_a_trusted_signature_are_refused(tuned: Machine, tmp_path: Path) -> None:
    keys = {name: json.loads(tuned.lz("perfdb", "keygen", str(tmp_path / name), "--json"))["text"] for name in ("ours", "other")}
    published = tmp_path / "published.sqlite"
    tuned.lz("perfdb", "push", str(published), "--key", str(tmp_path / "ours"))
    signature = Path(f"{published}.sig")
    assert signature.stat().st_size == 64
    machine = Machine(tmp_path / "machine")

    def refused(message: str, *options: str) -> None:
        output = machine.lz("perfdb", "pull", str(published), *options, code=1)
        assert message in output and not machine.fleet.exists(), output

    refused("no trusted key")
    refused("signed by another key", "--key", keys["other"])
    refused("is not an ed25519 public key", "--key", "abc")
    good = published.read_bytes()
    published.write_bytes(good[:-1] + bytes([good[-1] ^ 1]))
    refused("it was changed", "--key", keys["ours"])
    published.write_bytes(good)
    signature.write_bytes(signature.read_bytes()[:63])
    refused("it was changed", "--key", keys["ours"])
    signature.unlink()
    refused("is not signed", "--key", keys["ours"])
    # A file that is signed but no database.
    text = tmp_path / "text"
    text.write_text("not a database")
    assert "not a performance database" in tuned.lz(
        "perfdb", "push", str(published), "--database", str(text), "--key", str(tmp_path / "ours"), code=1
    )
    published.write_bytes(text.read_bytes())
    signature.write_bytes(lz._native.sign(text.read_bytes(), tmp_path / "ours"))
    refused("not a performance database", "--key", keys["ours"])
    # The keys of the settings.
    tuned.lz("perfdb", "push", str(published), "--key", str(tmp_path / "ours"))
    (machine.home / "layerzero.yaml").write_text(f"version: 1\nplugins: {{keys: [{keys['ours']}]}}\n")
    machine.lz("perfdb", "pull", str(published))
    assert machine.fleet.is_file()


def test_private_keys_are_required_and_protected(tuned: Machine, tmp_path: Path) -> None:
    assert "missing private key" in tuned.lz("perfdb", "push", str(tmp_path / "x"), code=1)
    tuned.lz("perfdb", "keygen", str(tmp_path / "key"))
    assert (tmp_path / "key").stat().st_mode & 0o777 == 0o600
    assert "exists" in tuned.lz("perfdb", "keygen", str(tmp_path / "key"), code=1)
    (tmp_path / "key").chmod(0o644)
    assert "chmod 600" in tuned.lz("perfdb", "push", str(tmp_path / "x"), "--key", str(tmp_path / "key"), code=1)
    assert not (tmp_path / "x").exists()


MEMORY = """
import fsspec, layerzero as lz
public = lz.perfdb.keygen("memory.key")
pushed = lz.perfdb.push("memory://fleet/one.sqlite", key="memory.key").to_dict()
lz.configure({"perfdb.path": "elsewhere/perfdb.sqlite"})
assert all(one["evidence"] is None for one in candidates())
assert lz.perfdb.pull("memory://fleet/one.sqlite", keys=[public]).to_dict()["measurements"] == pushed["measurements"]
print(sum(one["evidence"] is not None for one in candidates()) == pushed["measurements"])
with fsspec.open("memory://fleet/one.sqlite", "ab") as file:
    file.write(b"more")
try:
    lz.perfdb.pull("memory://fleet/one.sqlite", keys=[public])
except PermissionError as error:
    print("it was changed" in str(error))
"""


def test_measurements_are_used_in_the_process_that_pulls_them(tuned: Machine) -> None:
    candidates = """
import numpy as np
candidates = lambda: lz.explain("norm.rms", np.ones((8, 64), np.float32)).to_dict()["candidates"]
"""
    assert tuned.python(candidates + MEMORY).split() == ["True", "True"]


def test_missing_fsspec_is_explained(tuned: Machine, tmp_path: Path) -> None:
    code = """
import sys
sys.modules["fsspec"] = None
from layerzero.cli import main
sys.exit(main(["perfdb", "pull", "s3://bucket/all.sqlite", "--key", "00" * 32]))
"""
    done = tuned.run("-c", code)
    assert done.returncode == 1 and "pip install 'layerzero[fleet]'" in done.stderr, done.stderr


def test_calls_of_a_file_are_tuned(tmp_path: Path) -> None:
    machine = Machine(tmp_path / "machine")
    calls = machine.home / "calls.txt"
    calls.write_text("# sizes of a model\nnorm.rms x=f32[8,64]\n\nactivation.relu x=f32[8,64]\n")
    report = json.loads(machine.lz("tune", "--calls", str(calls), "--samples", "3", "--json"))
    assert [call["operation"] for call in report["calls"]] == ["norm.rms", "activation.relu"] and report["kept"]
    assert {kernel.split(".", 1)[0] for kernel, _, _ in rows(machine.perfdb)} >= {"reference"}
    assert "no calls to tune" in machine.lz("tune", code=1)
