"""Worker processes: forks, interrupts, limits, and a kernel that attacks its host.

Each script runs in a separate process, so that forks, signals and crashes stay in it.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import layerzero as lz
from layerzero import _native, backends

BACKENDS = Path(__file__).parent / "backends"

START = f"""
import os, signal, sys, threading
import numpy as np
import layerzero as lz
sys.path.insert(0, {str(BACKENDS)!r})
lz.configure(backend_isolation="isolated: subprocess", fallback_enabled=False, **{{
    "worker.deadline_seconds": 60.0, "worker.start_deadline_seconds": 120.0, "worker.arena_mb": 1,
    "worker.arena_limit_mb": 2, "circuit_breaker.failure_threshold": 2,
}})
import isolated_numpy as kernels
lz.lock("norm.rms", "isolated.norm.rms")

def call(value, eps=1e-5):
    return lz.ops.norm_rms(np.linspace(1, 2 + value, 64, dtype=np.float32).reshape(4, 16), eps=eps)

def is_right(value):
    x = np.linspace(1, 2 + value, 64, dtype=np.float32).reshape(4, 16)
    return np.allclose(call(value), x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + 1e-5), rtol=1e-5)

def fails(eps):
    try:
        call(0, eps)
    except lz.KernelExecutionError as error:
        return error.reasons[0]
    raise AssertionError("it did not fail")

def worker():
    return next(one for one in lz.workers() if one.backend == "isolated")
"""


def run(script: str, home: Path, **environment: str) -> list[str]:
    """The lines that a script prints in a separate process, which must exit with 0."""
    variables = {**os.environ, "HOME": str(home), **environment}
    done = subprocess.run([sys.executable, "-W", "ignore::DeprecationWarning", "-c", START + script], env=variables, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.splitlines()


def test_forked_children_get_their_own_results(tmp_path):
    lines = run(
        """
import multiprocessing

def job(number):
    return number, is_right(number), worker().process_id, worker().starts

assert is_right(0)
own = worker().process_id
with multiprocessing.get_context("fork").Pool(4) as pool:
    results = pool.map(job, range(400), chunksize=5)
print("wrong", [number for number, right, _, _ in results if not right])
print("the parent's", sum(id == own for _, _, id, _ in results))
print("started more than once", sum(starts != 1 for _, _, _, starts in results))
print("parent", is_right(5), worker().process_id == own, worker().starts)
""",
        tmp_path,
    )
    assert lines == ["wrong []", "the parent's 0", "started more than once 0", "parent True True 1"]


def test_a_fork_while_other_threads_call(tmp_path):
    """Locks that another thread holds while forking do not block the child."""
    lines = run(
        """
assert is_right(0)
own, over, wrong = worker().process_id, threading.Event(), []

def work(number):
    while not over.is_set():
        if not is_right(number):
            wrong.append(number)

threads = [threading.Thread(target=work, args=(number,)) for number in range(3)]
for thread in threads:
    thread.start()
children = []
for number in range(6):
    child = os.fork()
    if child == 0:
        os._exit(0 if is_right(100 + number) and worker().process_id != own else 1)
    children.append(child)
codes = [os.waitpid(child, 0)[1] for child in children]
over.set()
for thread in threads:
    thread.join()
print(codes, wrong, worker().process_id == own, worker().starts)
""",
        tmp_path,
    )
    assert lines == ["[0, 0, 0, 0, 0, 0] [] True 1"]


def test_everything_else_works_in_a_forked_child(tmp_path):
    """Thread pool, background compilation, performance database and process exit in a forked child."""
    lines = run(
        """
import json
from layerzero import _native
from layerzero.backends import _compiler

