"""Secrets are not logged at any level: the token of a page, and private keys."""

import re
import subprocess
import sys

CODE = """
import sys, urllib.request
import numpy as np
import layerzero as lz

with lz.serve() as server:
    urllib.request.urlopen(server.url).read()
    print(server.url)
lz.tune("norm.rms", np.ones((4, 64), np.float32), samples=3)
lz.perfdb.keygen("fleet.key")
lz.perfdb.push("pushed.sqlite", key="fleet.key")
"""


def test_secrets_are_not_logged(tmp_path):
    (tmp_path / "layerzero.yaml").write_text("perfdb: {path: perfdb.sqlite}\n")
    done = subprocess.run(
        [sys.executable, "-c", CODE],
        capture_output=True,
        text=True,
        timeout=120,
        cwd=tmp_path,
        env={"PATH": "/usr/bin", "LAYERZERO_LOG": "trace", "PYTHONPATH": ":".join(sys.path)},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    token = re.search(r"[0-9A-Za-z_-]{20,}", done.stdout.strip())
    assert token is not None, done.stdout
    key = (tmp_path / "fleet.key").read_text().strip()
    assert len(key) > 20
    # The log is not empty, so that the test can fail.
    assert "perfdb" in done.stderr
    assert token[0] not in done.stderr
    assert all(line not in done.stderr for line in key.splitlines() if len(line) > 20)
