"""Which failures count: only a kernel's own failures count against its circuit breaker and are stored."""

import os
import signal
import subprocess
import sys

import numpy as np
import pytest

import layerzero as lz
from layerzero.cli import main

X = np.arange(1, 9, dtype=np.float32).reshape(2, 4)


@pytest.fixture(autouse=True)
def reset_circuits():
    lz.reset_kernel()
    yield
    lz.reset_kernel()


@pytest.fixture
def kernels():
    """Registers kernels of a backend that is unregistered after the test."""
    yield lambda **about: lz.register_kernel(backend="test", **{"priority": 100, **about})
    lz.unregister_backend("test")


def circuits():
    return {one["name"]: one for one in lz.list_circuits()}


class Custom(BaseException):
    """Not an Exception: only its author handles it."""


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, GeneratorExit, Custom])
def test_base_exceptions_propagate_and_count_as_no_failure(kernels, error):
    calls = []

    @kernels(operation="norm.rms", id="test.norm.rms")
    def rms(x, weight, *, eps, weight_offset):
        calls.append(x)
        if len(calls) <= 20:
            raise error("now")
        return x

    @kernels(operation="norm.rms", id="test.fallback", priority=99)
    def fallback(x, weight, *, eps, weight_offset):
        raise AssertionError("another kernel was tried")

    for _ in range(20):
        with pytest.raises(error, match="now") as raised:
            lz.ops.norm_rms(X)
        assert type(raised.value) is error and raised.value.__cause__ is None
    assert circuits() == {}
    assert lz.which("norm.rms", X).kernel_id == "test.norm.rms"
    assert lz.ops.norm_rms(X) is X


def test_base_exceptions_propagate_from_plans_and_tuning(kernels):
    @kernels(operation="norm.rms", id="test.norm.rms")
    def rms(x, weight, *, eps, weight_offset):
        raise Custom("now")

    plan = lz.ops.norm_rms.plan(X)
    for _ in range(6):
        with pytest.raises(Custom):
            plan.run(X)
        with pytest.raises(Custom):
            lz.tune("norm.rms", X, samples=1)
    assert "test.norm.rms" not in circuits()


def test_out_of_memory_falls_back_and_counts_as_no_failure(kernels):
    @kernels(operation="norm.rms", id="test.norm.rms")
    def rms(x, weight, *, eps, weight_offset):
        raise MemoryError("4 GiB for scores")

    for _ in range(20):
        np.testing.assert_allclose((lz.ops.norm_rms(X) ** 2).mean(-1), 1, rtol=1e-4)
    assert circuits() == {}
    assert lz.which("norm.rms", X).kernel_id == "test.norm.rms"


def test_failed_output_allocation_counts_as_no_failure():
    huge = np.broadcast_to(np.ones(1, np.float32), (1 << 23, 1 << 23))
    for _ in range(6):
        with pytest.raises(lz.KernelExecutionError) as raised:
            lz.ops.norm_rms(huge)
        assert {reason.code for reason in raised.value.reasons} == {"OUT_OF_MEMORY"}, raised.value
        assert isinstance(raised.value.__cause__, MemoryError)
    assert circuits() == {}


def test_declining_counts_as_no_failure(kernels):
    @kernels(operation="norm.rms", id="test.norm.rms")
    def rms(x, weight, *, eps, weight_offset):
        raise NotImplementedError("not today")

    for _ in range(20):
        lz.ops.norm_rms(X)
    assert circuits() == {}


WRONG = {
    "nothing": lambda x: None,
    "a scalar": lambda x: np.float32(3),
    "a number": lambda x: 3.0,
    "complex": lambda x: x.astype(np.complex64),
    "a shape that would be broadcast": lambda x: x[:1],
    "another dtype": lambda x: x.astype(np.float64),
    "a list": lambda x: x.tolist(),
    "two results": lambda x: (x, x),
    "a buffer": lambda x: memoryview(x),
    "no result": lambda x: (),
}


@pytest.mark.parametrize("wrong", WRONG.values(), ids=WRONG)
@pytest.mark.parametrize("out", [False, True], ids=["returned", "into out"])
def test_result_that_violates_the_schema_is_a_kernel_failure(kernels, wrong, out):
    @kernels(operation="norm.rms", id="test.norm.rms")
    def rms(x, weight, *, eps, weight_offset):
        return wrong(x)

    keywords = {"out": np.full_like(X, np.nan)} if out else {}
    result = lz.ops.norm_rms(X, **keywords)
    np.testing.assert_allclose((result**2).mean(-1), 1, rtol=1e-4, err_msg="the fallback kernel must run")
    circuit = circuits()["test.norm.rms"]
    assert circuit["failures"] == 1 and circuit["state"] == "closed" and not circuit["refuses"]
    assert "requires" in circuit["last_error"] and "found" in circuit["last_error"]
    lz.lock("norm.rms", "test.norm.rms")
    try:
        with pytest.raises(lz.KernelExecutionError, match="requires .*, found") as raised:
            lz.ops.norm_rms(X, **keywords)
        assert raised.value.reasons[0].code == "KERNEL_FAILED"
    finally:
        lz.unlock("norm.rms")


