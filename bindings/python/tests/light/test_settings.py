"""Policy files and environment variables: invalid or untrusted ones are refused."""

import json
import os
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest

MODULE = """
import os
import layerzero as lz

@lz.register_kernel(operation="norm.rms", id="mine.norm.rms", backend="mine", priority=100)
def norm(x, weight, *, eps, weight_offset):
    raise RuntimeError(f"ran in {os.getpid()}")
"""

CALL = """
import os, numpy
import layerzero as lz
import mine
print("here", os.getpid())
try:
    lz.ops.norm_rms(numpy.ones((2, 8), numpy.float32))
    print("fell back", [w.process_id for w in lz.workers()])
except Exception as error:
    print(type(error).__name__, error)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "home").mkdir()
    return tmp_path


def run(
    folder: Path, code: str = "", *arguments: str, text: bool = True, seconds: float = 120, **variables: str
) -> "subprocess.CompletedProcess[str]":
    """Runs a program or the command line in a separate process, with a timeout."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("LAYERZERO_")}
    environment = {**inherited, "HOME": str(folder / "home"), "PYTHONPATH": _path(folder), **variables}
    command = [sys.executable, *(["-c", textwrap.dedent(code)] if code else ["-m", "layerzero", *arguments])]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=text, timeout=seconds)


def _path(folder: Path) -> str:
    import layerzero

    return os.pathsep.join([str(folder), str(Path(layerzero.__file__).parents[1]), os.environ.get("PYTHONPATH", "")])


def test_invalid_policy_does_not_weaken_isolation(folder: Path) -> None:
    (folder / "mine.py").write_text(MODULE)
    policy = folder / "layerzero.yaml"
    policy.write_text("backend_isolation: {mine: subprocess}\ndeterministc: true\n")
    done = run(folder, CALL)
    # Neither the module that registers the kernel nor the call succeeds.
    assert done.returncode == 1
    for part in ("ConfigurationError", "layerzero.yaml:2", "deterministc", "did you mean `deterministic`"):
        assert part in done.stderr, done.stderr
    assert "ran in" not in done.stdout + done.stderr
    policy.write_text("backend_isolation: {mine: subprocess}\n")
    done = run(folder, CALL)
    assert done.returncode == 0, done.stderr
    assert "fell back [" in done.stdout and "None" not in done.stdout, "a worker ran it and failed"


def test_misspelled_backend_in_backend_isolation_is_refused(folder: Path) -> None:
    (folder / "mine.py").write_text(MODULE)
    policy = folder / "layerzero.yaml"
    policy.write_text("backend_isolation: {mien: subprocess}\n")
    done = run(folder, CALL)
    assert done.returncode == 1 and "ran in" not in done.stdout + done.stderr
    for part in ("ConfigurationError", "isolates `mien`, which no backend has as its name; did you mean `mine`?", "`mine: in_process`"):
        assert part in done.stderr, done.stderr
    # The policy can state that the backend is another one.
    policy.write_text("backend_isolation: {mien: subprocess, mine: in_process}\n")
    assert run(folder, "import mine").returncode == 0


@pytest.mark.parametrize("name", ["mien", "minel"])
def test_similar_name_of_a_backend_that_can_be_loaded_is_no_misspelling(folder: Path, name: str) -> None:
    (folder / "mine.py").write_text(MODULE)
    (folder / "mien.py").write_text("")
    plugins = folder / "plugins"
    plugins.mkdir()
    (plugins / "libminel.so").write_text("")
    (folder / "layerzero.yaml").write_text(f"plugins: {{directories: [{plugins}]}}\nbackend_isolation: {{{name}: subprocess}}\n")
    done = run(folder, "import mine")
    assert done.returncode == 0, done.stderr


def test_misspelled_name_that_isolates_nothing_more_is_accepted(folder: Path) -> None:
    (folder / "mine.py").write_text(MODULE)
    (folder / "layerzero.yaml").write_text("backend_isolation: {mien: in_process}\n")
    assert run(folder, "import mine").returncode == 0


