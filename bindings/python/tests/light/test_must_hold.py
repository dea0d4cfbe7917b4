"""Properties of the whole package: imports, types, threads, forks, interpreters, memory."""

import ctypes
import gc
import os
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from samples import samples, text_samples

import layerzero as lz
from layerzero import _native

HERE = Path(__file__).parent


def child(code, *, check=True):
    """Runs code in a separate interpreter."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert not check or done.returncode == 0, done.stderr
    return done


def test_importing_imports_no_heavy_package():
    code = "import sys, layerzero; print(*sorted({name.split('.')[0] for name in sys.modules}))"
    modules = set(child(code).stdout.split())
    assert "layerzero" in modules
    assert not modules & {"numpy", "torch", "ml_dtypes", "jax", "transformers", "asyncio", "inspect", "argparse"}
    # Without site-packages: standard library modules that take longer to import than the package itself.
    home = str(Path(lz.__file__).parents[1])
    code = f"import sys; sys.path.insert(0, {home!r}); {code}"
    bare = subprocess.run([sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, check=True)
    assert not set(bare.stdout.split()) & {"subprocess", "tempfile", "pathlib", "json", "shutil", "urllib", "ctypes"}


def test_works_without_numpy():
    code = """
import sys
sys.modules["numpy"] = None
import array, layerzero as lz
x = array.array("f", [3.0, 4.0])
y = lz.ops.norm_rms(x)
assert type(y) is memoryview and abs(y[0] - 0.848528) < 1e-5, list(y)
out = array.array("f", [0.0, 0.0])
assert lz.ops.norm_rms(x, out=out) is out and abs(out[1] - 1.131371) < 1e-5
print(lz.doctor())
"""
    assert "backends" in child(code).stdout


def test_a_forked_child_can_call():
    x = np.ones((64, 256), np.float32)
    lz.ops.norm_rms(x)
    pid = os.fork()
    if pid == 0:
        try:
            y = lz.ops.norm_rms(x)
            os._exit(0 if abs(float(y[0, 0]) - 1) < 1e-4 else 1)
        except BaseException:
            os._exit(2)
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 0


def test_sub_interpreters_are_refused_cleanly():
    code = """
try:
    import _interpreters as interpreters
    run = lambda number, text: interpreters.exec(number, text)
except ImportError:
    import _xxsubinterpreters as interpreters
    run = lambda number, text: interpreters.run_string(number, text)
import layerzero
number = interpreters.create()
text = "try:\\n    import layerzero\\nexcept ImportError as error:\\n    pass\\nelse:\\n    raise SystemError('not refused')\\n"
failure = run(number, text)
assert failure is None, failure
interpreters.destroy(number)
import numpy
layerzero.ops.norm_rms(numpy.ones((2, 4), numpy.float32))
"""
    child(code)


def test_eight_threads_call_and_change_scopes_at_once():
    small, large = np.ones((4, 64), np.float32), np.ones((256, 256), np.float32)
    problems = []
    stop = threading.Event()

    def work(number):
        try:
            for _ in range(300):
                for x in (small, large):
                    y = lz.ops.norm_rms(x)
                    if abs(float(y[-1, -1]) - 1) > 1e-4:
                        problems.append(number)
        except BaseException as error:
            problems.append(error)

    def disturb():
        while not stop.is_set():
            with lz.prefer("reference"):
                lz.which("norm.rms", small)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    disturbing = threading.Thread(target=disturb)
    for thread in [*threads, disturbing]:
        thread.start()
    for thread in threads:
        thread.join()
    stop.set()
    disturbing.join()
    assert problems == []


class MallInfo(ctypes.Structure):
    """`struct mallinfo2` of the C library."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in ("arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost")
    ]


def in_use():
    """Small objects of Python, and bytes of everything that was allocated by the C library."""
    mallinfo = ctypes.CDLL(None).mallinfo2
    mallinfo.restype = MallInfo
    gc.collect()
    information = mallinfo()
    return sys.getallocatedblocks(), information.uordblks + information.hblkhd


