"""Reload without a restart: plugins, kernel versions, canaries, watched policy files, and readiness."""

import json
import shutil
import subprocess
import threading
import time
from pathlib import Path

import numpy
import pytest

import layerzero as lz
from layerzero.cli import main

ROWS = numpy.arange(24, dtype=numpy.float32).reshape(3, 8) - 7.5
KERNEL = "versioned.norm.rms"
SECOND = "versioned.norm.rms@2.0"


def expected():
    with lz.disabled():
        return lz.ops.norm_rms(ROWS, eps=1e-5)


@pytest.fixture
def plugin(built, tmp_path):
    """A copy of a version of the test plugin that no other test loads."""
    tmp_path.chmod(0o755)
    lz.configure({"plugins.directories": [str(tmp_path)]})

    def copy(fault):
        return Path(shutil.copy(built(fault), tmp_path / f"{fault}.so"))

    yield copy
    lz.configure({"rollout.shares": {}, "rollout.canaries": {}, "rollout.canary_calls": 100, "plugins.directories": []})
    lz.unregister_backend("versioned")


def version():
    return next(one["version"] for one in lz.list_kernels("norm.rms") if one["id"] == KERNEL)


def calls():
    found = {one["kernel"]: one["count"] for one in lz.metrics()["calls"] if one["operation"] == "norm.rms"}
    return found.get(KERNEL, 0), found.get(SECOND, 0)


def check(report, name):
    return next(one for one in report.to_dict()["checks"] if one["name"] == name)


def test_a_plugin_is_replaced_while_threads_call_it(plugin):
    lz.load_plugin(plugin("FIRST"))
    stop, wrong, right = threading.Event(), [], expected()

    def work():
        while not stop.is_set():
            found = lz.ops.norm_rms(ROWS, eps=1e-5)
            if not numpy.allclose(found, right, atol=1e-4):
                wrong.append(found)

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        first = "FIRST.so"
        assert first in Path("/proc/self/maps").read_text()
        done = lz.reload_plugin(plugin("SECOND"), drain_seconds=30)
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert (done.backend, done.version, done.unloaded) == ("versioned", "2.0", True)
    assert (KERNEL, "1.0") in done.replaced
    assert done.compared_calls > 0 and done.untried == []
    assert version() == "2.0" and not wrong
    assert first not in Path("/proc/self/maps").read_text()


@pytest.mark.parametrize(
    ("fault", "code"),
    [
        ("ABI", "PLUGIN_VERSION_MISMATCH"),
        ("NEVER", "PLUGIN_INIT_FAILED"),
        ("WRONG", "VERSION_REJECTED"),
        ("FAILS", "VERSION_REJECTED"),
    ],
)
def test_a_bad_plugin_changes_nothing(plugin, fault, code, capsys):
    lz.load_plugin(plugin("FIRST"))
    bad = plugin(fault)
    for load in (lz.reload_plugin, lambda path: lz.load_plugin(path, alongside=True)):
        with pytest.raises(lz.ConfigurationError) as raised:
            load(bad)
        assert raised.value.reasons[0].code == code
    assert version() == "1.0"
    numpy.testing.assert_allclose(lz.ops.norm_rms(ROWS, eps=1e-5), expected(), atol=1e-4)
    assert main(["plugin", "check", str(bad), "--allow", str(bad.parent)]) == 1
    assert capsys.readouterr().err


