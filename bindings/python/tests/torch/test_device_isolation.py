"""`lz.isolate_backend`: the protocol, and workers that end, hang or answer wrongly, with tensors in host memory. What needs a GPU is in
`tests/cuda/isolation.py`."""

import os
import signal
import socket
import sys
import threading
import time
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

import layerzero as lz  # noqa: E402
from layerzero import _device_isolation, _device_worker  # noqa: E402

BACKENDS = Path(__file__).parent.parent / "cuda"
X = torch.arange(24, dtype=torch.float32).reshape(3, 8) - 7.5
KERNEL = "legacy.cpu.norm.rms"
HANG, CRASH, RAISE, DECLINE, EXIT, WRONG_SHAPE = 102.0, 104.0, 105.0, 106.0, 107.0, 108.0


@pytest.fixture(scope="module")
def backend():
    threshold = lz.config()["circuit_breaker.failure_threshold"].value
    lz.configure(**{"worker.deadline_seconds": 5.0, "worker.start_deadline_seconds": 300.0, "circuit_breaker.failure_threshold": 100})
    yield lz.isolate_backend("legacy", "device_backend", path=[BACKENDS])
    lz.unregister_backend("legacy")
    lz.configure(**{"circuit_breaker.failure_threshold": int(threshold), "worker.deadline_seconds": 60.0})


@pytest.fixture
def only_the_worker(backend):
    lz.configure(fallback_enabled=False)
    lz.lock("norm.rms", KERNEL)
    yield
    lz.unlock("norm.rms")
    lz.configure(fallback_enabled=True)


def worker():
    return next(one for one in lz.workers() if one.backend == "legacy")


def works():
    """The next call succeeds, perhaps after the delay of repeated restarts."""
    until = time.monotonic() + 60
    while True:
        try:
            result = lz.ops.norm_rms(X, eps=1e-5)
            break
        except lz.KernelExecutionError as error:
            assert "WORKER_UNAVAILABLE" in str(error) and time.monotonic() < until, error
            time.sleep(0.05)
    torch.testing.assert_close(result, torch.nn.functional.rms_norm(X, (8,), eps=1e-5))


def fails(eps):
    with pytest.raises(lz.KernelExecutionError) as caught:
        lz.ops.norm_rms(X, eps=eps)
    return caught.value.reasons[0].message


def test_kernels_run_in_another_process_that_alone_has_the_module(backend, only_the_worker):
    works()
    assert worker().process_id not in (None, os.getpid()) and "device_backend" not in sys.modules
    weight = torch.rand(8)
    out = torch.empty(3, 8)
    assert lz.ops.norm_rms(X.t().contiguous().t(), weight, eps=1e-5, out=out) is out
    torch.testing.assert_close(out, torch.nn.functional.rms_norm(X, (8,), weight, 1e-5))
    half = X.bfloat16()
    lz.lock("activation.silu_mul", "legacy.cpu.silu_mul")
    try:
        torch.testing.assert_close(lz.ops.activation_silu_mul(half, half), torch.nn.functional.silu(half) * half)
    finally:
        lz.unlock("activation.silu_mul")


def test_explain_and_list_kernels_say_where_it_runs(backend, only_the_worker):
    assert backend.kernels == ["legacy.cpu.norm.rms", "legacy.cpu.silu_mul", "legacy.cuda.norm.rms", "legacy.cuda.norm.rms.add", "legacy.cuda.silu_mul"]
    assert "runs in a worker process" in str(lz.explain("norm.rms", X)) and "lz.isolate_backend" in backend.runs_in
    listed = {one["id"]: one for one in lz.list_kernels("norm.rms", backend="legacy")}
    assert listed[KERNEL]["runs_in"] == backend.runs_in
    # A capture cannot leave the process, whatever the descriptor says.
    assert not listed["legacy.cuda.norm.rms"]["cuda_graph_safe"]


def test_exception_fails_the_call_and_keeps_the_worker(backend, only_the_worker):
    works()
    before = worker()
    assert "it fails on request" in fails(RAISE)
    assert "1 results" not in fails(WRONG_SHAPE) and "result 0 is torch.float32 [3, 7] instead of" in fails(WRONG_SHAPE)
    with pytest.raises(lz.LayerZeroError, match="it declines on request"):
        lz.ops.norm_rms(X, eps=DECLINE)
    assert worker() == before


@pytest.mark.parametrize(("eps", "word"), [(CRASH, "SIGSEGV"), (EXIT, "ended with status 7")])
def test_crashed_worker_fails_the_call_and_is_restarted(backend, only_the_worker, eps, word):
    works()
    before = worker()
    message = fails(eps)
    assert "WORKER_CRASHED" in message and word in message
    assert worker().process_id is None
    assert "last failure" in str(lz.explain("norm.rms", X))
    works()
    assert worker().process_id != before.process_id and worker().starts == before.starts + 1