lz.unlock("norm.rms")
lz.configure(fallback_enabled=True)
lz.unregister_backend("isolated")
sys.modules["forked_compiler"] = type(sys)("forked_compiler")
sys.modules["forked_compiler"].compile = lambda kernel, operation, call: []
descriptor = {"schema_version": "1.0", "backend": "cold", "backend_version": "1", "platform": "cpu",
    "ops": {"norm.rms": [{"kernel_id": "cold.norm.rms", "dtypes": ["f32"], "requires_layouts": ["any"], "jit": True,
        "optional_inputs": ["weight"], "params": ["eps", "weight_offset"], "priority": 1}]}}
functions = {"cold.norm.rms": lambda x, weight, *, eps, weight_offset: x}
_native.register_descriptor("cold", json.dumps(descriptor), functions, _compiler("forked_compiler"), entry_point="cold")

def large():
    x = np.ones((2048, 512), np.float32)
    return np.allclose(lz.ops.norm_rms(x, eps=0.0), x)

def compiled():
    before = json.loads(_native.compilations())["wanted"]
    lz.ops.norm_rms(np.ones((before + 3, 40), np.float32))
    return _native.wait_for_compilations(60.0)

assert large() and compiled()
for turn in range(3):
    child = os.fork()
    if child == 0:
        assert large() and compiled()
        # The thread that delivers log records starts again in the child.
        print("child", sum(thread.name != "layerzero-log" for thread in threading.enumerate()), flush=True)
        sys.exit(0)
    assert os.waitpid(child, 0)[1] == 0
assert large() and compiled()
print("parent")
""",
        tmp_path,
    )
    assert lines == ["child 1"] * 3 + ["parent"]


def test_ctrl_c_interrupts_a_call(tmp_path):
    lines = run(
        """
# A process started in the background ignores the signal by default.
signal.signal(signal.SIGINT, signal.default_int_handler)
assert is_right(0)
for turn in range(3):
    first = worker().process_id
    threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
    try:
        call(0, kernels.SLEEP)
    except KeyboardInterrupt:
        print("interrupted", is_right(turn), worker().process_id != first)
print("open" if "CIRCUIT_OPEN" in str(lz.explain("norm.rms", np.ones((4, 16), np.float32))) else "closed")
# An exception raised by a handler aborts the call.
def handler(number, frame):
    raise TimeoutError("the alarm")
signal.signal(signal.SIGALRM, handler)
signal.setitimer(signal.ITIMER_REAL, 0.3)
try:
    call(0, kernels.SLEEP)
except TimeoutError as error:
    print(error)
# A handler that raises nothing does not.
signal.signal(signal.SIGALRM, lambda number, frame: print("handled"))
signal.setitimer(signal.ITIMER_REAL, 0.01)
for turn in range(20):
    call(0, kernels.NAP)
""",
        tmp_path,
    )
    assert lines == ["interrupted True True"] * 3 + ["closed", "the alarm", "handled"]


def test_ctrl_c_interrupts_a_start(tmp_path):
    lines = run(
        """
# A process started in the background ignores the signal by default.
signal.signal(signal.SIGINT, signal.default_int_handler)
threading.Timer(1.0, os.kill, (os.getpid(), signal.SIGINT)).start()
try:
    call(0)
except KeyboardInterrupt:
    print("interrupted")
del os.environ["ISOLATED_NUMPY_HANGS"]
print(is_right(0))
""",
        tmp_path,
        ISOLATED_NUMPY_HANGS="1",
    )
    assert lines == ["interrupted", "True"]


def test_worker_crash_reports_the_signal(tmp_path):
    lines = run(
        """
lz.configure(**{"circuit_breaker.failure_threshold": 100})
for eps in (kernels.BUS, kernels.EXIT, kernels.KILL):
    assert is_right(0)
    reason = fails(eps)
    print(reason.code, reason.message)