def test_calls_do_not_leak(tokenizer_path):
    everything = {**samples(), **text_samples(tokenizer_path)}
    assert set(everything) == {name for name in vars(_native.ops) if not name.startswith("_")}
    for name, (arguments, keywords) in everything.items():
        function = getattr(lz.ops, name)
        objects = [*arguments, *keywords.values()]
        for one in objects:
            if isinstance(one, lz.Tokenizer):
                # The verification in the background allocates tables.
                one.wait_verified()
        for _ in range(100):
            function(*arguments, **keywords)
        counts = [sys.getrefcount(one) for one in objects]
        growth = []
        # A leak grows each time; what another thread allocates meanwhile, such as the verification of another test's tokenizer, does not.
        for _ in range(3):
            blocks, allocated = in_use()
            for _ in range(400):
                function(*arguments, **keywords)
            more_blocks, more_allocated = in_use()
            # If each of the calls leaked one object, there were twice as many; the C library allocates at least 32 bytes at a time.
            if more_blocks - blocks < 200 and more_allocated - allocated < 6_400:
                break
            # As text, because small integers are counted below.
            growth.append(f"{more_blocks - blocks} blocks, {more_allocated - allocated} bytes")
        else:
            pytest.fail(f"{name}: {growth}")
        assert [sys.getrefcount(one) for one in objects] == counts, name


def test_refused_calls_do_not_leak():
    x, wrong = np.ones((2, 4), np.float32), np.ones(5, np.float32)

    def call():
        with pytest.raises(lz.ValidationError):
            lz.ops.norm_rms(x, wrong)
        with pytest.raises(lz.ValidationError):
            lz.ops.norm_rms(x[:, 1:], out=x[:, :3])
        with pytest.raises(TypeError):
            lz.ops.norm_rms(x, nonsense=1)

    call()
    gc.collect()
    before = sys.getrefcount(x), sys.getrefcount(wrong)
    for _ in range(200):
        call()
    gc.collect()
    assert (sys.getrefcount(x), sys.getrefcount(wrong)) == before


def test_signatures_and_argument_errors():
    import inspect

    signature = inspect.signature(lz.ops.norm_rms)
    assert list(signature.parameters) == ["x", "weight", "eps", "weight_offset", "out"]
    assert "Root-mean-square" in lz.ops.norm_rms.__doc__
    with pytest.raises(TypeError, match="did you mean 'eps'"):
        lz.ops.norm_rms(np.ones((2, 4), np.float32), epss=1)
    with pytest.raises(TypeError, match="is missing the required arguments 'x'"):
        lz.ops.norm_rms()
    with pytest.raises(TypeError, match="at most 2 positional"):
        lz.ops.norm_rms(1, 2, 3)
    with pytest.raises(TypeError, match="multiple values for argument 'x'"):
        lz.ops.norm_rms(np.ones((2, 4), np.float32), x=1)


def test_repository_has_no_misspelled_words():
    typos = Path(sys.executable).with_name("typos")
    if not typos.exists():
        pytest.skip("the spell checker `typos` is not installed")
    done = subprocess.run([typos, "--format", "brief"], capture_output=True, text=True, cwd=HERE.parents[3])
    assert done.returncode == 0, done.stdout + done.stderr


def test_api_type_checks_strictly():
    pytest.importorskip("mypy")
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", str(HERE / "whole_api.py")],
        capture_output=True,
        text=True,
        cwd=HERE,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_stubs_match_the_module():
    pytest.importorskip("mypy")
    done = subprocess.run(
        [
            *(sys.executable, "-m", "mypy.stubtest", "layerzero"),
            *("--allowlist", str(HERE / "stubtest_allowed.txt"), "--ignore-unused-allowlist"),
            *("--mypy-config-file", str(HERE.parents[1] / "pyproject.toml")),
        ],
        capture_output=True,
        text=True,
        cwd=HERE,
    )
    assert done.returncode == 0, done.stdout + done.stderr