def test_every_function_raises_with_an_invalid_policy(folder: Path) -> None:
    (folder / "layerzero.yaml").write_text("cache: {max_size: 0}\n")
    (folder / "other.yaml").write_text("deterministic: true\n")
    code = """
    import numpy
    import layerzero as lz
    x = numpy.ones((2, 8), numpy.float32)
    entries = [
        lambda: lz.ops.norm_rms(x),
        lambda: lz.ops.norm_rms(x),
        lambda: lz.ops.norm_rms.plan(x),
        lambda: lz.which("norm.rms", x),
        lambda: lz.explain("norm.rms", x),
        lambda: lz.configure(deterministic=True),
        lambda: lz.load_config("other.yaml"),
        lambda: lz.lock("norm.rms", "reference.norm.rms"),
        lz.disabled().__enter__,
        lz.config,
        lz.list_operations,
        lz.list_kernels,
        lz.readiness_check,
        lambda: lz.register_kernel(operation="norm.rms", id="m.n", backend="m")(lambda x, weight, *, eps, weight_offset: x),
        lambda: lz.unregister_backend("m"),
        lambda: lz.record_decisions(),
    ]
    for number, entry in enumerate(entries):
        try:
            entry()
            print(number, "went through")
        except lz.ConfigurationError as error:
            if "cache.max_size" not in str(error) or not error.reasons:
                print(number, error)
    print("done")
    """
    assert run(folder, code).stdout == "done\n"


@pytest.mark.parametrize("arguments", [("ready",), ("doctor",)])
def test_command_line_reports_an_invalid_policy(folder: Path, arguments: tuple[str, ...]) -> None:
    (folder / "layerzero.yaml").write_text("strict_mod: true\n")
    done = run(folder, "", *arguments)
    assert done.returncode == 1
    assert "did you mean `strict_mode`" in done.stderr and "Traceback" not in done.stderr, done.stderr


def test_invalid_policy_at_run_time_changes_nothing(folder: Path) -> None:
    (folder / "bad.yaml").write_text("backend_isolation: {mine: sub_process}\n")
    code = """
    import layerzero as lz
    lz.configure(backend_isolation="mine: subprocess")
    for change in (lambda: lz.load_config("bad.yaml"), lambda: lz.configure(backend_isolation="mine: sub_process")):
        try:
            change()
        except lz.ConfigurationError as error:
            print("refused", lz.config()["backend_isolation"].value)
    """
    assert run(folder, code).stdout.splitlines() == ["refused in_process, mine: subprocess"] * 2


def test_policy_file_writable_by_others_is_refused(folder: Path) -> None:
    policy = folder / "layerzero.yaml"
    policy.write_text("deterministic: true\n")
    ask = "import layerzero as lz; print(lz.config()['deterministic'].value)"
    assert run(folder, ask).stdout == "true\n"
    for mode in (0o664, 0o646):
        policy.chmod(mode)
        done = run(folder, ask)
        assert done.returncode == 1 and "run `chmod go-w layerzero.yaml`" in done.stderr, done.stderr
        # A path that is given explicitly is trusted.
        assert run(folder, ask, LAYERZERO_CONFIG="layerzero.yaml").stdout == "true\n"
    policy.chmod(0o644)
    folder.chmod(0o777)
    done = run(folder, ask)
    assert done.returncode == 1 and f"run `chmod go-w {folder}`" in done.stderr, done.stderr
    folder.chmod(0o755)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_policy_file_of_another_user_is_refused(folder: Path) -> None:
    policy = folder / "layerzero.yaml"
    policy.write_text("worker: {program: ./evil}\n")
    os.chown(policy, 12345, 12345)
    done = run(folder, "import layerzero as lz; lz.config()")
    assert done.returncode == 1 and "belongs to user 12345" in done.stderr, done.stderr
    done = run(folder, "import layerzero as lz; lz.config()", LAYERZERO_CONFIG="layerzero.yaml")
    assert done.returncode == 1 and "belongs to user 12345" in done.stderr, "it names a program"


def test_worker_program_writable_by_others_is_refused(folder: Path) -> None:
    program, proof = folder / "worker", folder / "proof"
    program.write_text(f"#!/bin/sh\ntouch {proof}\n")
    program.chmod(0o777)
    plugins = folder / "plugins"
    plugins.mkdir()
    # A library that is no plugin: only the worker would find out.
    shutil.copy(np.linalg._umath_linalg.__file__, plugins / "p.so")
    (folder / "layerzero.yaml").write_text(
        f"worker: {{program: {program}}}\nplugins: {{directories: [{plugins}]}}\nbackend_isolation: subprocess\n"
    )
    load = f"import layerzero as lz; lz.load_plugin({str(plugins / 'p.so')!r})"
    done = run(folder, load)
    assert done.returncode == 1 and f"run `chmod go-w {program}`" in done.stderr, done.stderr
    assert not proof.exists()
    program.chmod(0o755)
    run(folder, load)
    assert proof.exists(), "the same program, once it is trusted"


