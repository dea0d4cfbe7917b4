"""Two and three processes on one machine, through gloo."""

import os
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

pytest.importorskip("torch")

PREAMBLE = """
import os, sys, time
from datetime import timedelta
import torch, torch.distributed as dist
import layerzero as lz
distributed = lz.distributed
rank, world = int(sys.argv[1]), int(sys.argv[2])
dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{sys.argv[3]}", rank=rank, world_size=world,
                        timeout=timedelta(seconds=60))
distributed.record()
x = torch.ones(4, 64)
"""

# The rank that hosts the store must exit last, because threads of other ranks may still use it.
EPILOGUE = """
dist.barrier()
dist.destroy_process_group()
"""


def ranks(code, world=2, expected=0, files=None):
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port = one.getsockname()[1]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    with tempfile.TemporaryDirectory() as folder:
        for name, text in (files or {}).items():
            Path(folder, name).write_text(text, encoding="utf-8")
        started = [
            subprocess.Popen(
                [sys.executable, "-c", PREAMBLE + code + EPILOGUE, str(rank), str(world), str(port)],
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment, cwd=folder,
            )
            for rank in range(world)
        ]  # fmt: skip
        outputs = [one.communicate(timeout=120)[0] for one in started]
    for rank, one in enumerate(started):
        assert one.returncode == expected or (isinstance(expected, tuple) and one.returncode == expected[rank]), outputs[rank]
    return outputs


def test_ranks_with_equal_decisions_agree():
    code = """
lz.ops.norm_rms(x)
if rank == 1:
    lz.ops.activation_relu(x)  # A call that the other rank did not make is no disagreement.
found = distributed.verify()
assert found.agrees and not found.disagreements
"""
    ranks(code)


def test_disagreement_is_an_error_a_warning_or_resolved():
    code = """
import warnings
if rank == 1:
    lz.lock("norm.rms", "reference.norm.rms")
lz.ops.norm_rms(x)
lz.unlock("norm.rms")
try:
    distributed.verify()
    raise SystemExit("ranks were reported to agree")
except distributed.DisagreementError as error:
    (one,) = error.disagreements
    assert one.operation == "norm.rms" and one.kernels[1].startswith("reference.norm.rms"), one
    assert "rank 1 reference.norm.rms" in str(error)
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    assert not distributed.verify("best_effort").agrees
assert any("selected different kernels" in str(one.message) for one in caught)
settled = distributed.verify("fallback")
kernel = settled.locked["norm.rms"]
assert lz.which("norm.rms", x).kernel_id == kernel and kernel.startswith("cpu.norm.rms")
distributed.record()
lz.ops.norm_rms(x)
assert distributed.verify().agrees
"""
    ranks(code, world=3)


def test_ranks_can_adopt_the_decisions_of_one():
    code = """
if rank == 1:
    lz.lock("norm.rms", "reference.norm.rms")
lz.ops.norm_rms(x)
lz.unlock("norm.rms")
assert distributed.adopt(1) == {"norm.rms": "reference.norm.rms"}
assert lz.which("norm.rms", x).kernel_id == "reference.norm.rms"
"""
    ranks(code)


def test_missing_rank_times_out():
    code = """
lz.ops.norm_rms(x)
distributed.verify(timeout=5)
if rank == 1:
    os._exit(3)
started = time.monotonic()
try:
    distributed.verify(timeout=5)
    raise SystemExit("the missing rank was not missed")
except distributed.DisagreementError as error:
    assert "responded" in str(error)
assert time.monotonic() - started < 30
os._exit(0)
"""
    begun = time.monotonic()
    ranks(code, expected=(0, 3))
    assert time.monotonic() - begun < 110


def test_digests_are_published_without_blocking():
    code = """
store = dist.distributed_c10d._get_default_store()
lz.ops.norm_rms(x)
with distributed.Watch(store, rank, world, seconds=0.1) as watch:
    while len(watch.peers()) < world:
        time.sleep(0.05)
    before = watch.peers()[rank]
    lz.ops.activation_relu(x)
    while watch.peers()[rank] == before:
        time.sleep(0.05)
dist.barrier()
"""
    ranks(code)


