"""A torch backend in a worker process that is killed, hangs, runs out of memory or crashes during a call.

The call fails with a reason, the next one succeeds, and `explain` reports what happened.
"""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import torch

import layerzero as lz

BACKENDS = Path(__file__).parent / "backends"
MEMORY_LIMIT_MB = 1500
X = torch.arange(24, dtype=torch.float32).reshape(3, 8) - 7.5


@pytest.fixture(scope="module")
def backend():
    threshold = lz.config()["circuit_breaker.failure_threshold"].value
    lz.configure(
        backend_isolation="isolated: subprocess",
        **{
            "worker.deadline_seconds": 10.0,
            "worker.start_deadline_seconds": 300.0,  # importing torch takes long on a busy machine
            "worker.arena_mb": 16,
            "worker.memory_limit_mb": MEMORY_LIMIT_MB,
            "circuit_breaker.failure_threshold": 100,
        },
    )
    sys.path.insert(0, str(BACKENDS))
    import isolated_torch

    yield isolated_torch
    lz.unregister_backend("isolated")
    sys.path.remove(str(BACKENDS))
    lz.configure(
        backend_isolation="in_process",
        fallback_enabled=True,
        **{"circuit_breaker.failure_threshold": int(threshold)},
    )


@pytest.fixture(autouse=True)
def only_the_worker(backend):
    lz.configure(fallback_enabled=False)
    lz.lock("norm.rms", "isolated.norm.rms")
    yield
    lz.unlock("norm.rms")


def process_id() -> int:
    """The worker process, once it runs."""
    until = time.monotonic() + 120
    while time.monotonic() < until:
        for worker in lz.workers():
            if worker.backend == "isolated" and worker.process_id is not None:
                return worker.process_id
        time.sleep(0.01)
    raise AssertionError("the worker does not start")


def works() -> None:
    """The next call succeeds; after several consecutive failures a worker is restarted only after a delay."""
    until = time.monotonic() + 60
    while True:
        try:
            result = lz.ops.norm_rms(X, eps=1e-5)
            break
        except lz.KernelExecutionError as error:
            assert [reason.code for reason in error.reasons] == ["WORKER_UNAVAILABLE"], error
            assert time.monotonic() < until
            time.sleep(0.05)
    assert isinstance(result, torch.Tensor)
    torch.testing.assert_close(result, torch.nn.functional.rms_norm(X, (8,), eps=1e-5))


def fails(eps: float) -> lz.Reason:
    with pytest.raises(lz.KernelExecutionError) as caught:
        lz.ops.norm_rms(X, eps=eps)
    return caught.value.reasons[0]


def explained(word: str, eps: float) -> None:
    """`explain` reports where the call runs and the last failure."""
    text = str(lz.explain("norm.rms", X, eps=eps))
    assert f"last failure: [{word}]" in text, text
    assert "runs in a worker process (backend_isolation: lz.configure)" in text, text


def test_kernel_runs_in_a_worker_process(backend):
    works()
    assert process_id() != os.getpid()
    weight = torch.rand(8)
    strided = torch.rand(8, 3).t()
    out = torch.empty(3, 8)
    assert lz.ops.norm_rms(strided, weight, eps=1e-5, out=out) is out
    torch.testing.assert_close(out, torch.nn.functional.rms_norm(strided, (8,), weight, 1e-5))
    kernel = next(one for one in lz.list_kernels("norm.rms") if one["id"] == "isolated.norm.rms")
    assert kernel["hosted"] is False and "backend_isolation" in kernel["runs_in"]


def test_exception_fails_the_call_and_keeps_the_worker(backend):
    works()
    before = process_id()
    reason = fails(backend.RAISE)
    assert reason.code == "KERNEL_FAILED" and "it fails on request" in reason.message
    assert process_id() == before


def test_killed_in_the_middle_of_a_call(backend):
    works()
    victim = process_id()
    killer = threading.Timer(0.5, os.kill, (victim, signal.SIGKILL))
    killer.start()
    reason = fails(backend.WORK_LONG)
    killer.join()
    assert reason.code == "WORKER_CRASHED" and "SIGKILL" in reason.message, reason
    explained("WORKER_CRASHED", backend.WORK_LONG)
    works()
    assert process_id() != victim


def test_crashed_in_the_middle_of_a_call(backend):
    works()
    reason = fails(backend.CRASH)
    assert reason.code == "WORKER_CRASHED" and "SIGSEGV" in reason.message, reason
    explained("WORKER_CRASHED", backend.CRASH)
    works()


def test_hung_in_the_middle_of_a_call(backend):
    works()
    victim = process_id()
    threads = []

    def other_threads_go_on():
        threads.append(torch.ones(2).sum())

    helper = threading.Timer(0.5, other_threads_go_on)
    helper.start()
    reason = fails(backend.HANG)
    assert threads, "the interpreter was free while the call waited"
    assert reason.code == "WORKER_HUNG", reason
    explained("WORKER_HUNG", backend.HANG)
    works()
    assert process_id() != victim
    with pytest.raises(ProcessLookupError):
        os.kill(victim, 0)