def test_plugins_load_reports_refused_plugins(folder: Path) -> None:
    plugins = folder / "plugins"
    plugins.mkdir()
    (plugins / "p.so").write_bytes(b"no library")
    (plugins / "manifest").write_text("00  p.so\n")
    policy = folder / "layerzero.yaml"
    policy.write_text(f"plugins: {{directories: [{plugins}], load: [{plugins / 'p.so'}]}}\n")
    ask = "import layerzero as lz; print(lz.readiness_check().data['ready'])"
    done = run(folder, ask)
    assert "RuntimeWarning: plugins.load:" in done.stderr, done.stderr
    assert done.stdout == "False\n"
    (plugins / "p.so").chmod(0o666)
    assert f"run `chmod go-w {plugins / 'p.so'}`" in run(folder, ask).stderr
    (plugins / "p.so").chmod(0o644)
    plugins.chmod(0o777)
    assert f"run `chmod go-w {plugins}`" in run(folder, ask).stderr
    plugins.chmod(0o755)
    policy.write_text(policy.read_text().replace("load:", f"manifest: {plugins / 'manifest'}, load:"))
    (plugins / "manifest").chmod(0o666)
    assert f"run `chmod go-w {plugins / 'manifest'}`" in run(folder, ask).stderr


@pytest.mark.parametrize("kind", ["pipe", "folder", "device"])
def test_files_that_are_not_regular_are_refused(folder: Path, kind: str) -> None:
    path = folder / "odd"
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    else:
        path = Path("/dev/zero")
    code = f"""
    import layerzero as lz
    for read in (lz.load_config, lz.load_dispatch_table, lz.verify_lockfile, lz.register_operation, lz._native.perfdb_import):
        try:
            read({str(path)!r})
            print("read it")
        except (lz.LayerZeroError, OSError, ValueError) as error:
            print("is not a regular file" in str(error) or error)
    """
    assert run(folder, code).stdout.splitlines() == ["True"] * 5
    done = run(folder, "import layerzero as lz; lz.config()", LAYERZERO_CONFIG=str(path))
    assert done.returncode == 1 and "is not a regular file" in done.stderr, done.stderr
    (folder / "layerzero.yaml").write_text(f"perfdb: {{path: {path}}}\nplugins: {{directories: [{folder}], load: [{path}]}}\n")
    done = run(folder, "import layerzero as lz; print(lz.readiness_check())")
    # A device is not in a folder from which plugins may be loaded.
    count = done.stdout.count("is not a regular file")
    assert done.returncode == 0 and count == (2 if kind == "device" else 3), done.stdout + done.stderr


def test_foreign_file_is_not_overwritten(folder: Path) -> None:
    model = folder / "model.safetensors"
    model.write_bytes(b"weights" * 1000)
    (folder / "layerzero.yaml").write_text(
        f"perfdb: {{path: {model}}}\njit: {{manifest_path: {model}}}\nbackend_compatibility: {{matrix_path: {model}}}\n"
    )
    code = """
    import numpy
    import layerzero as lz
    lz.ops.norm_rms(numpy.ones((2, 8), numpy.float32))
    lz.load_backends()
    """
    done = run(folder, code)
    assert done.returncode == 0, done.stderr
    assert f"RuntimeWarning: perfdb.path: {model}: not a performance database" in done.stderr, done.stderr
    assert f"RuntimeWarning: backend_compatibility.matrix_path: {model}" in done.stderr, done.stderr
    assert model.read_bytes() == b"weights" * 1000
    assert sorted(one.name for one in folder.iterdir()) == ["home", "layerzero.yaml", "model.safetensors"]
    for command in (("tune", "norm.rms", "x=f32[4,64]"), ("perfdb", "prune", "--kernel", "a")):
        done = run(folder, "", *command)
        assert done.returncode == 1 and "cannot be written" in done.stderr, done.stdout
    again = run(folder, f"import layerzero as lz; lz.configure({{'perfdb.path': {str(model)!r}}})")
    assert "not a performance database" in again.stderr


