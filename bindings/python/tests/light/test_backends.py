"""Third-party backends: discovered by entry points, probed in a separate process, disabled with a reason."""

import json
import shutil
import subprocess
import sys
import textwrap
import time

import pytest

import layerzero as lz
from layerzero import backends
from layerzero.backends import _probe

DESCRIPTOR = """{
  "schema_version": "1.0", "backend": "NAME", "backend_version": "1", "platform": "cpu",
  "ops": {"norm.rms": [{"kernel_id": "NAME.norm.rms", "dtypes": ["f32"], "requires_layouts": ["any"],
    "optional_inputs": ["weight"], "params": ["eps", "weight_offset"], "priority": 1}]}
}"""


@pytest.fixture
def install(tmp_path, monkeypatch):
    """Installs distributions into a folder on the path: a module and its entry point."""
    probed = _probe.answers_path()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    # Libraries that earlier tests have probed need not be imported again.
    if probed.is_file():
        _probe.answers_path().parent.mkdir(parents=True)
        shutil.copy(probed, _probe.answers_path())
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.syspath_prepend(str(tmp_path))
    names = []

    def one(name, code):
        (tmp_path / f"{name}_backend.py").write_text(textwrap.dedent(code))
        info = tmp_path / f"{name}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(f"[layerzero.backends]\n{name} = {name}_backend\n")
        names.append(name)

    yield one
    for name in names:
        lz.unregister_backend(name)
        backends._STATES.pop(name, None)


def state(name):
    found = {one["name"]: one for one in lz.doctor().to_dict()["backends"]}
    return found[name]


def registered(name):
    """What the engine reports of a backend, with the reason code."""
    return next(one for one in lz._native.backends() if one["name"] == name)


def test_a_build_for_another_cuda_runtime_is_disabled(monkeypatch):
    backend = next(one for one in backends.BACKENDS if one.name == "apex")
    monkeypatch.setattr(backends, "_cuda_of_torch", lambda: 13)
    try:
        assert backends._disable_in_conflict(backend, "0.1+cu12", ())
        assert "RUNTIME_VERSION_UNSUPPORTED" in registered("apex")["reason"]
        assert backends._disable_in_conflict(backend, "0.1", (12, 13))
        assert "BACKEND_ABI_MISMATCH" in registered("apex")["reason"]
    finally:
        lz.unregister_backend("apex")
        backends._STATES.pop("apex", None)


def test_working_entry_point_backend_is_loaded(install):
    install("goodone", f"DESCRIPTORS = [{DESCRIPTOR.replace('NAME', 'goodone')!r}]\nKERNELS = {{'goodone.norm.rms': lambda x, w, *, eps, weight_offset: x}}\n")
    assert "goodone" in lz.load_backends()
    assert [kernel["id"] for kernel in lz.list_kernels(backend="goodone")] == ["goodone.norm.rms"]
    assert state("goodone")["available"]
    assert "unverified" in state("goodone")["reason"]


@pytest.mark.parametrize(
    ("name", "code", "reason", "reason_code"),
    [
        ("raisesone", "raise RuntimeError('the driver is too old')", "the driver is too old", "BACKEND_IMPORT_FAILED"),
        ("crashesone", "import ctypes; ctypes.string_at(0)", "SIGSEGV", "BACKEND_IMPORT_FAILED"),
        ("hangsone", "import time; time.sleep(60)", "takes longer than", "BACKEND_TIMEOUT"),
    ],
)
def test_backend_that_cannot_be_imported_is_disabled_with_a_reason(install, monkeypatch, name, code, reason, reason_code):
    probe = _probe._try

    def impatient(module, *about):
        # Only where it must pass: on a busy machine even starting Python may take longer.
        with monkeypatch.context() as patch:
            if module.startswith("hangsone"):
                patch.setattr(_probe, "SECONDS", 2.0)
            return probe(module, *about)

    monkeypatch.setattr(_probe, "_try", impatient)
    install(name, code)
    assert name not in lz.load_backends(name)
    found = state(name)
    assert found["available"] is False and reason in found["reason"] and f"--force-reinstall {name}" in found["reason"]
    assert reason_code in registered(name)["reason"]
    assert f"{name}_backend" not in sys.modules
    # Probe results are cached by version: the library is not probed twice.
    monkeypatch.setattr(_probe, "_try", lambda *about: pytest.fail("it was probed again"))
    lz.load_backends(name)


