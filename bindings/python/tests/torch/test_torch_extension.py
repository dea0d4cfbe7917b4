"""The C++ extension that reads torch tensors: built, checked, used, and refused if it cannot be trusted."""

import json
import os
import pathlib
import shutil
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")

from layerzero import _torch_extension  # noqa: E402

HERE = pathlib.Path(__file__).resolve().parent

pytestmark = pytest.mark.skipif(shutil.which("c++") is None, reason="no C++ compiler")


def run(cache, *command, **variables):
    environment = {**os.environ, "XDG_CACHE_HOME": str(cache), **variables}
    return subprocess.run([sys.executable, *command], capture_output=True, text=True, env=environment)


def interfaces(cache, **variables):
    program = "import torch, layerzero as lz; lz.ops.norm_rms(torch.zeros(1, 8)); print(*lz._native.torch_interfaces())"
    done = run(cache, "-c", program, **variables)
    assert done.returncode == 0, done.stderr
    return done.stdout.split(), done.stderr


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """A cache folder with the extension."""
    cache = tmp_path_factory.mktemp("cache")
    assert "extension" not in interfaces(cache)[0]
    done = run(cache, "-m", "layerzero", "torch-extension", "build", "--json")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["built"] and report["used"] and pathlib.Path(report["file"]).is_relative_to(cache)
    return cache


@pytest.fixture
def cache(built, tmp_path):
    """A copy of the folder, and the file in it."""
    shutil.copytree(built, tmp_path / "copy")
    return tmp_path / "copy", next((tmp_path / "copy").rglob("*.so"))


def test_every_kind_of_tensor_is_read_or_refused(built):
    """The tests of reading pass with the extension."""
    program = f"""
import sys
import pytest
import torch
import layerzero as lz
lz.ops.norm_rms(torch.zeros(1, 8))
assert "extension" in lz._native.torch_interfaces()
sys.exit(pytest.main(["-q", "-x", "-p", "no:cacheprovider", "-k", "not published", {str(HERE / "test_reading.py")!r}]))
"""
    done = run(built, "-c", program)
    assert done.returncode == 0, done.stdout + done.stderr


def test_extension_is_no_private_interface(built):
    assert interfaces(built, LAYERZERO_PRIVATE_INTERFACES="0")[0] == ["exchange", "stable", "extension"]


def test_extension_that_others_can_write_is_not_loaded(cache):
    folder, file = cache
    file.chmod(0o777)
    found, errors = interfaces(folder)
    assert "extension" not in found
    assert "RuntimeWarning: the torch extension" in errors and "is not used" in errors


def test_extension_that_describes_tensors_differently_is_not_used(cache, tmp_path):
    folder, file = cache
    wrong = tmp_path / "wrong.cpp"
    describe, convert = "int layerzero_describe_tensor_1(void*, void*) { return 3; }", "int layerzero_tensor_from_object_1, layerzero_object_from_tensor_1;"
    for text, message in ((f"{describe} {convert}", "does not describe tensors as torch does"), (describe, "it has no function layerzero_object_from_tensor_1")):
        wrong.write_text(f'extern "C" {{ {text} }}\n')
        subprocess.run(["c++", "-shared", "-fPIC", str(wrong), "-o", str(file)], check=True)
        found, errors = interfaces(folder)
        assert "extension" not in found and message in errors, errors


def test_extension_converts_tensors_for_a_torch_without_such_functions(built):
    """A torch before 2.14; the object of a handle is the object itself."""
    program = """
import ctypes, sys
import torch
from layerzero import _torch_extension

library = ctypes.PyDLL(str(_torch_extension.find(torch)))
take, give = library.layerzero_tensor_from_object_1, library.layerzero_object_from_tensor_1
handle, found = ctypes.c_void_p(), ctypes.c_void_p()
for tensor in (torch.arange(6.0).reshape(2, 3), torch.nn.Parameter(torch.zeros(2))):
    before = sys.getrefcount(tensor)
    assert take(ctypes.py_object(tensor), ctypes.byref(handle)) == 0
    assert give(handle, None, ctypes.byref(found)) == 0
    assert found.value == id(tensor) and sys.getrefcount(tensor) > before
"""
    done = run(built, "-c", program)
    assert done.returncode == 0, done.stderr


def test_file_that_is_no_library_is_not_used(cache):
    folder, file = cache
    file.write_bytes(b"nothing")
    found, errors = interfaces(folder)
    assert "extension" not in found and "is not used" in errors


def test_another_torch_needs_another_extension(monkeypatch):
    first = _torch_extension.path(torch)
    monkeypatch.setattr(torch.version, "git_version", "another")
    assert _torch_extension.path(torch) != first


def test_remove_deletes_the_extension(cache):
    folder, file = cache
    done = run(folder, "-m", "layerzero", "torch-extension", "remove", "--json")
    assert done.returncode == 0 and not file.exists(), done.stderr


def test_failed_compilation_is_reported(tmp_path):
    done = run(tmp_path, "-m", "layerzero", "torch-extension", "build", "--compiler", "false")
    assert done.returncode == 1 and "could not compile" in done.stderr and "Traceback" not in done.stderr
    done = run(tmp_path, "-m", "layerzero", "torch-extension", "build", "--compiler", "no-such-compiler")
    assert done.returncode == 1 and "set CXX or pass --compiler" in done.stderr