metrics = lz.metrics()
print(metrics["worker_restarts"], metrics["ipc_latency"]["count"] >= 3, "lz_ipc_latency_seconds_count" in lz.metrics_text())
""",
        tmp_path,
    )
    assert lines.pop() == "2 True True", "after the first two crashes, a call restarted the worker"
    for line, part in zip(lines, ["signal 7 (SIGBUS)", "exit code 3", "signal 9 (SIGKILL)"], strict=True):
        assert line.startswith("WORKER_CRASHED") and part in line, line
    assert "OOM killer" in lines[2]


def test_kernel_cannot_corrupt_its_host(tmp_path):
    lines = run(
        """
lz.configure(**{"circuit_breaker.failure_threshold": 100})
assert is_right(0)
reason = fails(kernels.TRUNCATE)
print(reason.code, "not permitted" in reason.message, is_right(1), worker().starts)
reason = fails(kernels.SCRIBBLE)
print(reason.code in ("WORKER_GARBAGE", "WORKER_CRASHED"), is_right(2), worker().starts)
""",
        tmp_path,
    )
    assert lines == ["KERNEL_FAILED True True 1", "True True 2"]


def test_arena_capacity_counts_as_no_kernel_failure(tmp_path):
    lines = run(
        """
assert is_right(0)
threads = [threading.Thread(target=lambda: call(0, kernels.NAP)) for _ in range(48)]
failed = []
threading.excepthook = lambda about: failed.append(about.exc_value)
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(failed, worker().starts)
large = np.ones((1 << 10, 1 << 10), np.float32)
for turn in range(6):
    try:
        lz.ops.norm_rms(large)
    except lz.KernelExecutionError as error:
        print(error.reasons[0].code, "worker.arena_limit_mb" in error.reasons[0].message)
print(is_right(3), worker().starts)
lz.configure(fallback_enabled=True)
lz.unlock("norm.rms")
print(np.allclose(lz.ops.norm_rms(large, eps=0.0), large))
""",
        tmp_path,
    )
    assert lines == ["[] 1", *["OUT_OF_MEMORY True"] * 6, "True 1", "True"]


def test_isolation_setting_applies_by_module_not_by_stated_name(tmp_path):
    lines = run(
        """
import importlib
def runs_in():
    lz.unregister_backend("isolated")
    importlib.reload(kernels)
    return next(one for one in lz.list_kernels("norm.rms") if one["id"] == "isolated.norm.rms")["runs_in"]
for setting in ("default: subprocess, isolated: in_process", "default: subprocess, isolated_numpy: in_process", "isolated_numpy: in_process, isolated: subprocess"):
    lz.configure(backend_isolation=setting)
    print(runs_in() is not None)
""",
        tmp_path,
    )
    assert lines == ["True", "False", "True"]


@pytest.mark.parametrize("name", ["cpu", "reference", "torch", "Torch", "triton"])
def test_names_of_built_in_backends_are_reserved(name):
    with pytest.raises(lz.ConfigurationError) as caught:
        lz.register_kernel(operation="norm.rms", id="mine.norm.rms", backend=name)(lambda x, weight, *, eps, weight_offset: x)
    assert caught.value.reasons[0].code == "BACKEND_NAME_RESERVED" and "another name" in str(caught.value)
    descriptor = '{"schema_version": "1.0", "backend": "NAME", "backend_version": "1", "platform": "cpu", "ops": {"activation.relu": [{"kernel_id": "mine.relu", "dtypes": ["f32"], "requires_layouts": ["any"]}]}}'
    with pytest.raises(lz.ConfigurationError) as caught:
        _native.register_descriptor("mine", descriptor.replace("NAME", name), {"mine.relu": lambda x: x}, entry_point="mine")
    assert caught.value.reasons[0].code == "BACKEND_NAME_RESERVED"
    assert not [kernel for kernel in lz.list_kernels() if kernel["id"].startswith("mine.")]


def test_built_in_backends_are_reserved_names():
    ours = {backend.name for backend in backends.BACKENDS} | {"reference", "cpu", "tokenize"}
    assert ours == set(_native.BUILT_IN_BACKENDS)
