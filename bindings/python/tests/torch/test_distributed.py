"""Two and three processes on one machine, through gloo."""

import os
import socket
import subprocess
import sys
import time

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


def ranks(code, world=2, expected=0):
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port = one.getsockname()[1]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    started = [
        subprocess.Popen(
            [sys.executable, "-c", PREAMBLE + code + EPILOGUE, str(rank), str(world), str(port)],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment,
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