def test_importing_garbage_fails_and_changes_nothing(folder: Path) -> None:
    assert run(folder, "", "tune", "norm.rms", "x=f32[4,64]").returncode == 0
    export = folder / "export.jsonl"
    assert run(folder, "", "perfdb", "export", str(export)).returncode == 0
    before = run(folder, "", "perfdb", "show", "--json").stdout
    assert json.loads(before)["measurements"]
    bad = folder / "bad.jsonl"
    for content in (b"garbage\n", b"", b"\xff\xfe\x00", export.read_bytes() + b"{}\n"):
        bad.write_bytes(content)
        done = run(folder, "", "perfdb", "import", str(bad))
        assert done.returncode == 1 and "nothing was imported" in done.stderr, done.stdout
    assert run(folder, "", "perfdb", "show", "--json").stdout == before
    assert run(folder, "", "perfdb", "import", str(export)).returncode == 0


HOLD = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute("PRAGMA locking_mode = EXCLUSIVE")
connection.execute("BEGIN EXCLUSIVE")
print("held", flush=True)
sys.stdin.read()
"""


def test_locked_database_does_not_block_calls(folder: Path) -> None:
    path = folder / "perfdb.sqlite"
    (folder / "layerzero.yaml").write_text(f"perfdb: {{path: {path}}}\n")
    assert run(folder, "", "tune", "norm.rms", "x=f32[4,64]").returncode == 0
    holder = subprocess.Popen([sys.executable, "-c", HOLD, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert holder.stdin is not None and holder.stdout is not None
    assert holder.stdout.readline() == "held\n"
    code = """
    import sys, time, numpy
    import layerzero as lz
    def kernel(number):
        @lz.register_kernel(operation="norm.rms", id=f"mine.{number}", backend="mine", priority=0)
        def norm(x, weight, *, eps, weight_offset):
            return x
    lz.ops.norm_rms(numpy.ones((2, 8), numpy.float32))
    # Each registration reads the database; waiting five seconds each time would exceed the test's timeout.
    for number in range(40):
        kernel(number)
    print("called", lz.readiness_check().data["ready"], flush=True)
    sys.stdin.readline()
    while not lz._native.perfdb_show():
        time.sleep(0.05)
    print("read")
    """
    environment = {**os.environ, "HOME": str(folder / "home"), "PYTHONPATH": _path(folder)}
    caller = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code)],
        cwd=folder, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert caller.stdout is not None and caller.stdout.readline() == "called False\n"
        holder.communicate("", timeout=60)
        assert caller.communicate("\n", timeout=100)[0] == "read\n"
    finally:
        holder.kill()
        caller.kill()


def test_unknown_environment_variables_warn(folder: Path) -> None:
    ask = "import layerzero as lz; lz.config()"
    done = run(folder, ask, LAYERZERO_BACKEND_ISOLATON="subprocess")
    assert done.returncode == 0
    assert "RuntimeWarning: unknown environment variable `LAYERZERO_BACKEND_ISOLATON`" in done.stderr
    assert "did you mean `LAYERZERO_BACKEND_ISOLATION`?" in done.stderr
    done = run(folder, "", "ready", LAYERZERO_CONFG="x")
    assert "did you mean `LAYERZERO_CONFIG`?" in done.stderr + done.stdout


def test_environment_variables_that_are_not_utf8_are_refused(folder: Path) -> None:
    environment = {os.fsencode(name): os.fsencode(value) for name, value in os.environ.items()}
    environment |= {b"HOME": os.fsencode(folder), b"PYTHONPATH": os.fsencode(_path(folder)), b"LAYERZERO_CONFIG": b"\xff.yaml"}
    command = [sys.executable, "-c", "import layerzero as lz; lz.config()"]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, timeout=120)
    assert done.returncode == 1 and b"`LAYERZERO_CONFIG` is not valid UTF-8" in done.stderr, done.stderr


def test_verify_lockfile_without_recording_raises(folder: Path) -> None:
    code = """
    import numpy
    import layerzero as lz
    lz.freeze("a.lock", [("norm.rms", {"x": numpy.ones((2, 8), numpy.float32)})])
    try:
        lz.verify_lockfile("a.lock")
    except ValueError as error:
        print("no decisions were recorded" in str(error))
    """
    assert run(folder, code).stdout == "True\n"


def test_error_report_is_bounded(folder: Path) -> None:
    (folder / "bad.yaml").write_text("".join(f"determinstic_{at}: true\n" for at in range(8000)))
    code = """
    import layerzero as lz
    try:
        lz.load_config("bad.yaml")
    except lz.ConfigurationError as error:
        print("and 7950 more" in str(error), len(error.reasons), len(str(error)) < 50_000)
    """
    assert run(folder, code).stdout == "True 50 True\n"