def test_message_states_expected_and_found(kernels):
    @kernels(operation="norm.layer", id="test.norm.layer")
    def layer(x, weight, bias, *, eps, return_stats):
        return x, x, x

    lz.lock("norm.layer", "test.norm.layer")
    try:
        expected = r"`mean`: requires a numpy array of float32 \[2\] on cpu:0, found a numpy array of float32 \[2, 4\]"
        with pytest.raises(lz.KernelExecutionError, match=expected):
            lz.ops.norm_layer(X, return_stats=True)
    finally:
        lz.unlock("norm.layer")


def test_results_are_checked_in_plans_and_in_tuning(kernels):
    @kernels(operation="norm.rms", id="test.norm.rms")
    def rms(x, weight, *, eps, weight_offset):
        return x[:1]

    with pytest.raises(lz.KernelExecutionError, match="requires"):
        lz.ops.norm_rms.plan(X).run(X)
    lz.reset_kernel()
    outcome = {one["kernel"]: one for one in lz.tune("norm.rms", X, samples=1).to_dict()["kernels"]}
    assert outcome["test.norm.rms"]["state"] == "failed"
    circuit = circuits()["test.norm.rms"]
    assert circuit["refuses"] and circuit["failures"] == 1
    assert "open after 1 failure (" in str(lz.explain("norm.rms", X))


def test_scalars_and_empty_buffers_are_refused():
    for _ in range(6):
        with pytest.raises(lz.ValidationError, match="numpy scalar; pass numpy.asarray"):
            lz.ops.activation_silu(np.float32(1))
        with pytest.raises(lz.ValidationError, match="an empty buffer"):
            lz.ops.activation_silu(memoryview(np.empty((2, 0), np.float32)))
    assert circuits() == {}
    assert lz.ops.activation_silu(np.empty((2, 0), np.float32)).shape == (2, 0)
    assert lz.ops.activation_silu(np.asarray(np.float32(0))).shape == ()


def test_open_circuit_does_not_refuse_the_only_kernel(kernels):
    broken = True

    @kernels(operation="norm.rms", id="test.norm.rms")
    def rms(x, weight, *, eps, weight_offset):
        if broken:
            raise RuntimeError("broken")
        return x

    lz.lock("norm.rms", "test.norm.rms")
    try:
        for _ in range(8):
            with pytest.raises(lz.KernelExecutionError, match="broken"):
                lz.ops.norm_rms(X)
        assert circuits()["test.norm.rms"]["refuses"]
        broken = False
        assert lz.ops.norm_rms(X) is X, "the circuit is open, but there is no other kernel"
    finally:
        lz.unlock("norm.rms")
    assert lz.ops.norm_rms(X) is not X, "with another kernel the open circuit applies"


def test_circuits_are_listed_and_reset(kernels, capsys):
    @kernels(operation="norm.rms", id="test.norm.rms")
    def rms(x, weight, *, eps, weight_offset):
        raise RuntimeError("broken")

    for _ in range(6):
        lz.ops.norm_rms(X)
    assert not lz.readiness_check().to_dict()["ready"]
    assert main(["health", "show"]) == 0
    shown = capsys.readouterr().out
    assert "test.norm.rms" in shown and "broken" in shown
    assert main(["health", "reset", "test.unknown"]) == 1
    assert main(["health", "reset", "test.norm.rms"]) == 0
    assert "test.norm.rms" not in circuits() and lz.reset_kernel() == 0


