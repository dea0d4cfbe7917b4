"""The torch compositions on devices of torch other than CUDA.

There is no such GPU here. `simulated_xpu.cpp` adds one of type `xpu` to torch, whose memory and functions are those of the host: for
torch and for LayerZero its tensors are on an Intel GPU.
"""

import json
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
import layerzero as lz  # noqa: E402
from layerzero import backends  # noqa: E402
from layerzero.backends import torch_reference  # noqa: E402

HERE = Path(__file__).parent
OPERATIONS = sorted(id.removeprefix("torch.reference.") for id in torch_reference.KERNELS)


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    compiler, home = shutil.which("c++"), Path(torch.__file__).parent
    if compiler is None:
        pytest.skip("no C++ compiler")
    made = tmp_path_factory.mktemp("device") / "simulated_xpu.so"
    include = [home / "include", home / "include/torch/csrc/api/include", sysconfig.get_paths()["include"]]
    arguments = ["-std=c++20", "-shared", "-fPIC", str(HERE / "simulated_xpu.cpp"), "-o", str(made), *(f"-I{folder}" for folder in include)]
    arguments += [f"-L{home / 'lib'}", "-ltorch_cpu", "-lc10"]
    done = subprocess.run([compiler, *arguments], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[:4000]
    return made


def test_every_composition_answers_on_an_intel_gpu(library):
    done = subprocess.run([sys.executable, str(HERE / "xpu_calls.py"), str(library), "6"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-4000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["operations"] == OPERATIONS
    assert found["problems"] == {}
    assert "xpu" in found["mixed"] and "cpu" in found["mixed"], found["mixed"]
    assert found["device"] == "xpu device 0, not probed"


def test_without_the_device_nothing_is_registered():
    ids = {kernel["id"] for kernel in lz.list_kernels(backend="torch_reference")}
    assert ids == {f"torch.reference.{operation}" for operation in OPERATIONS}


@pytest.mark.parametrize("platform", ["rocm", "xpu", "metal"])
def test_descriptors_of_other_platforms(platform):
    description = json.loads((Path(backends.__file__).parent / "torch_reference.cuda.json").read_text())
    found = backends._for_platform(platform, description)
    assert found["platform"] == platform
    expected = set(OPERATIONS) - (backends._NEEDS_F64 if platform == "metal" else set())
    assert set(found["ops"]) == expected
    for operation, kernels in found["ops"].items():
        for kernel in kernels:
            assert kernel["kernel_id"] == f"torch.reference.{platform}.{operation}"
            assert "min_sm" not in kernel and "is_cuda_graph_safe" not in kernel
            assert ("score_mod" in kernel.get("optional_inputs", ())) <= (platform != "metal")