def test_killed_and_hung_workers(backend, only_the_worker):
    works()
    killer = threading.Timer(0.5, os.kill, (worker().process_id, signal.SIGKILL))
    killer.start()
    message = fails(HANG)
    killer.join()
    assert "WORKER_CRASHED" in message and "SIGKILL" in message
    works()
    victim = worker().process_id
    assert "WORKER_HUNG" in fails(HANG)
    with pytest.raises(ProcessLookupError):
        os.kill(victim, 0)
    works()


def test_circuit_opens_and_the_next_kernel_runs(backend):
    """Without the lock: the call succeeds with another kernel, and repeated failures open the circuit."""
    lz.configure(**{"circuit_breaker.failure_threshold": 2})
    try:
        assert lz.which("norm.rms", X).kernel_id == KERNEL
        for _ in range(2):
            result = lz.ops.norm_rms(X, eps=EXIT)
            torch.testing.assert_close(result, torch.nn.functional.rms_norm(X, (8,), eps=EXIT))
        assert KERNEL in str(lz.list_circuits()) and lz.which("norm.rms", X).kernel_id != KERNEL
    finally:
        lz.configure(**{"circuit_breaker.failure_threshold": 100})
        lz.reset_kernel(KERNEL)


def test_forked_child_gets_its_own_worker(backend, only_the_worker):
    works()
    parent = worker().process_id
    child = os.fork()
    if child == 0:
        status = 1
        try:
            works()
            status = 0 if worker().process_id not in (None, parent) else 2
            _device_isolation._WORKERS["legacy"].end()
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    works()
    assert worker().process_id == parent


def test_backend_that_cannot_be_loaded_is_refused(tmp_path):
    (tmp_path / "broken_backend.py").write_text("raise ValueError('no such stack')\n")
    with pytest.raises(RuntimeError, match="WORKER_UNAVAILABLE.*no such stack"):
        lz.isolate_backend("broken", "broken_backend", path=[tmp_path])
    with pytest.raises(RuntimeError, match="WORKER_UNAVAILABLE.*cannot be started"):
        lz.isolate_backend("broken", "broken_backend", python=tmp_path / "python")
    other = tmp_path / "other_backend.py"
    other.write_text('KERNELS = {}\nDESCRIPTORS = [\'{"backend": "torch"}\']\n')
    with pytest.raises(ValueError, match="of the backend 'torch', expected 'broken'"):
        lz.isolate_backend("broken", "other_backend", path=[tmp_path])
    other.write_text("""KERNELS = {}\nDESCRIPTORS = ['{"backend": "broken", "ops": {"tokenize.encode": []}}']\n""")
    with pytest.raises(ValueError, match="tokenize.encode cannot run in a worker of lz.isolate_backend"):
        lz.isolate_backend("broken", "other_backend", path=[tmp_path])
    assert all(one.backend != "broken" for one in lz.workers())


def test_worker_that_answers_garbage_is_ended(monkeypatch, backend, only_the_worker):
    works()
    state = _device_isolation._WORKERS["legacy"]
    ours, theirs = socket.socketpair()
    connection, state.connection = state.connection, ours
    connection.close()
    theirs.sendall(b"\xff" * 64)
    assert "WORKER_GARBAGE" in fails(1e-5) and worker().process_id is None
    theirs.close()
    works()


def test_messages():
    ours, theirs = socket.socketpair()
    _device_worker.send(ours, {"a": [1, None], "b": float("inf")}, [b"xy", memoryview(b"z")])
    message, payload = _device_worker.receive(theirs, 3)
    assert message == {"a": [1, None], "b": float("inf")} and bytes(payload) == b"xyz"
    _device_worker.send(ours, {}, [b"xyz"])
    with pytest.raises(ValueError, match="too long"):
        _device_worker.receive(theirs, 2)
    ours.close()
    theirs.close()
    ours, theirs = socket.socketpair()
    ours.sendall(b"\x05\x00")
    ours.close()
    assert _device_worker.receive(theirs) is None
    theirs.close()


def test_extent_of_strided_tensors():
    assert _device_worker.extent((3, 4), (8, 1)) == 20 and _device_worker.extent((3, 0), (8, 1)) == 0 and _device_worker.extent((), ()) == 1


def test_optional_inputs_that_a_kernel_lacks_must_be_absent():
    def kernel(x, weight=None, *, eps):
        return x

    taken = _device_worker.taken_inputs
    assert taken(kernel, [1, None, None]) == [1, None]
    assert taken(lambda *inputs: inputs, [1, None, None]) == [1, None, None]
    with pytest.raises(NotImplementedError, match="takes 2 inputs, and the call has more"):
        taken(kernel, [1, None, 3])