def test_reset_on_the_command_line_reaches_a_running_process(tmp_path):
    program = """
import time
import numpy as np
import layerzero as lz

x = np.ones((2, 8), np.float32)

@lz.register_kernel(operation="norm.rms", id="test.norm.rms", backend="test", priority=100)
def rms(x, weight, *, eps, weight_offset):
    raise RuntimeError("broken")

for _ in range(6):
    lz.ops.norm_rms(x)
opened = [one["name"] for one in lz.list_circuits() if one["refuses"]]
time.sleep(1)
print(*opened, flush=True)
input()
for _ in range(100):
    time.sleep(0.1)
    if not lz.list_circuits():
        break
print(*[one["name"] for one in lz.list_circuits()], flush=True)
"""
    environment = {**os.environ, "HOME": str(tmp_path)}
    command = [sys.executable, "-c", program]
    with subprocess.Popen(command, env=environment, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as running:
        assert "test.norm.rms" in running.stdout.readline()
        reset = [sys.executable, "-m", "layerzero", "health", "reset", "test.norm.rms"]
        assert subprocess.run(reset, env=environment).returncode == 0
        shown = subprocess.run([*reset[:4], "show"], env=environment, text=True, capture_output=True)
        assert "test.norm.rms" not in shown.stdout
        assert running.communicate("go\n", timeout=120)[0].strip() == ""


def _start(script: str, home) -> subprocess.Popen:
    environment = {**os.environ, "HOME": str(home)}
    return subprocess.Popen([sys.executable, "-c", script], env=environment, text=True, stdout=subprocess.PIPE)


TUNE = """
import numpy as np
import layerzero as lz

x = np.ones((2, 4), np.float32)
lz.tune("norm.rms", x, samples=1)
lz.tune("activation.silu", x, samples=1)
print(lz.list_circuits())
"""


def test_concurrent_tuning_counts_as_no_failure(tmp_path):
    processes = [_start(TUNE, tmp_path) for _ in range(2)]
    assert [process.communicate(timeout=120)[0].strip() for process in processes] == ["[]", "[]"]
    after = _start("import layerzero as lz; print(lz.list_circuits(), lz.readiness_check().to_dict()['ready'])", tmp_path)
    assert after.communicate(timeout=60)[0].strip() == "[] True"


KILLED = """
import sys
import numpy as np
import layerzero as lz

@lz.register_kernel(operation="norm.rms", id="killer.norm.rms", backend="killer", version="1", priority=100)
def rms(x, weight, *, eps, weight_offset):
    if "wait" in sys.argv:
        print("measuring", flush=True)
        sys.stdin.read()
    return x

x = np.ones((2, 4), np.float32)
if "wait" in sys.argv:
    lz.tune("norm.rms", x, samples=1)
print([(one["name"], one["failures"], one["last_error"]) for one in lz.list_circuits()])
tuned = lz.tune("norm.rms", x, samples=1).to_dict()["kernels"] if "tune" in sys.argv else []
print([one["state"] for one in tuned if one["kernel"] == "killer.norm.rms"])
if "reset" in sys.argv:
    print(lz.reset_kernel("killer.norm.rms"), lz.list_circuits())
"""


def test_kill_during_tuning_opens_the_kernels_circuit_until_reset(tmp_path):
    environment = {**os.environ, "HOME": str(tmp_path)}

    def run(*words, **keywords):
        command = [sys.executable, "-c", KILLED, *words]
        return subprocess.Popen(command, env=environment, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE, **keywords)

    victim = run("wait")
    assert victim.stdout.readline() == "measuring\n"
    # While the process lives no failure is recorded.
    assert run().communicate(timeout=60)[0].splitlines()[0] == "[]"
    victim.send_signal(signal.SIGKILL)
    victim.wait(timeout=60)
    first, state = run("tune").communicate(timeout=60)[0].splitlines()
    assert first == str([("killer.norm.rms", 1, f"process {victim.pid} ended while it measured this kernel")])
    assert state == "['passed']", "the open circuit skips it"
    lines = run("reset").communicate(timeout=60)[0].splitlines()
    assert lines[-1] == "1 []"
    first, state = run("tune").communicate(timeout=60)[0].splitlines()
    assert (first, state) == ("[]", "['measured']")


WRONG_MODULE = """
import numpy as np
import layerzero as lz

RESULTS = [lambda x: x * 2, lambda x: None, lambda x: np.float32(1), lambda x: x.astype(np.complex64), lambda x: x[:1],
           lambda x: x.astype(np.float64), lambda x: (x, x)]

@lz.register_kernel(operation="norm.rms", id="wrong.norm.rms", backend="wrong", version="1", priority=100)
def rms(x, weight, *, eps, weight_offset):
    return RESULTS[round(eps)](x)
"""

WRONG_HOST = """
import layerzero as lz
lz.configure(backend_isolation="wrong: subprocess", **{"worker.start_deadline_seconds": 300.0})
import numpy as np
import wrong_kernels

x = np.ones((2, 4), np.float32)
assert "backend_isolation" in lz.list_kernels("norm.rms", backend="wrong")[0]["runs_in"]
for out in (None, np.empty_like(x)):
    lz.reset_kernel()
    assert lz.ops.norm_rms(x, eps=0, out=out)[0, 0] == 2
    lz.lock("norm.rms", "wrong.norm.rms")
    for number in range(1, len(wrong_kernels.RESULTS)):
        try:
            print("accepted", number, lz.ops.norm_rms(x, eps=number, out=out))
        except lz.KernelExecutionError as error:
            message = str(error)
            assert "requires" in message and "found" in message, message
    lz.unlock("norm.rms")
    assert lz.ops.norm_rms(x, eps=1, out=out)[0, 0] < 1, "the fallback kernel must run"
print("done")
"""


def test_results_of_an_isolated_kernel_are_checked(tmp_path):
    (tmp_path / "wrong_kernels.py").write_text(WRONG_MODULE)
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "HOME": str(tmp_path), "PYTHONPATH": path}
    command = [sys.executable, "-c", WRONG_HOST]
    done = subprocess.run(command, env=environment, text=True, capture_output=True, timeout=120)
    assert done.stdout.strip() == "done", done.stdout + done.stderr
