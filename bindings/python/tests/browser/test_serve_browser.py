"""The page of `lz.serve` and the report, in a real browser: no console errors, live data, and who is refused.

Screenshots are written to the folder named by LZ_SCREENSHOTS, otherwise to a temporary one.
"""

import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import browser as devtools
import numpy as np
import pytest

import layerzero as lz
from layerzero import _native

PROGRAM = devtools.find()
pytestmark = pytest.mark.skipif(PROGRAM is None, reason="Chromium is not installed: apt-get install chromium")


@pytest.fixture(scope="module")
def shots(tmp_path_factory):
    folder = Path(os.environ.get("LZ_SCREENSHOTS") or tmp_path_factory.mktemp("screenshots"))
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@pytest.fixture(scope="module")
def chromium(tmp_path_factory):
    # A name that resolves to the loopback address, as an attacker's name server could answer.
    flags = "--host-resolver-rules=MAP rebind.test 127.0.0.1"
    one = devtools.Browser(PROGRAM, tmp_path_factory.mktemp("profile"), flags)
    yield one
    one.close()


@pytest.fixture(autouse=True)
def no_problems(chromium):
    chromium.problems.clear()
    yield
    assert chromium.problems == []


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """Measurements of several sizes, and of an older version."""
    for rows in (1, 8, 64, 512):
        lz.tune("norm.rms", np.ones((rows, 1024), np.float32), samples=2, progress=False)
        lz.tune("norm.layer", np.ones((rows, 256), np.float32), samples=2, progress=False)
    file = tmp_path_factory.mktemp("perfdb") / "export.jsonl"
    _native.perfdb_export(str(file))
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    for line in lines:
        if "measurement" in line:
            line["measurement"]["key"]["kernel_version"] = "0.0.9"
            line["measurement"]["timing"]["median_ns"] *= 1.3
            line["measurement"]["timing"]["p95_ns"] *= 1.3
    file.write_text("\n".join(json.dumps(line) for line in lines))
    _native.perfdb_import(str(file))


@pytest.fixture(scope="module")
def server(measured):
    """A process that works: several operations, one with a kernel that fails."""

    @lz.register_kernel(operation="activation.silu", id="mine.silu", priority=100)
    def failing(x, **_):
        raise RuntimeError("out of luck")

    stop = threading.Event()

    def work():
        x, small, weight = np.ones((64, 1024), np.float32), np.ones((2, 64), np.float32), np.ones(1024, np.float32)
        while not stop.is_set():
            for _ in range(50):
                lz.ops.norm_rms(x, weight)
                lz.ops.norm_layer(small)
            lz.ops.activation_silu(small)
            time.sleep(0.01)

    worker = threading.Thread(target=work)
    worker.start()
    with lz.serve() as one:
        yield one
    stop.set()
    worker.join()
    lz.unregister_backend("mine")


def go(chromium, page, condition):
    chromium.evaluate(f"location.hash = '#/{page}'")
    return chromium.wait(condition)


HEADING = "document.querySelector('main h1')?.textContent === '{}'"


def both(chromium, shots, name):
    chromium.screenshot(shots / f"{name}.png")
    chromium.screenshot(shots / f"{name}-dark.png", dark=True)


def test_live_data_arrives(chromium, server, shots):
    chromium.open(server.url)
    chromium.wait("document.getElementById('connection').dataset.state === 'live'")
    calls = "Number(document.querySelector('.tile .value')?.textContent.replace(/[^0-9.]/g, ''))"
    assert chromium.wait(f"{calls} > 0") is True
    # The chart has at least three points, so several events have arrived.
    chromium.wait("(document.querySelector('.chart .series')?.getAttribute('d') ?? '').split('L').length > 3")
    assert "mine.silu" in chromium.wait("document.querySelector('main').innerText")
    both(chromium, shots, "live")
    chromium.screenshot(shots / "live-narrow.png", width=420)


def test_every_page_opens(chromium, server, shots):
    chromium.open(server.url)
    for page, title in [
        ("operations", "Operations"),
        ("measurements", "Measurements"),
        ("health", "Health"),
        ("policy", "Policy"),
        ("lockfile", "Lockfile"),
        ("processes", "Processes"),
    ]:
        go(chromium, page, HEADING.format(title))
        assert chromium.evaluate("document.querySelector('nav [aria-current]').textContent") == title
        both(chromium, shots, page)
    assert str(os.getpid()) in chromium.evaluate("document.querySelector('main').innerText")