def test_settings_choose_between_broadcast_and_verification():
    code = """
def call():
    if rank == 1:
        lz.lock("norm.rms", "reference.norm.rms")
    lz.ops.norm_rms(x)
    lz.unlock("norm.rms")

call()
lz.configure({"tp_invariance.synchronize_selection": False})
assert distributed.synchronize().agrees  # Versions are equal; decisions are not compared.
lz.configure({"tp_invariance.synchronize_selection": True, "distributed.selection_mode": "independent"})
try:
    distributed.synchronize()
    raise SystemExit("ranks were reported to agree")
except distributed.DisagreementError:
    pass
lz.configure({"distributed.verify_selections": False})
assert distributed.synchronize().agrees
lz.configure({"distributed.verify_selections": True, "distributed.on_version_mismatch": "fallback"})
assert "norm.rms" in distributed.synchronize().locked
lz.unlock("norm.rms")
lz.configure({"distributed.selection_mode": "broadcast"})
kernel = distributed.synchronize().locked["norm.rms"]
assert kernel.startswith("cpu.norm.rms") and lz.which("norm.rms", x).kernel_id == kernel
"""
    ranks(code)


def test_different_versions_are_a_mismatch():
    code = """
import logging, warnings
ours = distributed.versions()
if rank == 1:
    distributed.versions = lambda: ours | {"layerzero": "0.0.1"}
try:
    distributed.verify()
    raise SystemExit("different versions were accepted")
except distributed.DisagreementError as error:
    assert "different versions" in str(error) and "rank 1 0.0.1" in str(error), error
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    assert distributed.verify("best_effort").versions == {"layerzero": {0: ours["layerzero"], 1: "0.0.1"}}
assert len(caught) == 1

store = dist.distributed_c10d._get_default_store()
lz.configure({"distributed.version_check_interval": 5})
class Records(logging.Handler):
    def emit(self, record):
        texts.append(record.getMessage())
texts = []
logging.getLogger("layerzero.distributed").addHandler(Records())
try:
    with distributed.Watch(store, rank, world, seconds=0.05) as watch:
        while len(watch.peers()) < world:
            time.sleep(0.05)
        dist.barrier()
        deadline = time.monotonic() + 60
        while not texts and time.monotonic() < deadline:
            lz.ops.norm_rms(x)
            time.sleep(0.01)
    raise SystemExit("different versions were not reported")
except distributed.DisagreementError:
    assert "different versions" in texts[0]

dist.barrier()
distributed.verify("fallback")
assert lz.which("norm.rms", x).kernel_id == "reference.norm.rms"
"""
    ranks(code)


def test_ranks_adopt_several_kernels_of_one_operation():
    code = """
sizes = [torch.ones(1, 64), torch.ones(300, 64)]
def kernels():
    return [lz.which("norm.rms", x).kernel_id for x in sizes]
# Rank 0 uses the reference for few rows only.
if rank == 0:
    lz.load_config("few.yaml")
for x in sizes:
    lz.ops.norm_rms(x)
wanted = ["reference.norm.rms", kernels()[1]]
if rank == 0:
    assert kernels() == wanted and wanted[1].startswith("cpu."), kernels()
    locked = distributed.adopt()
else:
    assert kernels() == [wanted[1], wanted[1]], kernels()
    locked = distributed.adopt()
assert locked["norm.rms"] == ", ".join(sorted(wanted)), locked
assert kernels() == wanted, kernels()
sources = {entry.source for entry in lz.config().entries if entry.key.startswith("rules.")}
assert "lz.distributed.adopt" in sources, sources
distributed.record()
for x in sizes:
    lz.ops.norm_rms(x)
assert distributed.verify().agrees
# Adopting one kernel replaces the rules by a lock.
distributed.record()
lz.ops.norm_rms(sizes[1])
assert distributed.adopt()["norm.rms"] == wanted[1]
assert kernels() == [wanted[1], wanted[1]], kernels()
"""
    policy = "version: 1\nrules:\n  - operation: norm.rms\n    condition: rows <= 2\n    action: {kernel_override: reference.norm.rms}\n"
    ranks(code, files={"few.yaml": policy})


