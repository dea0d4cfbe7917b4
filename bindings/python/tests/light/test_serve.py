"""`lz.serve`: the page of this process, its handle, the command line and the report."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request

import numpy as np
import pytest

import layerzero as lz


def get(url, **headers):
    with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=20) as answer:
        return answer.read().decode()


def status(url, **headers):
    try:
        get(url, **headers)
    except urllib.error.HTTPError as error:
        return error.code
    return 200


@pytest.fixture(autouse=True)
def runtime_folder(tmp_path, monkeypatch):
    """Servers of other tests and programs are not listed."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    return tmp_path


def test_page_and_data_need_the_token():
    with lz.serve(port=0) as server:
        root = f"http://127.0.0.1:{server.port}/"
        assert server.url.startswith(root) and len(server.url) > len(root) + 30
        assert "LayerZero" in get(server.url)
        assert status(root) == status(root + "0" * 32 + "/api/overview") == 403
        assert status(server.url, Host="example.com") == 403
        assert status(server.url, Origin="http://example.com") == 403
        assert server.url not in repr(server)
        assert json.loads(get(server.url + "api/overview"))["pid"] == os.getpid()
    with pytest.raises(urllib.error.URLError):
        get(server.url)
    server.close()


def test_calls_are_counted():
    with lz.serve() as server:
        before = json.loads(get(server.url + "api/metrics"))["metrics"]["executions"]
        # A thread adds its cache hits to the counters when it ends.
        thread = threading.Thread(target=lambda: [lz.ops.norm_rms(np.ones((2, 8), np.float32)) for _ in range(200)])
        thread.start()
        thread.join()
        # It ends a moment after Python has joined it.
        deadline = time.monotonic() + 20
        while (after := json.loads(get(server.url + "api/metrics"))["metrics"]["executions"]) < before + 200:
            assert time.monotonic() < deadline, (before, after)
        assert "lz_selection" in get(server.url + "metrics")


def test_registered_kernel_is_explained():
    @lz.register_kernel(operation="norm.rms", id="mine.served", priority=99)
    def mine(x, weight=None, *, eps=1e-6, weight_offset=0.0):
        return x

    try:
        with lz.serve() as server:
            body = json.dumps({"operation": "norm.rms", "call": "x=f32[4,64]"}).encode()
            with urllib.request.urlopen(server.url + "api/explain", data=body, timeout=20) as answer:
                explained = json.loads(answer.read())
        assert "mine.served" in {one["kernel"] for one in explained["candidates"]}
    finally:
        lz.unregister_backend("mine")


def test_a_server_is_listed_while_it_runs(runtime_folder):
    program = "import layerzero as lz, sys; server = lz.serve(); print(server.url, flush=True); sys.stdin.read()"
    child = subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        url = child.stdout.readline().strip()
        found = subprocess.run([sys.executable, "-m", "layerzero", "serve", "--list", "--json"], capture_output=True, text=True, check=True)
        listed = json.loads(found.stdout)["processes"]
        assert [(one["pid"], one["url"]) for one in listed] == [(child.pid, url)]
        (file,) = (runtime_folder / "layerzero").iterdir()
        assert file.stat().st_mode & 0o777 == 0o600
    finally:
        child.communicate("")
    assert child.returncode == 0 and not list((runtime_folder / "layerzero").iterdir())


def test_a_forked_child_leaves_the_server_alone():
    with lz.serve() as server:
        pid = os.fork()
        if pid == 0:
            server.close()
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        assert get(server.url + "healthz") == "ok\n"


def test_command_serves_a_perfdb_until_interrupted(tmp_path):
    database = tmp_path / "perfdb.sqlite"
    tune = "import numpy as np, layerzero as lz; lz.tune('norm.rms', np.ones((4, 64), np.float32), samples=2, progress=False)"
    environment = {**os.environ, "LAYERZERO_CONFIG": str(tmp_path / "layerzero.yaml")}
    (tmp_path / "layerzero.yaml").write_text(f"perfdb:\n  path: {database}\n")
    subprocess.run([sys.executable, "-c", tune], env=environment, check=True)
    command = [sys.executable, "-m", "layerzero", "serve", str(database), "--json"]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    url = json.loads(child.stdout.readline())["url"]
    rows = json.loads(get(url + "api/operation/norm.rms"))["measurements"]["rows"]
    assert len(rows) >= 2 and {"rows", "hidden"} <= {axis["name"] for axis in rows[0]["axes"]}
    child.send_signal(signal.SIGINT)
    assert child.wait(20) == 130


def test_wrong_files_are_errors(tmp_path):
    (tmp_path / "text").write_text("text")
    with pytest.raises(OSError, match="text"):
        lz.serve(perfdb=tmp_path / "text")
    with pytest.raises(OSError, match="absent"):
        lz.serve(lockfiles=(tmp_path / "absent",))


def test_report_is_one_file(tmp_path):
    file = tmp_path / "report.html"
    subprocess.run([sys.executable, "-m", "layerzero", "report", "--html", str(file)], check=True, capture_output=True)
    text = file.read_text()
    assert '"operation/norm.rms"' in text and "<link rel=\"stylesheet\"" not in text and "src=" not in text