def test_measurements_are_plotted_by_kernel_and_version(chromium, server, shots):
    chromium.open(server.url)
    go(chromium, "measurements/norm.rms", "document.querySelectorAll('.legend li').length >= 2")
    before = chromium.evaluate("document.querySelectorAll('.legend li').length")
    chromium.evaluate("(() => { const by = document.getElementById('by'); by.value = 'kernel_version'; by.dispatchEvent(new Event('change')); })()")
    chromium.wait(f"document.querySelectorAll('.legend li').length > {before}")
    assert "0.0.9" in chromium.evaluate("document.querySelector('.legend').textContent")
    both(chromium, shots, "measurements-by-version")


def test_operation_shows_heat_map_and_explanations(chromium, server, shots):
    chromium.open(server.url)
    go(chromium, "operation/norm.rms", "document.querySelectorAll('.heat td.cell').length >= 4")
    chromium.wait("document.querySelector('.chosen')")
    both(chromium, shots, "operation")
    explain = "(() => {{ document.getElementById('call').value = '{}'; document.getElementById('device').value = '{}'; document.querySelector('form').requestSubmit(); }})()"
    chromium.evaluate(explain.format("x=f32[4,64]", "h100"))
    chromium.wait("document.querySelector('main').innerText.includes('NVIDIA H100')")
    both(chromium, shots, "operation-h100")
    # The browser logs an answer that is not 2xx; that is expected here.
    chromium.evaluate(explain.format("x=f31[4,64]", ""))
    chromium.wait("document.querySelector('.note[data-mark=bad]')?.textContent.includes('unknown dtype')")
    assert all("422" in problem for problem in chromium.problems)
    chromium.problems.clear()


def test_lockfiles_are_compared(chromium, server, shots, tmp_path):
    x = np.ones((4, 64), np.float32)
    lz.freeze(tmp_path / "old.lock", [("norm.rms", {"x": x})])
    lz.lock("norm.rms", "reference.norm.rms")
    try:
        lz.freeze(tmp_path / "new.lock", [("norm.rms", {"x": x})])
    finally:
        lz.unlock("norm.rms")
    with lz.serve(lockfiles=(tmp_path / "old.lock", tmp_path / "new.lock")) as other:
        chromium.open(other.url + "#/lockfile")
        chromium.wait("document.querySelectorAll('.diff tbody tr').length >= 1")
        assert "reference.norm.rms" in chromium.evaluate("document.querySelector('.diff').innerText")
        both(chromium, shots, "lockfile-diff")
        chromium.open("about:blank")


def test_pages_are_accessible_by_keyboard_and_name(chromium, server):
    chromium.open(server.url)
    for page in ("live", "operations", "measurements", "policy", "lockfile"):
        go(chromium, page, "document.querySelector('main h1')")
        # Every control has a label, every column head a scope, every plot a name.
        assert chromium.evaluate("[...document.querySelectorAll('main input, main select')].filter((one) => !one.labels.length).map((one) => one.id)") == []
        assert chromium.evaluate("document.querySelectorAll('main th:not([scope])').length") == 0
        assert chromium.evaluate("[...document.querySelectorAll('main svg')].every((one) => one.getAttribute('aria-label'))")


def test_others_are_refused(chromium, server):
    token = server.url.rstrip("/").rsplit("/", 1)[1]
    for url in (
        server.url.replace(token, "0" * len(token)),
        server.url.replace("127.0.0.1", "rebind.test"),
    ):
        chromium.open(url)
        assert chromium.evaluate("document.body.innerText").startswith(("wrong or missing token", "the Host header"))
    with lz.serve() as other:
        chromium.open(other.url)
        attempt = f"fetch('{server.url}api/explain', {{method: 'POST', body: '{{}}'}}).then(() => 'read', () => 'refused')"
        assert chromium.evaluate(attempt) == "refused"
        chromium.open("about:blank")
    # All of these are logged by the browser.
    assert chromium.problems
    chromium.problems.clear()


def test_report_needs_no_server(chromium, measured, shots, tmp_path):
    file = tmp_path / "report.html"
    subprocess.run([sys.executable, "-m", "layerzero", "report", "--html", str(file)], check=True, capture_output=True)
    chromium.open(file.as_uri())
    chromium.wait("document.getElementById('connection').dataset.state === 'report'")
    for page, condition in [
        ("live", HEADING.format("Live decisions")),
        ("operations", HEADING.format("Operations")),
        ("measurements/norm.rms", "document.querySelectorAll('.legend li').length >= 2"),
        ("operation/norm.rms", "document.querySelectorAll('.heat td.cell').length >= 4"),
        ("health", HEADING.format("Health")),
        ("policy", HEADING.format("Policy")),
        ("lockfile", HEADING.format("Lockfile")),
    ]:
        go(chromium, page, condition)
    chromium.screenshot(shots / "report.png")