def test_ranks_with_other_hardware_form_groups():
    code = """
# Ranks 0 and 2 have equal hardware, rank 1 has another.
if rank == 1:
    distributed.hardware = lambda: {"cpu": "cpu_other"}
    lz.lock("norm.rms", "reference.norm.rms")
if rank == 2:
    lz.lock("activation.relu", "reference.activation.relu")
lz.ops.norm_rms(x)
lz.ops.activation_relu(x)
lz.unlock("norm.rms")
lz.unlock("activation.relu")
groups = distributed.capability_groups()
assert sorted(group.ranks for group in groups) == [(0, 2), (1,)], groups
assert {group.platform for group in groups} == {"cpu"}
try:
    distributed.verify()
    raise SystemExit("ranks were reported to agree")
except distributed.DisagreementError as error:
    # The decisions of rank 1 are for other hardware.
    assert {one.operation for one in error.disagreements} == {"activation.relu"}, error
    assert set(error.disagreements[0].kernels) == {0, 2}
locked = distributed.synchronize().locked
if rank == 1:
    assert locked["norm.rms"] == "reference.norm.rms"
else:
    assert locked["norm.rms"].startswith("cpu.") and locked["activation.relu"].startswith("cpu."), locked
"""
    ranks(code, world=3)


def test_watch_checks_after_the_interval_and_acts_as_the_setting_says():
    code = """
import logging
store = dist.distributed_c10d._get_default_store()
ours = distributed.versions()
texts = []
class Records(logging.Handler):
    def emit(self, record):
        texts.append((record.levelname, record.getMessage()))
logging.getLogger("layerzero.distributed").addHandler(Records())
lz.ops.norm_rms(x)

# More shapes than the thread cache has entries: its hits are counted late.
shapes = [torch.ones(rows, 64) for rows in range(1, 17)]

def calls_until(condition, seconds=30):
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        for one in shapes:
            lz.ops.norm_rms(one)
        time.sleep(0.005)
    return condition()

# The first check finds equal versions. After a change nothing is compared before the interval is over.
lz.configure({"distributed.version_check_interval": 2000, "distributed.on_version_mismatch": "best_effort"})
with distributed.Watch(store, rank, world, seconds=0.05) as watch:
    while len(watch.peers()) < world or watch._checked_at is None:
        time.sleep(0.02)
    dist.barrier()
    distributed.versions = lambda: ours | {"layerzero": f"0.0.{rank}"}
    time.sleep(0.5)
    dist.barrier()
    assert texts == [], texts
    for number in range(2000):
        lz.ops.norm_rms(shapes[number % len(shapes)])
    assert calls_until(lambda: texts), "the interval is over"
    assert texts[0][0] == "WARNING" and "different versions" in texts[0][1]
    assert lz.which("norm.rms", x).kernel_id.startswith("cpu.")
    dist.barrier()
texts.clear()

lz.configure({"distributed.version_check_interval": 1, "distributed.on_version_mismatch": "fallback"})
with distributed.Watch(store, rank, world, seconds=0.05) as watch:
    assert calls_until(lambda: lz.which("norm.rms", x).kernel_id == "reference.norm.rms")
    dist.barrier()
"""
    ranks(code)


def test_comparisons_use_a_tensor_device_that_the_backend_supports(monkeypatch):
    import torch

    from layerzero import distributed

    assert distributed._backend() == "gloo" and distributed._tensor_device() == torch.device("cpu")
    # A torch without gloo, in a program that uses nccl.
    monkeypatch.setattr(distributed.dist, "is_gloo_available", lambda: False)
    monkeypatch.setattr(distributed.dist, "get_backend", lambda: "nccl")
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 3)
    assert distributed._backend() == "nccl" and distributed._tensor_device() == torch.device("cuda", 3)
