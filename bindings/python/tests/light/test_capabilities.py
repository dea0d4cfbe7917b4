"""Kernels registered with the capabilities of a descriptor."""

import json
import subprocess
import sys

import numpy as np
import pytest

import layerzero as lz
from layerzero import _native

DTYPES = {"dtypes": ["f32"], "requires_layouts": ["any"], "requires_last_dim_stride1": False, "optional_inputs": ["weight"], "params": ["eps", "weight_offset"]}


def norm(x, weight, eps, **_):
    return x * 0 + 7


@pytest.fixture
def register():
    """Registers kernels of a backend that is unregistered after the test."""

    def with_capabilities(stated, function=norm, **about):
        known = {"operation": "norm.rms", "id": "able.norm.rms", "backend": "able"}
        return lz.register_kernel(**{**known, **about}, capabilities={**DTYPES, "priority": 99, **stated})(function)

    yield with_capabilities
    lz.unregister_backend("able")


def reasons(device, x):
    answer = json.loads(_native.explain_on(device, "norm.rms", (x,), {}))
    return {one["kernel"]: {reason["code"] for reason in one.get("reasons", [])} for one in answer["candidates"]}


def test_a_kernel_has_the_stated_capabilities(register):
    register({"limits": [{"check": "hidden % 8 == 0", "code": "AXIS_LIMIT"}], "deterministic": True, "workspace_bytes": "4 * hidden"})
    x = np.ones((2, 8), np.float32)
    assert lz.which("norm.rms", x).kernel_id == "able.norm.rms"
    assert lz.ops.norm_rms(x)[0, 0] == 7
    assert lz.which("norm.rms", np.ones((2, 9), np.float32)).kernel_id != "able.norm.rms"
    assert lz.which("norm.rms", np.ones((2, 8), np.float16)).kernel_id != "able.norm.rms"
    [kernel] = [one for one in lz.list_kernels("norm.rms") if one["id"] == "able.norm.rms"]
    assert kernel["deterministic"] and kernel["priority"] == 99


def test_sm_range_and_generations_decide_on_a_device(register):
    register({"min_sm": 90, "max_sm": 99, "supported_generations": ["hopper"]}, platform="cuda")
    x = np.ones((2, 8), np.float32)
    assert "SM_TOO_OLD" in reasons("a100", x)["able.norm.rms"]
    assert not reasons("h100", x)["able.norm.rms"] & {"SM_TOO_OLD", "SM_TOO_NEW", "GPU_GENERATION_UNSUPPORTED"}
    assert "SM_TOO_NEW" in reasons("b200", x)["able.norm.rms"]


COMPILED_FIRST = """
import numpy as np
import layerzero as lz
from layerzero import _native

compiled = []

def compile(kernel, operation, call):
    compiled.append((kernel, operation, call["hidden"]))
    return ["built"]

@lz.register_kernel(operation="norm.rms", id="able.norm.rms", capabilities=CAPABILITIES, compile=compile)
def norm(x, weight, eps, **_):
    return x * 0 + 7

x = np.ones((2, 16), np.float32)
assert lz.ops.norm_rms(x)[0, 0] != 7
assert _native.wait_for_compilations(60.0)
assert compiled == [("able.norm.rms", "norm.rms", "16")], compiled
assert lz.ops.norm_rms(x)[0, 0] == 7
"""


def test_a_kernel_that_is_compiled_first_serves_calls_afterwards():
    # In a process of its own: the queue also compiles kernels of libraries, which it imports.
    stated = {**DTYPES, "priority": 99, "jit": True}
    program = COMPILED_FIRST.replace("CAPABILITIES", repr(stated))
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


def test_mistakes_are_refused(register):
    with pytest.raises(lz.ConfigurationError, match="min_smm"):
        register({"min_smm": 80})
    with pytest.raises(ValueError, match="compile"):
        register({"jit": True})
    with pytest.raises(ValueError, match="compile"):
        register({}, compile=lambda *_: [])
    with pytest.raises(ValueError, match="remove dtypes, deterministic"):
        register({}, dtypes=["float32"], deterministic=True)
    with pytest.raises(ValueError, match="jit"):
        lz.register_kernel(operation="norm.rms", id="able.norm.rms", compile=lambda *_: [])
    with pytest.raises(ValueError, match="serializable"):
        register({"min_sm": object()})
    assert not any(one["backend"] == "able" for one in lz.list_kernels("norm.rms"))


def test_a_cell_with_capabilities_runs_twice(register, monkeypatch):
    from layerzero import _register

    register({})
    with pytest.raises(lz.ConfigurationError, match="able.norm.rms"):
        register({})
    monkeypatch.setattr(_register, "is_interactive", lambda: True)
    register({}, function=lambda x, weight, eps, **_: x * 0 + 8)
    assert lz.ops.norm_rms(np.ones((2, 8), np.float32))[0, 0] == 8