def test_library_that_took_too_long_is_probed_again_after_an_hour(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    slow = _probe.ProbeResult("importing slow takes longer than 60 s", code="BACKEND_TIMEOUT")
    results = [slow, _probe.ProbeResult("")]
    monkeypatch.setattr(_probe, "_try", lambda *about: results.pop(0))
    assert _probe.probe("slow", "1.0") == slow
    assert _probe.probe("slow", "1.0") == slow, "the result is cached"
    later = time.time() + 3601
    monkeypatch.setattr(_probe.time, "time", lambda: later)
    assert _probe.known("slow", "1.0") is None
    assert _probe.probe("slow", "1.0").problem == ""
    monkeypatch.setattr(_probe.time, "time", lambda: later + 7200)
    assert _probe.known("slow", "1.0").problem == "", "a library that was imported is not probed again"


def test_backend_with_an_invalid_descriptor_is_disabled(install):
    install("wrongone", f"DESCRIPTORS = [{DESCRIPTOR.replace('NAME', 'wrongone').replace('requires_layouts', 'layouts')!r}]\nKERNELS = {{}}\n")
    lz.load_backends("wrongone")
    found = state("wrongone")
    assert found["available"] is False and "layouts" in found["reason"]
    assert "BACKEND_ERROR" in registered("wrongone")["reason"]
    assert lz.list_kernels("norm.rms", backend="reference")


def test_compatibility_matrix_uses_probe_results(install, tmp_path, monkeypatch):
    """A library that loads a second CUDA runtime into the process is detected by importing it in a separate process."""
    import _ctypes
    import shutil

    # Importing torch first takes long and is not needed here.
    real = backends._exists
    monkeypatch.setattr(backends, "_exists", lambda module: module != "torch" and real(module))
    path = tmp_path / "matrix.json"
    lz.configure({"backend_compatibility.matrix_path": str(path)})
    library = shutil.copy(_ctypes.__file__, tmp_path / "libcudart-a.so.12")
    shutil.copy(library, tmp_path / "libcudart-b.so.13")
    (tmp_path / "apex.py").write_text(f"import ctypes\nfor name in ('libcudart-a.so.12', 'libcudart-b.so.13'): ctypes.CDLL({str(tmp_path)!r} + '/' + name)\n")
    info = tmp_path / "apex-0.1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: apex\nVersion: 0.1\n")
    try:
        assert "apex" not in lz.load_backends("apex")
        assert "loads CUDA 12 and 13 into one process" in state("apex")["reason"]
        row = {row["backend"]: row for row in json.loads(path.read_text())["backends"]}["apex"]
        assert row["cuda"] == [12, 13] and row["state"] == "problem" and "CUDA 12 and 13" in row["conflict"]
        assert row in lz.doctor().to_dict()["compatibility"]
        # The operator may disable the check, or its consequence.
        for setting in ("check_at_load", "fail_on_incompatible"):
            lz.configure({f"backend_compatibility.{setting}": False})
            assert "apex" in lz.load_backends("apex")
            lz.configure({f"backend_compatibility.{setting}": True})
            lz.unregister_backend("apex")
            backends._STATES.pop("apex", None)
    finally:
        lz.configure({"backend_compatibility.fail_on_incompatible": True, "backend_compatibility.matrix_path": "~/.cache/layerzero/compat_matrix.json"})
        lz.unregister_backend("apex")
        backends._STATES.pop("apex", None)


def test_doctor_works_without_torch():
    code = "import sys; sys.modules['torch'] = None; import layerzero as lz; print(lz.doctor())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_entry_point_cannot_use_a_reserved_name(install):
    """Neither before the built-in backend is loaded nor afterwards, and its state does not replace the built-in one's."""
    text = DESCRIPTOR.replace("NAME", "apex")
    install("apex", f"DESCRIPTORS = [{text!r}]\nKERNELS = {{'apex.norm.rms': lambda x, w, *, eps, weight_offset: x}}\n")
    assert "apex" not in lz.load_backends()
    shown = next(one for one in backends.states() if one.name == "apex (apex)")
    assert shown.state == "problem" and "reserved name" in shown.reason
    assert not lz.list_kernels(backend="apex") and "reserved name" not in (state("apex")["reason"] or "")
    backends._STATES.pop("apex (apex)")


def test_entry_point_descriptor_cannot_use_a_reserved_name(install):
    text = DESCRIPTOR.replace("NAME", "cpu")
    install("poser", f"DESCRIPTORS = [{text!r}]\nKERNELS = {{'cpu.norm.rms': lambda x, w, *, eps, weight_offset: x}}\n")
    assert "poser" not in lz.load_backends("poser")
    assert "another name" in state("poser")["reason"]


def test_sample_package_is_loaded():
    pytest.importorskip("lz_sample_backend", reason="it is installed by cargo xtask test python")
    assert "sample" in lz.load_backends("sample")
    assert [kernel["id"] for kernel in lz.list_kernels(backend="sample")] == ["sample.activation.relu"]
    lz.unregister_backend("sample")