def test_a_plugin_is_checked_from_the_command_line(plugin, capsys):
    path = plugin("SECOND")
    assert main(["plugin", "check", str(path), "--allow", str(path.parent), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["backend"], found["version"], found["untried"]) == ("versioned", "2.0", [])
    assert found["compared_calls"] > 0
    assert not [one for one in lz.list_kernels() if one["backend"] == "versioned"]
    assert main(["plugin", "check", str(path)]) == 1 and "plugins.directories" in capsys.readouterr().err


def test_a_plugin_that_ends_its_process_is_an_error(tmp_path, capsys):
    source, library = tmp_path / "abort.c", tmp_path / "abort.so"
    source.write_text("#include <stdlib.h>\n__attribute__((constructor)) static void start(void) { abort(); }\n")
    subprocess.run(["cc", "-shared", "-fPIC", str(source), "-o", str(library)], check=True)
    tmp_path.chmod(0o755)
    assert main(["plugin", "check", str(library), "--allow", str(tmp_path)]) == 1
    assert f"the plugin {library} ended the process that loaded it, with signal SIGABRT" in capsys.readouterr().err


def test_versions_share_calls(plugin):
    lz.load_plugin(plugin("FIRST"))
    assert lz.load_plugin(plugin("SECOND"), alongside=True).kernels == [SECOND, "versioned.relu@2.0"]
    assert next(one for one in lz.list_kernels() if one["id"] == SECOND)["version_of"] == KERNEL
    lz.configure({"rollout.shares": {SECOND: 25}})
    before = calls()
    for _ in range(200):
        lz.ops.norm_rms(ROWS, eps=1e-5)
    after = calls()
    assert (after[0] - before[0], after[1] - before[1]) == (150, 50)
    found = lz.explain("norm.rms", ROWS, eps=1e-5).to_dict()["versions"]
    assert {"kernel": SECOND, "stable": KERNEL, "percent": 25, "state": "share", "detail": ""} in found
    assert f'kernel="{SECOND}"' in lz.metrics_text()
    lz.lock("norm.rms", SECOND)
    try:
        lz.ops.norm_rms(ROWS, eps=1e-5)
        assert calls()[1] == after[1] + 1
    finally:
        lz.unlock("norm.rms")
    with pytest.raises(lz.ConfigurationError, match=r"did you mean `versioned.norm.rms@2.0`"):
        lz.promote_version("versioned.norm.rms@2.1")


@pytest.mark.parametrize(("fault", "state"), [("SECOND", "promoted"), ("SLIGHTLY_WRONG", "rolled_back"), ("FAILS_LATER", "rolled_back")])
def test_a_canary_is_promoted_or_rolled_back(plugin, fault, state):
    lz.load_plugin(plugin("FIRST"))
    lz.load_plugin(plugin(fault), alongside=True)
    lz.configure({"rollout.canary_calls": 10, "rollout.canary_max_slowdown_percent": 1000.0, "rollout.canaries": {SECOND: 50}})
    right = expected()
    for _ in range(60):
        numpy.testing.assert_allclose(lz.ops.norm_rms(ROWS, eps=1e-5), right, atol=1e-4)
    found = next(one for one in lz.canaries() if one["kernel"] == SECOND)
    assert (found["state"], found["percent"]) == (state, 100 if state == "promoted" else 0), found
    assert found["why"]
    line = next(one for one in lz.explain("norm.rms", ROWS, eps=1e-5).to_dict()["versions"] if one["kernel"] == SECOND)
    assert line["state"] == state
    lz.promote_version(SECOND)
    assert next(one for one in lz.canaries() if one["kernel"] == SECOND)["percent"] == 100
    lz.roll_back_version(SECOND)
    assert next(one for one in lz.canaries() if one["kernel"] == SECOND)["percent"] == 0


def test_python_kernels_are_replaced_and_registered_alongside():
    seen = []

    def kernel(name):
        def norm(x, weight, *, eps, weight_offset):
            seen.append(name)
            with lz.disabled():
                return lz.ops.norm_rms(x, weight, eps=eps, weight_offset=weight_offset)

        return norm

    def register(name, **how):
        lz.register_kernel(operation="norm.rms", id="reloaded.norm.rms", version=name, priority=100, **how)(kernel(name))

    def run(count=1):
        seen.clear()
        for _ in range(count):
            lz.ops.norm_rms(ROWS)
        return [name for name in seen]

    try:
        register("1")
        assert run() == ["1"]
        with pytest.raises(lz.ConfigurationError):
            register("2")
        plan = lz.ops.norm_rms.plan(ROWS)
        register("2", replace=True)
        assert run() == ["2"]
        with pytest.raises(lz.NoKernelFoundError, match="PLAN_STALE"):
            plan.run(ROWS)
        register("3", alongside=True)
        assert run() == ["2"]
        lz.configure({"rollout.shares": {"reloaded.norm.rms@3": 30}})
        assert run(100).count("3") == 30
        lz.promote_version("reloaded.norm.rms@3")
        assert run(3) == ["3", "3", "3"]
        with pytest.raises(ValueError, match="either"):
            register("4", replace=True, alongside=True)
    finally:
        lz.configure({"rollout.shares": {}})
        lz.unregister_backend("reloaded")


@pytest.mark.parametrize(("scale", "state"), [(1.0, "promoted"), (1.01, "rolled_back"), (None, "rolled_back")])
def test_a_canary_in_python_is_compared(scale, state):
    def register(version, scale, **how):
        def relu(x):
            if scale is None:
                raise RuntimeError("requested failure")
            return numpy.maximum(x, 0) * numpy.float32(scale)

        lz.register_kernel(operation="activation.relu", id="tried.relu", version=version, priority=100, **how)(relu)

    x = numpy.ones(4, numpy.float32)
    try:
        register("1", 1.0)
        register("2", scale, alongside=True)
        lz.configure({"rollout.canary_calls": 5, "rollout.canary_max_slowdown_percent": 1e6, "rollout.canaries": {"tried.relu@2": 50}})
        for number in range(40):
            out = numpy.empty_like(x) if number % 2 else None
            found = lz.ops.activation_relu(x, out=out)
            assert (found == 1).all() and (out is None or (out == 1).all()), "the caller gets the results of the stable version"
        canary = next(one for one in lz.canaries() if one["kernel"] == "tried.relu@2")
        assert canary["state"] == state, canary
        if state == "promoted":
            assert canary["compared"] == 5
        else:
            assert ("requested failure" if scale is None else "output 0 differs by up to 0.0") in canary["why"]
    finally:
        lz.configure({"rollout.canaries": {}, "rollout.canary_calls": 100, "rollout.canary_max_slowdown_percent": 20.0})
        lz.unregister_backend("tried")


def test_python_kernels_are_replaced_while_threads_call_them():
    def register(scale, **how):
        def relu(x):
            return numpy.maximum(x, 0) * scale

        lz.register_kernel(operation="activation.relu", id="swapped.relu", version=str(scale), priority=100, **how)(relu)

    stop, wrong, seen = threading.Event(), [], set()

    def work():
        while not stop.is_set():
            found = float(lz.ops.activation_relu(numpy.ones(4, numpy.float32))[0])
            seen.add(found)
            if found not in (1.0, 2.0, 3.0):
                wrong.append(found)

    threads = [threading.Thread(target=work) for _ in range(3)]
    try:
        register(1)
        for thread in threads:
            thread.start()
        for scale in (2, 3):
            deadline = time.monotonic() + 30
            while float(scale - 1) not in seen and time.monotonic() < deadline:
                time.sleep(0.001)
            register(scale, replace=True)
        time.sleep(0.05)
        stop.set()
        for thread in threads:
            thread.join()
        assert seen == {1.0, 2.0, 3.0} and not wrong
        assert lz.ops.activation_relu(numpy.ones(4, numpy.float32))[0] == 3.0
    finally:
        stop.set()
        lz.unregister_backend("swapped")


def test_a_policy_file_is_watched(tmp_path):
    path = tmp_path / "layerzero.yaml"
    path.write_text("allow_experimental: false\n")
    seen, changed = [], threading.Condition()

    def on_change(state, message):
        with changed:
            seen.append((state, message))
            changed.notify_all()

    def wait_for(state):
        with changed:
            assert changed.wait_for(lambda: any(one[0] == state for one in seen), timeout=60), seen
            message = next(one[1] for one in seen if one[0] == state)
            seen.clear()
            return message

    try:
        with lz.watch_config(path, on_change) as watch:
            wait_for("applied")
            path.write_text("allow_experimental: true\n")
            wait_for("applied")
            assert lz.config()["allow_experimental"].value == "true"
            assert lz.config()["allow_experimental"].source.startswith(str(path))
            path.write_text("allow_experimentl: false\n")
            assert "did you mean `allow_experimental`?" in wait_for("refused")
            assert lz.config()["allow_experimental"].value == "true"
            path.unlink()
            wait_for("unreadable")
            assert watch.is_open()
        assert not watch.is_open()
        watch.close()
    finally:
        path.write_text("{}\n")
        lz.load_config(path)
    with pytest.raises(OSError, match="cannot be watched"):
        lz.watch_config(tmp_path / "absent" / "layerzero.yaml")


def test_every_readiness_check_is_reported(capsys):
    names = [one["name"] for one in lz.readiness_check().to_dict()["checks"]]
    expected_names = "kernels health backends circuits dispatch_table compilation handles capture memory perfdb telemetry versions"
    assert names[:12] == expected_names.split()
    main(["ready", "--json"])
    assert [one["name"] for one in json.loads(capsys.readouterr().out)["checks"]] == names


def test_readiness_checks_fail(monkeypatch, tmp_path):
    from importlib import metadata

    before = {name: lz.config()[name].value for name in ("memory.probe", "memory_headroom_mb", "graph_strict_mode")}
    try:
        lz.configure({"memory.probe": True, "memory_headroom_mb": 1 << 40})
        assert not check(lz.readiness_check(), "memory")["ok"]
        lz.configure({"memory_headroom_mb": 1})
        assert check(lz.readiness_check(), "memory")["ok"]
        lz.configure({"graph_strict_mode": True})
        assert "lz.verify_capture" in check(lz.readiness_check(["cuda"]), "capture")["detail"]
    finally:
        lz.configure({name: value == "true" if value in ("true", "false") else int(value) for name, value in before.items()})
    monkeypatch.setattr(metadata, "version", lambda name: "0.0.0")
    found = check(lz.readiness_check(), "versions")
    assert not found["ok"] and "0.0.0" in found["detail"]