def test_out_of_memory_in_the_middle_of_a_call(backend):
    works()
    reason = fails(backend.EAT_MEMORY)
    assert reason.code == "WORKER_OOM" and f"its limit of {MEMORY_LIMIT_MB} MiB" in reason.message, reason
    explained("WORKER_OOM", backend.EAT_MEMORY)
    works()


def test_fallback_after_a_worker_crash(backend):
    works()
    lz.unlock("norm.rms")
    lz.configure(fallback_enabled=True)
    result = lz.ops.norm_rms(X, eps=backend.CRASH)
    torch.testing.assert_close(result, torch.nn.functional.rms_norm(X, (8,), eps=backend.CRASH))
    explained("WORKER_CRASHED", backend.CRASH)


def test_circuit_opens_with_a_reason(backend):
    works()
    lz.configure(**{"circuit_breaker.failure_threshold": 2, "circuit_breaker.timeout_ms": 500})
    try:
        x = torch.ones(2, 16)
        with pytest.raises(lz.KernelExecutionError):
            lz.ops.norm_rms(x, eps=backend.CRASH)
        time.sleep(0.3)
        with pytest.raises(lz.LayerZeroError):
            lz.ops.norm_rms(x, eps=backend.CRASH)
        text = str(lz.explain("norm.rms", x, eps=backend.CRASH))
        assert "CIRCUIT_OPEN" in text and "WORKER_CRASHED" in text, text
        until = time.monotonic() + 60
        while True:
            try:
                lz.ops.norm_rms(x, eps=1e-5)
                break
            except lz.LayerZeroError:
                assert time.monotonic() < until
                time.sleep(0.1)
    finally:
        lz.configure(**{"circuit_breaker.failure_threshold": 100, "circuit_breaker.timeout_ms": 30_000})


def elsewhere(script: str, home: Path) -> subprocess.CompletedProcess[str]:
    """In a fresh process without recorded failures: health is stored with the measurements."""
    environment = {**os.environ, "HOME": str(home)}
    return subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True)


def test_an_installed_backend_is_isolated_by_its_name(tmp_path):
    script = """
import layerzero as lz
lz.configure(backend_isolation="torch: subprocess", **{"worker.start_deadline_seconds": 300.0})
import torch
kernels = lz.list_kernels("activation.silu", backend="torch")
assert kernels and all("backend_isolation" in kernel["runs_in"] for kernel in kernels), kernels
lz.lock("activation.silu", kernels[0]["id"])
x = torch.linspace(-3, 3, 64)
torch.testing.assert_close(lz.ops.activation_silu(x), torch.nn.functional.silu(x))
print([(worker.backend, worker.source) for worker in lz.workers()])
"""
    ran = elsewhere(script, tmp_path)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.strip() == "[('torch', 'backend:torch')]", ran.stdout


def test_a_function_that_cannot_be_imported_is_refused(tmp_path):
    script = (
        "import layerzero as lz\n"
        "lz.configure(backend_isolation='subprocess')\n"
        "@lz.register_kernel(operation='norm.rms', id='mine.norm.rms')\n"
        "def rms(x, weight, *, eps, weight_offset): return x\n"
    )
    ran = elsewhere(script, tmp_path)
    assert ran.returncode != 0 and "move it to a module" in ran.stderr, ran.stderr


def memory_cgroup() -> Path | None:
    """A memory control group, if this machine allows creating one."""
    for root in (Path("/sys/fs/cgroup/memory"), Path("/sys/fs/cgroup")):
        group = root / f"layerzero-test-{os.getpid()}"
        try:
            group.mkdir()
        except OSError:
            continue
        for name in ("memory.max", "memory.limit_in_bytes"):
            if (group / name).exists():
                (group / name).write_text(str(MEMORY_LIMIT_MB << 20))
                return group
        group.rmdir()
    return None


def test_killed_by_the_oom_killer(tmp_path):
    """A real OOM kill, if this machine allows a control group; the worker's own limit is tested above."""
    group = memory_cgroup()
    if group is None:
        pytest.skip("no control group for memory can be made here")
    script = f"""
import sys, layerzero as lz, torch
lz.configure(backend_isolation="subprocess", fallback_enabled=False, **{{"worker.cgroup": {str(group)!r}, "worker.start_deadline_seconds": 300.0}})
sys.path.insert(0, {str(BACKENDS)!r})
import isolated_torch
x = torch.ones(3, 8)
lz.lock("norm.rms", "isolated.norm.rms")
lz.ops.norm_rms(x)
try:
    lz.ops.norm_rms(x, eps=isolated_torch.EAT_MEMORY)
except lz.KernelExecutionError as error:
    print(error.reasons[0].code, error.reasons[0].message)
print("last failure: [WORKER_OOM]" in str(lz.explain("norm.rms", x, eps=isolated_torch.EAT_MEMORY)))
print(lz.ops.norm_rms(x).sum().item())
"""
    try:
        ran = elsewhere(script, tmp_path)
    finally:
        for _ in range(100):
            try:
                group.rmdir()
                break
            except OSError:
                time.sleep(0.05)
    lines = ran.stdout.splitlines()
    assert ran.returncode == 0, ran.stderr
    assert lines[0].startswith("WORKER_OOM") and "killed by the system" in lines[0], lines
    assert lines[1] == "True" and abs(float(lines[2]) - 24.0) < 1e-3, lines
