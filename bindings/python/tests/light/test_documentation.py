"""The examples of docs/operating.md and docs/policy.md run: Python, policies and commands."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[4] / "docs"
BLOCKS = [
    pytest.param(language, text, id=f"{page}-{language}-{number}")
    for page in ("operating", "policy")
    for number, (language, text) in enumerate(
        re.findall(r"^```(\w*)\n(.*?)^```$", (DOCS / f"{page}.md").read_text(encoding="utf-8"), re.S | re.M)
    )
]


def run(command, folder, **environment):
    clean = {name: value for name, value in os.environ.items() if not name.startswith("LAYERZERO_")}
    done = subprocess.run(command, cwd=folder, env={**clean, **environment}, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return done


@pytest.mark.parametrize(("language", "text"), BLOCKS)
def test_an_example_runs(language, text, tmp_path):
    if language == "python":
        run([sys.executable, "-W", "error", "-c", "import numpy\nimport layerzero as lz\n" + text], tmp_path)
    elif language == "yaml":
        (tmp_path / "layerzero.yaml").write_text(text, encoding="utf-8")
        run([sys.executable, "-c", "import layerzero as lz; lz.list_operations()"], tmp_path)
    elif language == "sh":
        for line in text.splitlines():
            words = shlex.split(line)
            variables = dict(word.split("=", 1) for word in words if word.startswith("LAYERZERO_"))
            program, *rest = words[len(variables) :]
            assert program == "lz", line
            assert run([sys.executable, "-m", "layerzero", *rest], tmp_path, **variables).stdout
    else:
        pytest.fail(f"no test runs a block of {language!r}")


def test_the_page_has_examples_of_each_kind():
    assert {block.values[0] for block in BLOCKS} == {"python", "yaml", "sh"}
